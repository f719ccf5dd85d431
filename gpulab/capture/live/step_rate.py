"""Steps per second over the last two seconds, for the live panel."""

from __future__ import annotations

from collections import deque

WINDOW_NS = 2_000_000_000


class StepRate:
    """Readings of the number of steps so far."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, int]] = deque(maxlen=64)

    def update(self, now_ns: int, steps: int) -> float | None:
        """Add a reading and return the rate; None before the second step."""
        self._recent.append((now_ns, steps))
        oldest_ns, oldest = next(iter([(at_ns, count) for at_ns, count in self._recent if now_ns - at_ns <= WINDOW_NS]))
        if now_ns == oldest_ns or steps < 2:
            return None
        return (steps - oldest) / ((now_ns - oldest_ns) / 1e9)
