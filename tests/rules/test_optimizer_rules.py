"""The rule about unfused optimizers where a loop has several of them."""

import pytest

from gpulab.rules import diagnose
from gpulab.run import Optimizer
from tests.cases.kernels.unfused_optimizer.case import updating_on_cpu
from tests.support.runs.made_runs import run_of

torch = pytest.importorskip("torch")


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
    assert "all 2 AdamW optimizers" in result.advice


def test_a_fused_update_is_said_to_round_differently():
    assert any("bit-identical" in caveat for caveat in unfused(adamw("first", 60)).caveats)
    assert unfused(adamw("first", 1)).claim.endswith("for 1 parameter tensor.")
