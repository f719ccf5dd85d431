"""What was taken in place of values that a GPU without numbers cannot tell, counted."""

from __future__ import annotations

from gpulab.virtual.op_log.ops import Assumption


class Assumptions:
    """Each kind once, in order of first use, with how often it was needed."""

    def __init__(self) -> None:
        self._times: dict[tuple[str, str], int] = {}

    def take(self, what: str, taken: str) -> None:
        """Something could not be known, and this was taken in its place."""
        self._times[what, taken] = self._times.get((what, taken), 0) + 1

    def told(self) -> tuple[Assumption, ...]:
        """All of them so far."""
        return tuple(Assumption(what, taken, times) for (what, taken), times in self._times.items())
