"""Exact simulation of a DataLoader: how long each step waits for its batch, from the cost of each batch.

The policy is PyTorch's: at most `prefetch` outstanding batches per worker, requested from the workers in turn; each
worker builds its batches in order; the loop takes batches in order. No clock is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class LoaderSimulation:
    """Result of a simulated loader: how long each step waited for its batch."""

    waits_ms: tuple[float, ...]
    wall_ms: float  # to the end of the last step

    @property
    def stalls(self) -> int:
        """Number of steps that waited; the first step always waits and does not count."""
        return sum(wait > 0 for wait in self.waits_ms[1:])


def bursty_costs(count: int, usual_ms: float, burst_ms: float, every: int) -> list[float]:
    """Return batch costs where one batch in `every` costs more, such as the first batch of a new file."""
    return [burst_ms if index % every == every - 1 else usual_ms for index in range(count)]


def simulate_loader(costs_ms: Sequence[float], step_ms: float, *, workers: int, prefetch: int = 2) -> LoaderSimulation:
    """Simulate training on these batches with steps of `step_ms`. Without workers the main process loads the data."""
    if not workers:
        return LoaderSimulation(waits_ms=tuple(costs_ms), wall_ms=sum(costs_ms) + step_ms * len(costs_ms))
    free_ms = [0.0] * workers  # when each worker finishes its requests so far
    waits_ms: list[float] = []
    taken_ms: list[float] = []  # when the loop took each batch; each time it requests one more
    now_ms = 0.0
    for index, cost_ms in enumerate(costs_ms):
        freed_by = index - workers * prefetch  # the loop requests this batch when it takes that one
        requested_ms = taken_ms[freed_by] if freed_by >= 0 else 0.0
        worker = index % workers
        free_ms[worker] = max(free_ms[worker], requested_ms) + cost_ms
        waits_ms.append(max(0.0, free_ms[worker] - now_ms))
        now_ms += waits_ms[-1]
        taken_ms.append(now_ms)
        now_ms += step_ms
    return LoaderSimulation(waits_ms=tuple(waits_ms), wall_ms=now_ms)
