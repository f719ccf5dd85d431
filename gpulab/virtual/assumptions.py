"""Values that a virtual GPU cannot know: the values assumed for them, and how often each was used."""

from __future__ import annotations

from gpulab.virtual.op_log.ops import Assumption


class Assumptions:
    """The assumptions of one virtual run: each once, in order of first use, with a count."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str], int] = {}

    def add(self, subject: str, value: str) -> None:
        """Note that `what` is unknown and that `taken` was used in its place."""
        self._counts[subject, value] = self._counts.get((subject, value), 0) + 1

    def entries(self) -> tuple[Assumption, ...]:
        """Return all assumptions so far."""
        return tuple(Assumption(unknown, value, count) for (unknown, value), count in self._counts.items())
