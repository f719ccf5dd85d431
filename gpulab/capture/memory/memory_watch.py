"""Memory while a session records: allocator at every step, growing collections, holders at out-of-memory."""

from __future__ import annotations

import time
from types import FrameType
from typing import Protocol

from gpulab.capture.memory.allocator import AllocatorReadings
from gpulab.capture.memory.growing_collections import GrowingCollections
from gpulab.capture.memory.holders import EarlierError, StorageFilter, every_storage, find_holders
from gpulab.capture.memory.out_of_memory import parse_failure
from gpulab.rows import Rows
from gpulab.run import Failure, Gap
from gpulab.tables import HOLDERS


class AllocatorSource(Protocol):
    """Readings of an allocator."""

    def read(self, at_ns: int) -> None:
        """Take a reading now."""

    def rows(self, began_ns: int) -> Rows:
        """All readings, as rows of tables.ALLOCATOR."""


class MemoryWatch:
    """Watches memory from `begin` to `finish`; failures become gaps and never reach the user's code."""

    def __init__(self, allocator: AllocatorSource | None = None, storage_filter: StorageFilter | None = None) -> None:
        self.gaps: list[Gap] = []
        self._allocator: AllocatorSource = allocator or AllocatorReadings()
        self._growing = GrowingCollections()
        self._counts = storage_filter or every_storage
        self._earlier_error: EarlierError | None = None
        self._failed = False

    def begin(self) -> None:
        """Note what is held before the recorded code runs."""
        try:
            self._earlier_error = EarlierError()
            self._allocator.read(time.time_ns())
        except Exception as error:  # protects the user's code; the failure is reported as a gap
            self._add_gap("memory held by earlier cells", error)

    def boundary(self, step: int, innermost: FrameType | None) -> None:
        """Read memory at the start of a step, in the recorded thread."""
        if self._failed:
            return
        try:
            self._allocator.read(time.time_ns())
            self._growing.inspect(step, innermost)
        except Exception as error:  # protects the user's training loop; the failure is reported as a gap
            self._failed = True
            self._add_gap("memory at the start of each step", error)

    def allocator_rows(self, began_ns: int) -> Rows:
        """Allocator readings, as rows of tables.ALLOCATOR."""
        return self._allocator.rows(began_ns)

    def finish(self, error: BaseException | None) -> tuple[Failure | None, Rows]:
        """The out-of-memory error that ended the recorded code, with the memory holders; else growing collections."""
        earlier, self._earlier_error = self._earlier_error, None
        try:
            failure = parse_failure(error)
            if failure is None or error is None:
                return None, self._growing.rows()
        except Exception as problem:  # an exception of a foreign class may fail here; the report must still appear
            self._add_gap("whether memory ran out", problem)
            return None, HOLDERS.empty()
        try:
            rows, gaps = find_holders(failure, error, earlier, storage_filter=self._counts)
        except Exception as problem:  # foreign tensor classes may fail here
            self._add_gap("memory holders", problem)
            return failure, HOLDERS.empty()
        self.gaps += gaps
        return failure, rows

    def _add_gap(self, subject: str, error: Exception) -> None:
        self.gaps.append(Gap(what=subject, why=f"reading it failed: {error}", fix="please report this with the cell"))
