"""The printed change of an optimizer, run on the real one: it is fused, and trains as before."""

import copy
from dataclasses import replace

import pytest

from gpulab.rules import diagnose
from gpulab.rules.kernels.optimizer import FOREACH_OPTIMIZERS, FUSED_OPTIMIZERS, in_place_code
from gpulab.run import Optimizer
from tests.cases.kernels.unfused_optimizer.case import updating_on_cpu, updating_on_gpu
from tests.support.runs.made_runs import on_gpu, run_of
from tests.support.tiers import every_nth

torch = pytest.importorskip("torch")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def optimizer_of(kind, net):
    """Two parameter groups with settings of their own."""
    slow, fast = net[0].parameters(), net[2].parameters()
    groups = [{"params": list(slow), "lr": 0.01}, {"params": list(fast), "lr": 0.02, "weight_decay": 0.1}]
    return getattr(torch.optim, kind)(groups, lr=0.1)


def train(net, optimizer, steps):
    inputs = torch.linspace(-1, 1, 64).reshape(8, 8)
    for _ in range(steps):
        optimizer.zero_grad()
        net(inputs).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("steps_before", [0, 3])
@pytest.mark.parametrize("kind", every_nth([*FUSED_OPTIMIZERS, *FOREACH_OPTIMIZERS], 3))
def test_training_goes_on_as_it_would_have(kind, steps_before):
    net = network()
    optimizer = optimizer_of(kind, net)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    train(net, optimizer, steps_before)
    reference = copy.deepcopy((net, optimizer))
    implementation = "fused" if kind in FUSED_OPTIMIZERS else "foreach"
    exec(in_place_code("optimizer", implementation), {"optimizer": optimizer})
    assert all(group[implementation] for group in optimizer.param_groups)
    train(*reference, 3)
    train(net, optimizer, 3)
    assert [group["lr"] for group in optimizer.param_groups] == [0.01, 0.02]
    for expected, value in zip(reference[0].parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(value, expected)
    schedule.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.005, 0.01]


@pytest.mark.parametrize("kind", every_nth(FUSED_OPTIMIZERS, 4))
def test_the_fused_kernel_is_called(kind):
    net = network()
    optimizer = optimizer_of(kind, net)
    train(net, optimizer, 2)
    exec(in_place_code("optimizer", "fused"), {"optimizer": optimizer})
    with torch.profiler.profile() as profile:
        train(net, optimizer, 1)
    assert any(event.key.startswith("aten::_fused_") for event in profile.key_averages())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [each for each in FUSED_OPTIMIZERS if each != "Adagrad"])
def test_on_a_gpu_an_optimizer_that_has_stepped_becomes_fused(kind):
    net = network().cuda()
    optimizer = optimizer_of(kind, net)
    for step in range(4):
        if step == 2:
            exec(in_place_code("optimizer", "fused"), {"optimizer": optimizer})
        optimizer.zero_grad()
        net(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
    assert all(group["fused"] for group in optimizer.param_groups)


def unfused(*optimizers):
    run = run_of(updating_on_cpu(1200, 0.003), optimizers=optimizers)
    return next(each for each in diagnose(run).findings if each.rule == "unfused_optimizer")


def adamw(name, tensors):
    return Optimizer(kind="AdamW", name=name, device="cpu", tensors=tensors)


def test_the_code_changes_every_optimizer_whose_operators_are_counted():
    result = unfused(adamw("first", 60), adamw("second", 40), Optimizer(kind="SGD", name="third", tensors=7))
    scope = {name: torch.optim.AdamW(torch.nn.Linear(2, 2).parameters()) for name in ("first", "second")}
    exec(result.fix, scope)
    assert all(scope[name].param_groups[0]["fused"] for name in ("first", "second"))
    assert result.numbers["tensors"] == 100


def test_without_the_name_of_one_of_them_no_code_is_printed():
    result = unfused(adamw("first", 60), adamw(None, 40))
    assert result.fix == ""
    assert "each of the 2 AdamW optimizers" in result.advice


def test_a_fused_update_is_said_to_round_differently():
    assert any("rounding errors" in caveat for caveat in unfused(adamw("first", 60)).caveats)
    assert unfused(adamw("first", 1)).claim.endswith("for 1 parameter tensor.")


@pytest.mark.parametrize(("version", "argument"), [("2.11.0+cu130", "foreach"), ("2.13.0", "fused"), (None, "foreach")])
def test_adagrad_on_a_gpu_becomes_fused_only_where_pytorch_can(version, argument):
    """PyTorch 2.11 on an H100: `fused=True` requires all the params to be ... supported devices, not cuda."""
    adagrad = Optimizer(kind="Adagrad", name="optimizer", device="cuda:0", tensors=100)
    run = on_gpu(updating_on_gpu(1200, kind="Adagrad"))
    run = replace(run, machine=replace(run.machine, torch=version), optimizers=(adagrad,))
    result = next(each for each in diagnose(run).findings if each.rule == "unfused_optimizer")
    assert f"{argument}=True" in result.advice
