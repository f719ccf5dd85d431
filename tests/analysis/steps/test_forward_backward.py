"""Forward and backward passes, found in real recordings: nothing of the optimizer, of clipping or of averages is in."""

import pytest

import gpulab
from gpulab.analysis.steps.forward_backward import forward_backward_spans
from gpulab.intervals import covered_ns

torch = pytest.importorskip("torch")


def recorded(closure=False):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    average = torch.zeros(8, 8)

    def loss_of(batch):
        optimizer.zero_grad()
        loss = torch.nn.functional.silu(net(batch)).mean()  # silu: the last operators of a forward pass
        loss.backward()
        return loss

    with gpulab.profile("passes"):
        for batch in torch.utils.data.DataLoader(torch.randn(160, 8), batch_size=4):
            if closure:
                optimizer.step(lambda batch=batch: loss_of(batch))
            else:
                loss_of(batch)
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
            average.lerp_(net[0].weight.detach(), 0.1)
    return gpulab.runs["passes"]


def covered_frac(run, name):
    """Share of the time of these operators that is inside forward and backward passes, away from the edges."""
    events = run.event_rows
    rows = events.select(events.matching(lambda word: word == name))
    inside = covered_ns(forward_backward_spans(run), rows["start_ns"], rows["start_ns"] + rows["dur_ns"])
    assert len(rows) >= 6, name
    return inside[1:-1].sum() / rows["dur_ns"][1:-1].sum()


def test_the_model_and_its_gradients_are_inside():
    run = recorded()
    for name in (
        "aten::addmm",
        "aten::silu",
        "aten::silu_backward",
        "autograd::engine::evaluate_function: AddmmBackward0",
    ):
        assert covered_frac(run, name) == 1, name


def test_optimizer_clipping_and_averages_are_outside():
    run = recorded()
    for name in ("aten::lerp_", "aten::linalg_vector_norm", "Optimizer.step#SGD.step"):
        assert covered_frac(run, name) == 0, name


def test_the_passes_of_a_closure_are_inside():
    run = recorded(closure=True)
    assert covered_frac(run, "aten::silu_backward") == 1
    assert covered_frac(run, "aten::lerp_") == 0


def test_without_a_backward_pass_there_is_nothing_to_tell():
    with gpulab.profile("inference") as session:
        for batch in torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4):
            batch.relu()
    assert forward_backward_spans(session.run) is None
