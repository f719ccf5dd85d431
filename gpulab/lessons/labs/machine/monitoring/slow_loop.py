"""The training loop of lesson 17 that several tools watch, and readers of what TensorBoard and the profiler stored."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor, nn

FEATURES, CLASSES = 256, 10


class SlowRows:
    """A map-style data set of random rows with labels; each item takes `wait_s`, as if read from a file server."""

    def __init__(self, length: int, rows: int, wait_s: float) -> None:
        import torch

        generator = torch.Generator().manual_seed(0)
        self.length, self.wait_s = length, wait_s
        self._rows = torch.randn(rows, FEATURES, generator=generator)
        self._labels = torch.randint(0, CLASSES, (rows,), generator=generator)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if index >= self.length:
            raise IndexError(index)
        time.sleep(self.wait_s)
        return self._rows, self._labels


def make_network(width: int = 512) -> nn.Module:
    """Return a network of three layers for `SlowRows`, with the same weights every time."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)
    )


def stored_scalars(folder: Path) -> Mapping[str, list[float]]:
    """Return the scalars that a SummaryWriter of TensorBoard wrote into a folder, by tag, in order."""
    accumulator: Any = import_module("tensorboard.backend.event_processing.event_accumulator")  # it has no types
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return {tag: [point.value for point in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def memory_column_bytes(profiler: Any) -> int:
    """Return the sum of the profiler table's "Self CPU Mem", positive parts only: all bytes ever allocated."""
    return sum(max(0, row.self_cpu_memory_usage) for row in profiler.key_averages())


def profiled_step_ms(profiler: Any) -> float:
    """Return the mean time of the profiler's steps, which its table shows in the row ProfilerStep*, in ms."""
    rows: Iterator[Any] = (row for row in profiler.key_averages() if row.key.startswith("ProfilerStep"))
    totals = [(row.cpu_time_total / 1e3, row.count) for row in rows]
    steps = sum(count for _, count in totals)
    return sum(total for total, _ in totals) / steps if steps else float("nan")
