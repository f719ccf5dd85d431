"""A run made ready to be looked at: what a page is told once, and the tiles and answers it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from gpulab.analysis.steps.detection import Steps, steps
from gpulab.analysis.steps.ledger import Ledger, ledger
from gpulab.replay.prediction import Prediction
from gpulab.rules.engine.finding import Diagnosis
from gpulab.run import Run
from gpulab.views.timeline.queries import cards
from gpulab.views.timeline.queries.brush import brush
from gpulab.views.timeline.queries.search import search
from gpulab.views.timeline.scene.alignment import shift
from gpulab.views.timeline.scene.groups import Boxes, Curve, Names
from gpulab.views.timeline.scene.header import heading
from gpulab.views.timeline.scene.placed_run import Side, side
from gpulab.views.timeline.tiles.tile import NameTexts, tile
from gpulab.wording import duration

if TYPE_CHECKING:
    from gpulab.views.whatif.whatif import WhatIf

DEEPEST_NS, MOST_LEVELS = 20_000, 30


@dataclass(frozen=True, eq=False, repr=False)
class Scene:
    """A run, or two, on one axis of time that begins with the first; every answer is made of plain values."""

    diagnosis: Diagnosis
    sides: tuple[Side, ...]
    rows: tuple[Boxes | None, ...]  # None where a row is a curve
    curves: tuple[tuple[int, Curve], ...]  # by row
    names: tuple[str, ...]
    span_ns: int  # a multiple of 2**deepest, so that each tile is two of the next level
    until_ns: int  # where the last of its runs ends
    texts: NameTexts = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", NameTexts(self.names))

    def __repr__(self) -> str:
        shown = " beside ".join(repr(each.name) for each in self.sides)
        return f"Scene({shown}, {duration(self.span_ns)}, {len(self.rows)} rows)"

    @property
    def deepest(self) -> int:
        """The deepest level worth asking for."""
        return _deepest(self.until_ns)

    @property
    def shift_ns(self) -> int:
        """From the second run's own time to the scene's; 0 where there is one run."""
        return self.sides[-1].shift_ns

    def tile_ns(self, level: int) -> int:
        """How much time a tile of a level holds."""
        return max(1, -(-self.span_ns // (1 << level)))

    def header(self) -> dict[str, Any]:
        """What a page must know once."""
        return heading(self.diagnosis, self.sides, self.span_ns, self.deepest)

    def stretch(self, level: int, index: int) -> tuple[int, int]:
        """From when to when a tile reaches. Raises ValueError for one that does not exist."""
        width = self.tile_ns(level) if 0 <= level <= MOST_LEVELS else 0
        start, end = index * width, min((index + 1) * width, max(1, self.span_ns))
        if not width or index < 0 or end <= start:
            raise ValueError(f"there is no tile {index} of level {level}")
        return start, end

    def tile(self, level: int, index: int) -> bytes:
        """One tile, at most 48 kB. Raises ValueError for one that does not exist."""
        stretch = self.stretch(level, index)
        return tile(self.sides, self.rows, self.curves, self.texts, level, index, stretch)

    def search(self, text: str, most: int = 50) -> dict[str, Any]:
        """Where a name holds this text, in whatever case: kernels first, then by total time."""
        return search(self.sides, self.rows, self.names, text, most)

    def brush(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Where the time between two moments went, and the kernels that took most of it."""
        start, end = (min(max(0, int(each)), self.until_ns) for each in (start_ns, end_ns))
        return brush(self.sides, start, end)

    def card(self, row: int, id: int) -> dict[str, Any] | None:
        """Everything there is to say of a box; None where there is no such box."""
        found = self.side_of(row)
        return None if found is None else cards.card(found, row, id)

    def event(self, side: int, id: int) -> dict[str, Any] | None:
        """An event of a side as plain values, in its run's own time; None where there is none."""
        return cards.event(self.sides[side], id) if 0 <= side < len(self.sides) else None

    def chosen(self, row: int, id: int) -> dict[str, Any] | None:
        """What a selected box is: an event as `event` gives it, or a step; None for what is neither."""
        found = self.side_of(row)
        placed = found.group_of(row) if found else None
        if found is None or placed is None or id < 0:
            return None
        if placed.group.events:
            return cards.event(found, id)
        return cards.card(found, row, id)

    def side_of(self, row: int) -> Side | None:
        """The side that a row belongs to."""
        return next((each for each in self.sides if each.group_of(row) is not None), None)


def scene(diagnosis: Diagnosis, beside: Run | Diagnosis | Prediction | WhatIf | None = None) -> Scene:
    """A run made ready to be looked at, and below it a second one, or what was predicted of it."""
    names = Names()
    sides = [side(0, diagnosis.run, diagnosis.steps, diagnosis.ledger, names, 0, 0)]
    if beside is not None:
        other = _diagnosed(beside)
        first_row = sum(each.group.height for each in sides[0].placed)
        moved = shift(diagnosis.steps, other[1])
        sides.append(side(1, *other, names, first_row, moved))
    rows: list[Boxes | None] = []
    curves = []
    for each in sides:
        for placed in each.placed:
            if placed.group.curve is not None:
                curves.append((placed.first, placed.group.curve))
            rows += placed.group.rows or [None]
    until_ns = _until_ns(sides)
    span_ns = -(-until_ns >> _deepest(until_ns)) << _deepest(until_ns)
    return Scene(diagnosis, tuple(sides), tuple(rows), tuple(curves), tuple(names.words), span_ns, until_ns)


def _deepest(until_ns: int) -> int:
    return min(MOST_LEVELS, max(0, ceil(log2(max(1.0, until_ns / DEEPEST_NS)))))


def _diagnosed(beside: Run | Diagnosis | Prediction | WhatIf) -> tuple[Run, Steps, Ledger | None]:
    """A run with its steps and its ledger."""
    if isinstance(beside, Diagnosis):
        return beside.run, beside.steps, beside.ledger
    if isinstance(beside, Prediction):
        from gpulab.replay.predicted_run import emitted

        run = emitted(beside.timed)
    else:
        run = beside if isinstance(beside, Run) else beside.run
    found = steps(run)
    return run, found, ledger(run, found)


def _until_ns(sides: Sequence[Side]) -> int:
    """From the first run's first moment to the last of either; at least 1, so that there is an axis."""
    ends = [1]
    for each in sides:
        rows = each.run.event_rows
        last = int((rows["start_ns"] + rows["dur_ns"]).max(initial=0))
        ends.append(max(each.run.span_ns, last) + each.shift_ns)
    return max(ends)
