"""What a timeline is made of: rows of boxes, curves, and the groups they stand in."""

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
    """The boxes of one row, in order of their start, the longer first; times are those of the scene.

    Where boxes overlap (`tangled`), an instant belongs to the one that began first: so the layers, one for each key,
    never overlap, and together they are the time that the row covers.
    """

    start_ns: Ints
    end_ns: Ints
    key: Keys
    name: Codes  # into the names of the scene
    id: Codes  # row of the events, or index of the step; -1: neither
    reach_ns: Ints  # the latest end so far: it never falls
    layers: tuple[tuple[int, Coverage], ...]
    covered: Coverage
    tangled: bool
    longest_ns: int

    def __len__(self) -> int:
        return len(self.start_ns)

    def reaching(self, start_ns: int, end_ns: int) -> Ints:
        """The places of the boxes that reach into a stretch of time, in order."""
        first = int(np.searchsorted(self.reach_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        if not self.tangled:  # each ends after the one before
            return np.arange(first, last)
        return first + np.flatnonzero(self.end_ns[first:last] > start_ns)

    def wide(self, start_ns: int, end_ns: int, least_ns: float) -> Ints:
        """Those of them that last at least so long."""
        if self.longest_ns < least_ns:
            return np.empty(0, np.int64)
        first = int(np.searchsorted(self.reach_ns, start_ns, side="right"))
        last = int(np.searchsorted(self.start_ns, end_ns, side="left"))
        found = first + np.flatnonzero(self.end_ns[first:last] - self.start_ns[first:last] >= least_ns)
        return found[self.end_ns[found] > start_ns]


def boxes(start_ns: Ints, end_ns: Ints, key: Keys, name: Codes, id: Codes) -> Boxes:
    """A row of boxes, whatever order they come in."""
    if len(start_ns) > 1 and not _in_order(start_ns):
        order = np.lexsort((key, name, -end_ns, start_ns))
        start_ns, end_ns, key, name, id = start_ns[order], end_ns[order], key[order], name[order], id[order]
    reach = np.maximum.accumulate(end_ns)
    before = np.append(start_ns[:1], reach[:-1])
    own_start = np.maximum(start_ns, before)
    real = end_ns > own_start
    layers = []
    for each in np.flatnonzero(np.bincount(key[real], minlength=1)).tolist():
        mine = real & (key == each)
        layers.append((each, Coverage.of(Spans(own_start[mine], end_ns[mine]))))
    covered = Coverage.of(Spans(own_start[real], end_ns[real]))
    tangled = bool((start_ns[1:] < reach[:-1]).any())
    longest_ns = int((end_ns - start_ns).max(initial=0))
    return Boxes(start_ns, end_ns, key, name, id, reach, tuple(layers), covered, tangled, longest_ns)


def _in_order(start_ns: Ints) -> bool:
    """Whether each begins after the one before; of those that begin together names must decide."""
    return bool((start_ns[1:] > start_ns[:-1]).all())


@dataclass(frozen=True, eq=False)
class Curve:
    """Readings over time: NaN where there is a hole. `held`: a value stays until the next; else a line joins them."""

    at_ns: Ints
    value: Floats
    held: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class Group:
    """Rows that belong together; `rows` of boxes, or one curve."""

    id: str
    name: str
    about: str
    side: int = 0
    rows: tuple[Boxes, ...] = ()
    curve: Curve | None = None
    folded: bool = False
    events: bool = False  # its ids are rows of the events
    nested: bool = False  # each row holds what the row above called
    unit: str = ""
    low: float = 0.0
    high: float = 1.0
    format: str = "number"
    threshold: float | None = None

    @property
    def height(self) -> int:
        """How many rows it takes."""
        return 1 if self.curve is not None else len(self.rows)


@dataclass(eq=False)
class Names:
    """All names of a scene while it is made: a box has a number."""

    words: list[str] = field(default_factory=lambda: [""])
    _own: dict[str, int] = field(default_factory=dict)

    def add(self, vocabulary: Iterable[str]) -> int:
        """Take in the words of a table; gives the number of the first."""
        first = len(self.words)
        self.words.extend(vocabulary)
        return first

    def of(self, text: str) -> int:
        """The number of a name of ours."""
        if text not in self._own:
            self._own[text] = len(self.words)
            self.words.append(text)
        return self._own[text]
