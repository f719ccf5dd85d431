"""Step marks in bounded memory: the first ones, the latest ones, and the exact number of all."""

from __future__ import annotations

from array import array
from struct import Struct

import numpy as np

from gpulab.rows import Rows
from gpulab.tables import MARKS

COLUMNS = len(MARKS.columns)
FIRST = 50_000  # the recorded steps are among the first
LATEST = 50_000
_PACK = Struct(f"{COLUMNS}q").pack
Mark = tuple[int, int, int, int, int, bool, int, int, int, int]  # the columns of tables.MARKS; times in UNIX ns


class MarkBuffer:
    """Marks of a session; memory stops to grow after `first + latest` marks, at 80 bytes each."""

    def __init__(self, first: int = FIRST, latest: int = LATEST) -> None:
        self.count = 0  # all marks, also those that were overwritten
        self._first, self._latest = first, latest
        self._marks = array("q")

    def append(self, mark: Mark) -> None:
        """Add a mark; beyond the limit it replaces the oldest one of the latest."""
        if self.count < self._first + self._latest:
            self._marks.frombytes(_PACK(*mark))  # in half the time of extend()
        else:
            at = self._slot(self.count) * COLUMNS
            self._marks[at : at + COLUMNS] = array("q", mark)
        self.count += 1

    @property
    def missing(self) -> int:
        """Number of marks that were overwritten."""
        return max(0, self.count - self._first - self._latest)

    @property
    def missing_span_ns(self) -> tuple[int, int] | None:
        """The UNIX times between which marks are missing: end of the last mark before, start of the first one after."""
        if not self.missing:
            return None
        marks = self._ordered()
        return int(marks[self._first - 1, 2]), int(marks[self._first, 1])

    def rows(self, began_ns: int) -> Rows:
        """The marks that are left, as rows of tables.MARKS."""
        marks = self._ordered()
        columns = {column.name: marks[:, index] for index, column in enumerate(MARKS.columns)}
        return MARKS.rows(columns).shifted(-began_ns, "start_ns", "end_ns")

    def since(self, count: int) -> list[tuple[int, ...]]:
        """The marks after the first `count`, as far as they are left; for a reader that follows the recording."""
        begin = max(count, self.count - self._latest) if self.missing else count
        values = self._marks
        return [tuple(values[at : at + COLUMNS]) for at in (self._slot(n) * COLUMNS for n in range(begin, self.count))]

    def _slot(self, number: int) -> int:
        """Where the mark of this number is, or was."""
        return number if number < self._first else self._first + (number - self._first) % self._latest

    def _ordered(self) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
        marks = np.array(self._marks, np.int64).reshape(-1, COLUMNS)
        if not self.missing:
            return marks
        oldest = self._slot(self.count)
        return np.concatenate([marks[: self._first], marks[oldest:], marks[self._first : oldest]])
