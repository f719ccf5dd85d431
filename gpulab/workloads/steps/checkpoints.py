"""Checkpoints during training: synchronous, or written by a separate thread."""

from __future__ import annotations

import functools
import tempfile
import threading
from pathlib import Path
from typing import Any

from gpulab.workloads.training import loss_values, perceptron, random_normal, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

WIDTH, BATCH, EVERY = 2048, 16, 5


def copy_to_host(value: Any) -> Any:
    """Return a copy in host memory, which training does not modify."""
    import torch

    if torch.is_tensor(value):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return {key: copy_to_host(each) for key, each in value.items()}
    return [copy_to_host(each) for each in value] if isinstance(value, list) else value


def train_with_checkpoints(
    *, device: str = "cpu", steps: int = 60, every: int = EVERY, in_thread: bool = False
) -> list[float]:
    """Train two large layers with momentum, and save both model and optimizer every few steps."""
    with tempfile.TemporaryDirectory() as folder, torch_threads(1):
        return _train(device, steps, every, in_thread, Path(folder) / "checkpoint.pt")


def _train(device: str, steps: int, every: int, in_thread: bool, path: Path) -> list[float]:
    import torch
    from torch import nn

    samples = random_normal(BATCH, WIDTH).to(device)
    model = perceptron(WIDTH, WIDTH, WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses, writers = [], []
    updates = run_optimizer_steps(optimizer, lambda _: nn.functional.mse_loss(model(samples), samples), range(steps))
    for step, loss in enumerate(updates, 1):
        losses.append(loss)
        if step % every == 0 and not in_thread:
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        elif step % every == 0:
            state = copy_to_host({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            writers.append(threading.Thread(target=torch.save, args=(state, path)))
            writers[-1].start()
    for writer in writers:
        writer.join()
    return loss_values(losses)


CHECKPOINTS = (
    Workload(
        name="checkpoints",
        about="A synchronous checkpoint of model and optimizer every few steps.",
        run=train_with_checkpoints,
        rule="periodic_stalls",
        twin="checkpoints_beside",
    ),
    Workload(
        name="checkpoints_beside",
        about="A tenth of the checkpoints, copied by the loop and written by a thread.",
        run=functools.partial(train_with_checkpoints, steps=90, every=10 * EVERY, in_thread=True),
        rule=None,
    ),
)
