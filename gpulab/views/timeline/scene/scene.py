"""A run prepared for the timeline page: its header, its tiles, and the answers to the page's queries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.replay.prediction import Prediction
from gpulab.rules.engine.finding import Diagnosis
from gpulab.run import Run
from gpulab.views.timeline.queries import box_details
from gpulab.views.timeline.queries.brush import analyse_window
from gpulab.views.timeline.queries.search import search_names
from gpulab.views.timeline.scene.alignment import alignment_shift_ns
from gpulab.views.timeline.scene.elements import Boxes, Curve, NameTable
from gpulab.views.timeline.scene.header import scene_header
from gpulab.views.timeline.scene.placed_run import PlacedRun, place_run
from gpulab.views.timeline.tiles.tile import DisplayNames, build_tile
from gpulab.wording import clean, duration

if TYPE_CHECKING:
    from gpulab.views.whatif.whatif import WhatIf

MIN_TILE_NS, MAX_LEVEL = 20_000, 30


@dataclass(frozen=True, eq=False, repr=False)
class Scene:
    """Runs on a time axis that starts with the first run; all answers are plain values."""

    diagnosis: Diagnosis
    sides: tuple[PlacedRun, ...]
    rows: tuple[Boxes | None, ...]  # None if the row is a curve
    curves: tuple[tuple[int, Curve], ...]  # by row
    names: tuple[str, ...]
    span_ns: int  # a multiple of 2**deepest, so that each tile splits into two of the next level
    end_ns: int  # end of the run that ends last
    title: str = ""  # the name of the run if ""
    placement: tuple[str, ...] = ()  # sentences on how the other runs were placed on the time axis
    display_names: DisplayNames = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "display_names", DisplayNames(self.names))

    def __repr__(self) -> str:
        names = self.title or " and ".join(repr(each.name) for each in self.sides)
        return f"Scene({names}, {duration(self.span_ns)}, {len(self.rows)} rows)"

    @property
    def max_level(self) -> int:
        """The deepest level of tiles."""
        return _deepest(self.end_ns)

    @property
    def shift_ns(self) -> int:
        """The shift from the second run's own time to the time of the scene; 0 with one run."""
        return self.sides[-1].shift_ns

    def tile_ns(self, level: int) -> int:
        """Return the duration of a tile of a level."""
        return max(1, -(-self.span_ns // (1 << level)))

    def header(self) -> dict[str, Any]:
        """Return the header, which the page reads once."""
        header = scene_header(self.diagnosis, self.sides, self.span_ns, self.max_level, self.placement)
        return {**header, "title": clean(self.title, 120)} if self.title else header

    def tile_window(self, level: int, index: int) -> tuple[int, int]:
        """Return start and end of a tile. Raises ValueError if the tile does not exist."""
        width = self.tile_ns(level) if 0 <= level <= MAX_LEVEL else 0
        start, end = index * width, min((index + 1) * width, max(1, self.span_ns))
        if not width or index < 0 or end <= start:
            raise ValueError(f"there is no tile {index} at level {level}")
        return start, end

    def tile(self, level: int, index: int) -> bytes:
        """Return an encoded tile of at most 48 kB. Raises ValueError if the tile does not exist."""
        window = self.tile_window(level, index)
        return build_tile(self.sides, self.rows, self.curves, self.display_names, level, index, window)

    def search(self, text: str, max_results: int = 50) -> dict[str, Any]:
        """Find events whose name contains the text, ignoring case: kernels first, then by total time."""
        return search_names(self.sides, self.rows, self.names, text, max_results)

    def brush(self, start_ns: int, end_ns: int) -> dict[str, Any]:
        """Return the ledger of a time window, and its kernels with the longest total time."""
        start, end = (min(max(0, int(each)), self.end_ns) for each in (start_ns, end_ns))
        return analyse_window(self.sides, start, end)

    def card(self, row: int, id: int) -> dict[str, Any] | None:
        """Return the details of a box; None if there is no such box."""
        side = self.side_of(row)
        return None if side is None else box_details.box_card(side, row, id)

    def event(self, side: int, id: int) -> dict[str, Any] | None:
        """Return an event of a side as plain values, in its run's own time; None if there is no such event."""
        return box_details.event_values(self.sides[side], id) if 0 <= side < len(self.sides) else None

    def selection(self, row: int, id: int) -> dict[str, Any] | None:
        """Return the details of a selected box: an event like `event`, or a step; None if it is neither."""
        side = self.side_of(row)
        placed = side.group_of(row) if side else None
        if side is None or placed is None or id < 0:
            return None
        if placed.group.is_events:
            return box_details.event_values(side, id)
        return box_details.box_card(side, row, id)

    def side_of(self, row: int) -> PlacedRun | None:
        """Return the side of a row."""
        return next((each for each in self.sides if each.group_of(row) is not None), None)


def build_scene(diagnosis: Diagnosis, second: Run | Diagnosis | Prediction | WhatIf | None = None) -> Scene:
    """Prepare a run for the timeline, with a second run or a prediction below it if one is given."""
    names = NameTable()
    sides = [place_run(0, diagnosis.run, diagnosis.steps, diagnosis.ledger, names, 0, 0)]
    if second is not None:
        other = _diagnosed(second)
        sides.append(place_run(1, *other, names, sides[0].row_count, alignment_shift_ns(diagnosis.steps, other[1])))
    return scene_of(diagnosis, sides, names)


def scene_of(
    diagnosis: Diagnosis,
    sides: Sequence[PlacedRun],
    names: NameTable,
    *,
    title: str = "",
    placement: tuple[str, ...] = (),
) -> Scene:
    """Return the scene of runs whose rows are numbered one run after the other; the first is the diagnosed one."""
    rows: list[Boxes | None] = []
    curves = []
    for part in sides:
        for placed in part.placed_groups:
            if placed.group.curve is not None:
                curves.append((placed.first, placed.group.curve))
            rows += placed.group.rows or [None]
    until_ns = _until_ns(sides)
    span_ns = -(-until_ns >> _deepest(until_ns)) << _deepest(until_ns)
    return Scene(
        diagnosis=diagnosis,
        sides=tuple(sides),
        rows=tuple(rows),
        curves=tuple(curves),
        names=tuple(names.names),
        span_ns=span_ns,
        end_ns=until_ns,
        title=title,
        placement=placement,
    )


def _deepest(until_ns: int) -> int:
    return min(MAX_LEVEL, max(0, ceil(log2(max(1.0, until_ns / MIN_TILE_NS)))))


def _diagnosed(other: Run | Diagnosis | Prediction | WhatIf) -> tuple[Run, Steps, Ledger | None]:
    """Return a run with its steps and its ledger."""
    if isinstance(other, Diagnosis):
        return other.run, other.steps, other.ledger
    if isinstance(other, Prediction):
        from gpulab.replay.predicted_run import predicted_run

        run = predicted_run(other.schedule)
    else:
        run = other if isinstance(other, Run) else other.run
    run_steps = find_steps(run)
    return run, run_steps, build_ledger(run, run_steps)


def _until_ns(sides: Sequence[PlacedRun]) -> int:
    """Return the end of the run that ends last; at least 1, so that the time axis is not empty."""
    ends = [1]
    for part in sides:
        rows = part.run.event_rows
        last = int((rows["start_ns"] + rows["dur_ns"]).max(initial=0))
        ends.append(max(part.run.span_ns, last) + part.shift_ns)
    return max(ends)
