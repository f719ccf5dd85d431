"""The elements of a timeline: rows of boxes, curves, and groups of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Coverage, Ints, Spans

Keys = NDArray[np.uint8]
Codes = NDArray[np.int32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Boxes:
    """The boxes of one row, sorted by start and the longer first, in the time of the scene.

    Where boxes overlap (`tangled`), a point in time belongs to the box that began first. So the layers, one per colour
    key, never overlap, and together they cover the same time as the row.
    """

    start_ns: Ints
    end_ns: Ints
    key: Keys
    name: Codes  # index into the names of the scene
    id: Codes  # row in the events, or index of the step; -1: neither
    max_end_ns: Ints  # running maximum of the ends
    layers: tuple[tuple[int, Coverage], ...]
    coverage: Coverage
    overlaps: bool
    longest_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)

    def overlapping(self, start_ns: int, end_ns: int) -> Ints:
        """Return the positions of the boxes that overlap a time window, in order."""
        first = int(np.searchsorted(self.max_end_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        if not self.overlaps:  # the ends are sorted
            return np.arange(first, last)
        return first + np.flatnonzero(self.end_ns[first:last] > start_ns)

    def at_least(self, start_ns: int, end_ns: int, min_ns: float) -> Ints:
        """Return the positions of the boxes that overlap a time window and last at least `min_ns`."""
        if self.longest_ns < min_ns:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self.max_end_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        positions = first + np.flatnonzero(self.end_ns[first:last] - self.start_ns[first:last] >= min_ns)
        return positions[self.end_ns[positions] > start_ns]


def build_boxes(start_ns: Ints, end_ns: Ints, key: Keys, name: Codes, id: Codes) -> Boxes:
    """Build a row of boxes from columns in any order."""
    if len(start_ns) > 1 and not _is_sorted(start_ns):
        order = np.lexsort((key, name, -end_ns, start_ns))
        start_ns, end_ns, key, name, id = start_ns[order], end_ns[order], key[order], name[order], id[order]
    reach = np.maximum.accumulate(end_ns)
    before = np.append(start_ns[:1], reach[:-1])
    visible_start = np.maximum(start_ns, before)  # without the time that belongs to earlier boxes
    visible = end_ns > visible_start
    layers = []
    for code in np.flatnonzero(np.bincount(key[visible], minlength=1)).tolist():
        mask = visible & (key == code)
        layers.append((code, Coverage.of(Spans(visible_start[mask], end_ns[mask]))))
    covered = Coverage.of(Spans(visible_start[visible], end_ns[visible]))
    tangled = bool((start_ns[1:] < reach[:-1]).any())
    longest_ns = int((end_ns - start_ns).max(initial=0))
    return Boxes(start_ns, end_ns, key, name, id, reach, tuple(layers), covered, tangled, longest_ns)


def _is_sorted(start_ns: Ints) -> bool:
    """Return whether starts increase strictly; equal starts must be sorted by the other columns."""
    return bool((start_ns[1:] > start_ns[:-1]).all())


@dataclass(frozen=True, eq=False)
class Curve:
    """Readings over time; NaN marks a gap. `held`: a value stays until the next one; otherwise lines join them."""

    at_ns: Ints
    value: Floats
    is_step_function: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Rows under one label: either `rows` of boxes or one `curve`."""

    id: str
    name: str
    description: str
    side: int = 0
    rows: tuple[Boxes, ...] = ()
    curve: Curve | None = None
    folded: bool = False
    is_events: bool = False  # the ids of its boxes are rows in the events
    is_call_stack: bool = False  # each row holds the calls made by the row above
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    format: str = "number"
    threshold: float | None = None

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return 1 if self.curve is not None else len(self.rows)


@dataclass(eq=False)
class NameTable:
    """The names of a scene during its construction; boxes refer to them by number."""

    names: list[str] = field(default_factory=lambda: [""])
    _codes: dict[str, int] = field(default_factory=dict)

    def add_vocabulary(self, vocabulary: Iterable[str]) -> int:
        """Append the vocabulary of a table and return the number of its first name."""
        first = len(self.names)
        self.names.extend(vocabulary)
        return first

    def code_of(self, text: str) -> int:
        """Return the number of a name that is not in a vocabulary, and add it if it is new."""
        if text not in self._codes:
            self._codes[text] = len(self.names)
            self.names.append(text)
        return self._codes[text]
