"""A DataLoader on paper: which steps have to wait for their batch, exactly, from what each batch costs.

The policy is PyTorch's: at most `prefetch` batches for each worker are asked for and not yet taken, worker after
worker in turn; a worker builds what it is asked for in order; batches are taken in order. No clock is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Fed:
    """What a training loop saw of a loader: how long each step waited for its batch."""

    waits_ms: tuple[float, ...]
    wall_ms: float  # to the end of the last step

    @property
    def stalls(self) -> int:
        """Steps that waited; the first one always does, and is not counted."""
        return sum(wait > 0 for wait in self.waits_ms[1:])


def bursty(count: int, usual_ms: float, burst_ms: float, every: int) -> list[float]:
    """What each batch costs where one in `every` costs more, such as one that begins a new file."""
    return [burst_ms if place % every == every - 1 else usual_ms for place in range(count)]


def fed(costs_ms: Sequence[float], step_ms: float, *, workers: int, prefetch: int = 2) -> Fed:
    """Train through these batches with steps of `step_ms`. No workers: the loop builds each batch itself."""
    if not workers:
        return Fed(waits_ms=tuple(costs_ms), wall_ms=sum(costs_ms) + step_ms * len(costs_ms))
    free_ms = [0.0] * workers  # when each worker has done what it was asked for so far
    waits_ms: list[float] = []
    taken_ms: list[float] = []  # when each batch was taken; each time one more is asked for
    now_ms = 0.0
    for place, cost_ms in enumerate(costs_ms):
        before = place - workers * prefetch  # the batch whose taking let this one be asked for
        asked_ms = taken_ms[before] if before >= 0 else 0.0
        worker = place % workers
        free_ms[worker] = max(free_ms[worker], asked_ms) + cost_ms
        waits_ms.append(max(0.0, free_ms[worker] - now_ms))
        now_ms += waits_ms[-1]
        taken_ms.append(now_ms)
        now_ms += step_ms
    return Fed(waits_ms=tuple(waits_ms), wall_ms=now_ms)
