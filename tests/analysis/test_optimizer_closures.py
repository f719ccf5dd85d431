"""The forward and backward pass of a closure are not the optimizer's."""

import time

import pytest

import gpulab
from gpulab.analysis.kernels.optimizers import optimizer_cost_on_cpu, optimizer_steps
from gpulab.analysis.steps.detection import find_steps

torch = pytest.importorskip("torch")


def recorded(name, use_closure, kind="SGD", **options):
    torch.manual_seed(0)
    net = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(20)])
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01, **options)
    batches = torch.utils.data.DataLoader(torch.randn(160, 16), batch_size=4)

    def loss_of(batch):
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        return loss

    with gpulab.profile(name):
        for batch in batches:
            if use_closure:
                optimizer.step(lambda batch=batch: loss_of(batch))
            else:
                loss_of(batch)
                optimizer.step()
    return gpulab.runs[name]


def operators_of_updates(run):
    cost = optimizer_cost_on_cpu(run, find_steps(run))
    return cost.count


@pytest.mark.parametrize("kind", ["SGD", pytest.param("AdamW", marks=pytest.mark.full)])
def test_an_update_has_as_many_operators_with_a_closure_as_without(kind):
    plain, closure = (recorded(f"closure {use}", use, kind, foreach=False) for use in (False, True))
    assert operators_of_updates(closure) == pytest.approx(operators_of_updates(plain), rel=0.02)


def test_what_a_closure_waits_for_after_its_backward_pass_is_not_the_optimizers():
    torch.manual_seed(0)
    net = torch.nn.Linear(16, 16)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def loss_of(batch):
        loss = net(batch).square().mean()
        loss.backward()
        time.sleep(0.02)  # as a rank that waits for the gradients of another one
        return loss

    with gpulab.profile("waiting closure") as profile:
        for batch in torch.utils.data.DataLoader(torch.randn(80, 16), batch_size=4):
            optimizer.step(lambda batch=batch: loss_of(batch))
    assert optimizer_cost_on_cpu(profile.run, find_steps(profile.run)).cost_ns < 20_000_000


def test_no_operator_of_the_backward_pass_is_the_optimizers():
    run = recorded("lbfgs", True, "LBFGS", max_iter=3)
    names, events = run.events, run.event_rows
    backward = names["name"].str.startswith("autograd::engine")
    for start_ns, dur_ns in zip(*(optimizer_steps(run)[column] for column in ("start_ns", "dur_ns")), strict=True):
        inside = (events["start_ns"] >= start_ns) & (events["start_ns"] < start_ns + dur_ns)
        assert not (backward.to_numpy() & inside).any()
    assert len(optimizer_steps(run))
