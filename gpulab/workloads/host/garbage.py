"""Garbage collection during training: the loop calls it, or keeps very many objects alive."""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpulab.workloads.training import loss_values, perceptron, random_normal, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, BATCH = 256, 256
EVERY = 1000  # steps between explicit collections
BUFFER_SIZE, NEW_PER_STEP = 60_000, 2_500  # transitions in the buffer, and new ones in a step


def train_with_gc_collect(*, device: str = "cpu", steps: int = 30, every: int = 1) -> list[float]:
    """Train a perceptron; call gc.collect() every few steps, "to save memory"."""
    losses = []
    for step, loss in enumerate(_steps(device, steps), 1):
        losses.append(loss)
        if step % every == 0:
            gc.collect()
    return loss_values(losses)


def train_with_replay_buffer(*, device: str = "cpu", steps: int = 200, frozen: bool = False) -> list[float]:
    """Train while filling a replay buffer of Python objects, as in reinforcement learning."""
    training = _steps(device, steps)
    buffer: deque[list[object]] = deque(_transitions(0, BUFFER_SIZE), maxlen=BUFFER_SIZE)
    if frozen:
        gc.collect()
        gc.freeze()
        gc.disable()
    losses = []
    try:
        with torch_threads(1):
            for step in range(1, steps + 1):
                buffer.extend(_transitions(step, NEW_PER_STEP))
                losses.append(next(training))
                if frozen and step % EVERY == 0:
                    gc.collect()
    finally:
        if frozen:
            gc.enable()
            gc.unfreeze()
    return loss_values(losses)


def _transitions(step: int, count: int) -> list[list[object]]:
    """Observations, actions and rewards as lists, which Python's collector must traverse."""
    return [[[step, number], [number % 4], [0.5]] for number in range(count)]


def _steps(device: str, count: int) -> Iterator[Tensor]:
    import torch
    from torch import nn

    samples = random_normal(BATCH, WIDTH).to(device)
    model = perceptron(WIDTH, 4 * WIDTH, WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    yield from run_optimizer_steps(optimizer, lambda _: nn.functional.mse_loss(model(samples), samples), range(count))


GARBAGE = (
    Workload(
        name="collecting",
        about="A loop that calls gc.collect() in every step.",
        run=train_with_gc_collect,
        rule="garbage_collection",
        twin="collecting_seldom",
    ),
    Workload(
        name="collecting_seldom",
        about="The same loop with gc.collect() once in a thousand steps.",
        run=functools.partial(train_with_gc_collect, steps=300, every=EVERY),
        rule=None,
    ),
    Workload(
        name="replay",
        about="A replay buffer of many small Python objects, which the collector traverses again and again.",
        run=train_with_replay_buffer,
        rule="garbage_collection",
        twin="replay_frozen",
    ),
    Workload(
        name="replay_frozen",
        about="The same buffer, frozen; the collector is disabled except for one call in a thousand steps.",
        run=functools.partial(train_with_replay_buffer, steps=300, frozen=True),
        rule=None,
    ),
)
