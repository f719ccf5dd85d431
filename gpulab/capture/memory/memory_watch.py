"""Memory while a session records: allocator at every step, growing collections, holders at out-of-memory."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import FrameType
from typing import Protocol

from gpulab.capture.memory.allocator import AllocatorReadings
from gpulab.capture.memory.growing_collections import GrowingCollections
from gpulab.capture.memory.holders import EarlierError, StorageFilter, every_storage, find_holders
from gpulab.capture.memory.out_of_memory import parse_failure
from gpulab.capture.protection.guard import Guard
from gpulab.rows import Rows
from gpulab.run import Failure, Gap
from gpulab.tables import HOLDERS

EVERY_STEP = "memory at the start of each step"


class AllocatorSource(Protocol):
    """Readings of an allocator."""

    def read(self, at_ns: int) -> None:
        """Take a reading now."""

    def rows(self, began_ns: int) -> Rows:
        """All readings, as rows of tables.ALLOCATOR."""


class MemoryWatch:
    """Watches memory from `begin` to `finish`; failures become gaps and never reach the user's code."""

    def __init__(
        self,
        allocator: AllocatorSource | None = None,
        storage_filter: StorageFilter | None = None,
        guard: Guard | None = None,
    ) -> None:
        self._guard = guard or Guard()
        self.own_gaps: list[Gap] = []  # without those of the guard, which others may share
        self._allocator: AllocatorSource = allocator or AllocatorReadings()
        self._growing = GrowingCollections()
        self._counts = storage_filter or every_storage
        self._earlier_error: EarlierError | None = None

    @property
    def gaps(self) -> list[Gap]:
        """What could not be read."""
        return [*self._guard.gaps, *self.own_gaps]

    def begin(self) -> None:
        """Note what is held before the recorded code runs."""
        self._earlier_error = self._guard.call("memory held by earlier cells", EarlierError, None)
        self._guard.call(EVERY_STEP, self._allocator.read, None, time.time_ns())

    def boundary(self, step: int, innermost: FrameType | None) -> None:
        """Read memory at the start of a step, in the recorded thread."""
        self._guard.call(EVERY_STEP, self._inspect, None, step, innermost)

    def allocator_rows(self, began_ns: int) -> Rows:
        """Allocator readings, as rows of tables.ALLOCATOR."""
        return self._allocator.rows(began_ns)

    def finish(self, error: BaseException | None) -> tuple[Failure | None, Rows]:
        """The out-of-memory error that ended the recorded code, with the memory holders; else growing collections."""
        earlier, self._earlier_error = self._earlier_error, None
        failure = self._guard.call("whether memory ran out", parse_failure, None, error)
        if failure is None or error is None:
            return None, self._guard.call("growing collections", self._growing.rows, HOLDERS.empty())
        nothing: tuple[Rows, Sequence[Gap]] = HOLDERS.empty(), ()
        rows, gaps = self._guard.call(
            "memory holders", lambda: find_holders(failure, error, earlier, storage_filter=self._counts), nothing
        )
        self.own_gaps += gaps
        return failure, rows

    def _inspect(self, step: int, innermost: FrameType | None) -> None:
        self._allocator.read(time.time_ns())
        self._growing.inspect(step, innermost)
