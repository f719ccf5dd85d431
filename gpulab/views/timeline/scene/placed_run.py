"""A run placed in a scene: its groups of rows, the row of each event, and the links between launches and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.host.launch_delays import launch_calls
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Ints
from gpulab.run import Run
from gpulab.tables import EventKind
from gpulab.views.timeline.scene.curves import curve_groups
from gpulab.views.timeline.scene.elements import Boxes, Codes, Group, NameTable
from gpulab.views.timeline.scene.full_ledger import full_ledger, ledger_of_recording
from gpulab.views.timeline.scene.lanes import lane_groups
from gpulab.views.timeline.scene.rows import RowBuilder, box_groups, event_row_numbers


@dataclass(frozen=True, eq=False)
class PlacedGroup:
    """A group with the number of its first row."""

    group: Group
    first: int


@dataclass(frozen=True, eq=False, kw_only=True)
class PlacedRun:
    """One of the runs of a scene."""

    number: int
    run: Run
    steps: Steps
    ledger: Ledger | None  # of the interior steps; without steps, of all recorded time; None without events
    ledger_coverage: dict[str, Coverage]  # the ledger of all recorded time, in the run's own time
    step_part_ns: dict[str, Ints]  # time of each step, by part of that ledger
    shift_ns: int  # run time + shift = scene time
    placed_groups: tuple[PlacedGroup, ...]
    first_name_code: int
    row_of: Codes  # row of each event; -1: not drawn
    partner: Codes  # for each event, the call that launched it or the first device work that it launched; -1: none
    notes: tuple[str, ...]
    label: str = ""  # such as "rank 3"
    is_lane: bool = False  # only its ledger and its collectives are drawn

    @property
    def name(self) -> str:
        """The name on screen: the label, or the name of the run."""
        return self.label or self.run.name

    @property
    def row_count(self) -> int:
        """The number of its rows."""
        return sum(each.group.row_count for each in self.placed_groups)

    def group_of(self, row: int) -> PlacedGroup | None:
        """Return the group of a row; None if the row belongs to another side."""
        return next(
            (each for each in self.placed_groups if each.first <= row < each.first + each.group.row_count), None
        )

    def enclosing_event(self, event: int, kind: EventKind = EventKind.OP) -> int:
        """Return the innermost event of a kind that contains this event; -1 if there is none."""
        row = int(self.row_of[event])
        placed = self.group_of(row) if row >= 0 else None
        if placed is None or not placed.group.is_call_stack:
            return -1
        rows = self.run.event_rows
        at = int(rows["start_ns"][event]) + self.shift_ns
        for depth in range(row - placed.first - 1, -1, -1):
            callers = placed.group.rows[depth]
            index = int(np.searchsorted(callers.start_ns, at, side="right")) - 1
            if index >= 0 and callers.end_ns[index] >= at and rows["kind"][callers.id[index]] == kind:
                return int(callers.id[index])
        return -1

    def call_rows(self) -> Iterator[tuple[Boxes, Boxes | None]]:
        """Yield each row of operator calls with the row of the calls they made (None for the last row)."""
        for placed in self.placed_groups:
            if placed.group.is_call_stack and not placed.group.id.startswith("python"):
                rows = placed.group.rows
                yield from zip(rows, (*rows[1:], None), strict=True)


def place_run(
    number: int,
    run: Run,
    steps: Steps,
    accounts: Ledger | None,
    names: NameTable,
    first_row: int,
    shift_ns: int,
    *,
    label: str = "",
    lane_events: Ints | None = None,
) -> PlacedRun:
    """Prepare a run for a scene; its rows are numbered from `first_row`.

    `lane_events`: draw only the ledger and these events, as a lane with the label; None: draw everything.
    """
    first_name = names.add_vocabulary(run.event_rows.text("name").vocabulary)
    accounts = accounts or ledger_of_recording(run)
    spans = full_ledger(run, accounts)
    coverage = {key: Coverage.of(part) for key, part in spans.items()}
    builder = RowBuilder(
        run=run,
        steps=steps,
        side=number,
        shift_ns=shift_ns,
        ledger_spans=spans,
        ledger=accounts,
        names=names,
        first_name_code=first_name,
    )
    placed = []
    for group in _groups(builder, label, lane_events):
        placed.append(PlacedGroup(group, first_row))
        first_row += group.row_count
    return PlacedRun(
        number=number,
        run=run,
        steps=steps,
        ledger=accounts,
        ledger_coverage=coverage,
        step_part_ns={key: part.covered_ns(steps.start_ns, steps.end_ns) for key, part in coverage.items()},
        shift_ns=shift_ns,
        placed_groups=tuple(placed),
        first_name_code=first_name,
        row_of=event_row_numbers([(each.group, each.first) for each in placed], len(run.event_rows)),
        partner=_partners(run) if lane_events is None else np.full(len(run.event_rows), -1, np.int32),
        notes=tuple(builder.notes),
        label=label,
        is_lane=lane_events is not None,
    )


def _groups(builder: RowBuilder, label: str, lane_events: Ints | None) -> Iterator[Group]:
    if lane_events is not None:
        yield from lane_groups(builder, label, lane_events)
        return
    yield from box_groups(builder)
    yield from curve_groups(builder)


def _partners(run: Run) -> Codes:
    """Return for each event the other end of its launch; for a call with several launches, the first one."""
    partners = np.full(len(run.event_rows), -1, np.int32)
    work = device_work(run)
    call = launch_calls(work)
    work, call = work.select(call >= 0), call[call >= 0]
    partners[work.event_rows] = call
    latest_first = np.argsort(-work.start_ns, kind="stable")
    partners[call[latest_first]] = work.event_rows[latest_first]  # the first launch is written last
    return partners
