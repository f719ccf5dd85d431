"""Steps of programs without an optimizer, and closures of optimizers: what is marked, and what is left as it is."""

from __future__ import annotations

import contextlib
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


def compiled_frames(step, iterations=6):
    from torch._dynamo.utils import counters

    for _ in range(iterations):
        step()
    return counters["frames"]["total"]


def compiled_step(net, optimizer):
    def step():
        loss = net(ROWS).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return torch.compile(step, backend="eager")


def compiled_update(net, optimizer):
    update = torch.compile(optimizer.step, backend="eager")

    def step():
        net(ROWS).square().mean().backward()
        update()
        optimizer.zero_grad()

    return step


@pytest.mark.filterwarnings("default")  # PyTorch warns while it compiles an optimizer
@pytest.mark.parametrize("compiled", [compiled_step, compiled_update])
def test_hooks_are_not_compiled_with_the_code_that_calls_them(compiled):
    torch._dynamo.reset()
    frames = []
    for block in (contextlib.nullcontext(), gpulab.profile("compiled", level="sensors")):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        net = nn.Linear(16, 4)
        step = compiled(net, torch.optim.SGD(net.parameters(), lr=0.01))
        with block:
            frames.append(compiled_frames(step))
    plain, with_gpulab = frames
    assert with_gpulab <= plain + 4  # the wrapper of backward() and its parts


@pytest.mark.filterwarnings("default")
def test_a_loop_with_a_compiled_optimizer_has_steps():
    net = nn.Linear(16, 4)
    step = compiled_update(net, torch.optim.SGD(net.parameters(), lr=0.01))
    run = recorded(lambda: [step() for _ in range(80)])
    steps = find_steps(run)
    assert (steps.detected_by, len(steps)) == ("backward pass", 80 - 64)
