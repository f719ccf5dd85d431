"""Steps of programs without an optimizer, and closures of optimizers: what is marked, and what is left as it is."""

from __future__ import annotations

import functools
import time

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import gpulab
from gpulab.analysis.kernels.optimizers import optimizer_steps
from gpulab.analysis.steps.detection import find_steps
from gpulab.tables import MarkKind

ITERATIONS = 12
ROWS = torch.linspace(-1, 1, 64 * 16).reshape(64, 16)


def marks(run, kind):
    return len(run.mark_rows.of_kind(kind))


def recorded(function, level="sensors"):
    with gpulab.profile("calls", level=level) as session:
        function()
    assert not [gap for gap in session.run.recording.left_out if "failed" in gap.why]
    return session.run


def updated_by_hand(iterations=ITERATIONS, forward=lambda weight: (ROWS @ weight).square().mean()):
    weight = torch.ones(16, 4, requires_grad=True)
    for _ in range(iterations):
        forward(weight).backward()
        with torch.no_grad():
            weight -= 0.01 * weight.grad
            weight.grad = None


def test_backward_passes_end_the_steps_of_a_program_without_an_optimizer():
    run = recorded(updated_by_hand, "trace")
    steps = find_steps(run)
    assert steps.detected_by == "backward pass"
    assert len(steps) == ITERATIONS - 4  # the fourth call is the first mark
    assert steps.recorded.any()


def test_a_backward_pass_within_another_one_does_not_count():
    def forward(weight):
        return checkpoint(lambda value: (ROWS @ value).square().mean(), weight, use_reentrant=True)

    assert marks(recorded(lambda: updated_by_hand(forward=forward)), MarkKind.BACKWARD) == ITERATIONS - 3


def test_few_backward_passes_are_no_loop():
    assert marks(recorded(lambda: updated_by_hand(3)), MarkKind.BACKWARD) == 0


def accumulated(net, optimizer):
    for _ in range(10):
        net(ROWS).square().mean().backward()
    optimizer.step()


def loaded(_net, _optimizer):
    weight = torch.ones(16, 4, requires_grad=True)
    for (rows,) in DataLoader(TensorDataset(ROWS), batch_size=4):
        (rows @ weight).square().mean().backward()


def minimised(net, _optimizer):
    parameters = list(net.parameters())

    def closure():
        for parameter in parameters:
            parameter.grad = None
        loss = net(ROWS).square().mean()
        loss.backward()
        return loss

    torch.optim.LBFGS(parameters, max_iter=10).step(closure)


@pytest.mark.parametrize("function", [accumulated, loaded, minimised])
def test_programs_with_an_optimizer_or_a_data_loader(function):
    net = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    assert marks(recorded(lambda: function(net, optimizer)), MarkKind.BACKWARD) == 0


def test_torch_is_restored_and_a_patch_over_ours_stays(monkeypatch):
    original = torch.autograd.backward
    recorded(updated_by_hand)
    assert torch.autograd.backward is original

    def patched(*arguments, **options):
        return original(*arguments, **options)

    recorded(lambda: monkeypatch.setattr(torch.autograd, "backward", patched))
    assert torch.autograd.backward is patched


class Trainer:
    """Calls optimizers as Lightning does: hooks run in the closure, after the backward pass."""

    def __init__(self, sleep_s=0.0):
        self.net, self.sleep_s = nn.Linear(16, 4), sleep_s
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.01)

    def closure(self):
        self.optimizer.zero_grad()
        loss = self.net(ROWS).square().mean()
        loss.backward()
        time.sleep(self.sleep_s)
        torch.linalg.vector_norm(self.net.weight.grad)
        return loss


@pytest.mark.parametrize("call", [
    lambda trainer: trainer.optimizer.step(trainer.closure),
    lambda trainer: trainer.optimizer.step(closure=functools.partial(trainer.closure)),
    lambda trainer: trainer.optimizer.step(lambda: trainer.closure()),
])  # fmt: skip
def test_the_end_of_a_closure_is_noted(call):
    trainer = Trainer()
    run = recorded(lambda: [call(trainer) for _ in range(ITERATIONS)])
    assert marks(run, MarkKind.CLOSURE) == marks(run, MarkKind.OPTIMIZER) == ITERATIONS


def test_hooks_in_a_closure_are_no_part_of_the_update():
    trainer = Trainer(sleep_s=0.03)
    run = recorded(lambda: [trainer.optimizer.step(trainer.closure) for _ in range(ITERATIONS)], "trace")
    calls = optimizer_steps(run)
    closures = run.mark_rows.of_kind(MarkKind.CLOSURE)["end_ns"]
    assert len(calls) >= 3
    for start_ns, dur_ns in zip(calls["start_ns"].tolist(), calls["dur_ns"].tolist(), strict=True):
        assert not ((closures > start_ns) & (closures <= start_ns + dur_ns)).any()


def test_a_closure_of_a_class_of_its_own_is_passed_as_it_is():
    class Closure:
        def __call__(self):
            return None

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            received.append(closure)

    received, closure, trainer = [], Closure(), Trainer()
    optimizer = Optimizer(trainer.net.parameters(), lr=0.01)
    recorded(lambda: optimizer.step(closure))
    assert received[0] is closure


def test_the_result_and_the_errors_of_a_closure_reach_the_program():
    trainer = Trainer()

    def fail():
        raise KeyError("batch")

    def program():
        assert trainer.optimizer.step(trainer.closure).shape == ()
        with pytest.raises(KeyError, match="batch"):
            trainer.optimizer.step(fail)

    recorded(program)
