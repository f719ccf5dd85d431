"""Memory while a session records: the allocator at every step, what grows, and who held it where it ran out."""

from __future__ import annotations

import time
from types import FrameType
from typing import Protocol

from gpulab.capture.memory.allocator import AllocatorReadings
from gpulab.capture.memory.growing_collections import Growing
from gpulab.capture.memory.holders import Counts, EarlierError, any_storage, holders
from gpulab.capture.memory.out_of_memory import failure_of
from gpulab.rows import Rows
from gpulab.run import Failure, Gap
from gpulab.tables import HOLDERS


class Readings(Protocol):
    """What an allocator says, kept until it is asked for."""

    def read(self, at_ns: int) -> None:
        """Note what it says now."""

    def rows(self, began_ns: int) -> Rows:
        """All that was noted, as rows of tables.ALLOCATOR."""


class MemoryWatch:
    """Watches from `begin` to `ended_by`; whatever fails here is said and never reaches the user's code."""

    def __init__(self, allocator: Readings | None = None, counts: Counts | None = None) -> None:
        self.gaps: list[Gap] = []
        self._allocator: Readings = allocator or AllocatorReadings()
        self._growing = Growing()
        self._counts = counts or any_storage
        self._earlier: EarlierError | None = None
        self._failed = False

    def begin(self) -> None:
        """The recording begins: what is held already is no doing of the recorded code."""
        try:
            self._earlier = EarlierError()
            self._allocator.read(time.time_ns())
        except Exception as error:  # protects the user's code; the failure is reported as a gap
            self._lose("what earlier cells hold", error)

    def boundary(self, step: int, innermost: FrameType | None) -> None:
        """A step begins, in the recorded thread."""
        if self._failed:
            return
        try:
            self._allocator.read(time.time_ns())
            self._growing.look(step, innermost)
        except Exception as error:  # protects the user's training loop; the failure is reported as a gap
            self._failed = True
            self._lose("memory at the beginning of each step", error)

    def allocator_rows(self, began_ns: int) -> Rows:
        """What the allocator said, as rows of tables.ALLOCATOR."""
        return self._allocator.rows(began_ns)

    def ended_by(self, error: BaseException | None) -> tuple[Failure | None, Rows]:
        """What ended the recorded code, if that was memory running out, and who held it; else what kept growing."""
        earlier, self._earlier = self._earlier, None
        try:
            failure = failure_of(error)
            if failure is None or error is None:
                return None, self._growing.rows()
        except Exception as problem:  # an error of a stranger's making; the report must come all the same
            self._lose("whether memory ran out", problem)
            return None, HOLDERS.empty()
        try:
            rows, gaps = holders(failure, error, earlier, counts=self._counts)
        except Exception as problem:  # as above: strangers' tensors are looked at
            self._lose("who holds memory", problem)
            return failure, HOLDERS.empty()
        self.gaps += gaps
        return failure, rows

    def _lose(self, what: str, error: Exception) -> None:
        self.gaps.append(Gap(what=what, why=f"reading it failed: {error}", fix="please report this with the cell"))
