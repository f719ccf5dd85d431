"""A run placed in a scene: its groups of rows, the row of each event, and the links between launches and kernels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.host.launch_delays import calls_of
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Ints
from gpulab.run import Run
from gpulab.tables import Kind
from gpulab.views.timeline.scene.curves import curves
from gpulab.views.timeline.scene.full_ledger import of_recorded, whole
from gpulab.views.timeline.scene.groups import Boxes, Codes, Group, Names
from gpulab.views.timeline.scene.rows import RowBuilder, groups, rows_of_events


@dataclass(frozen=True, eq=False)
class Placed:
    """A group with the number of its first row."""

    group: Group
    first: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One of the runs of a scene."""

    number: int
    run: Run
    steps: Steps
    accounts: Ledger | None  # of the interior steps; without steps, of all recorded time; None without events
    whole: dict[str, Coverage]  # the ledger of all recorded time, in the run's own time
    spent_ns: dict[str, Ints]  # time of each step, by part of that ledger
    shift_ns: int  # run time + shift = scene time
    placed: tuple[Placed, ...]
    first_name: int
    row_of: Codes  # row of each event; -1: not drawn
    partner: Codes  # for each event, the call that launched it or the first device work that it launched; -1: none
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.run.name

    def group_of(self, row: int) -> Placed | None:
        """Return the group of a row; None if the row belongs to another side."""
        return next((each for each in self.placed if each.first <= row < each.first + each.group.height), None)

    def around(self, event: int, kind: Kind = Kind.OP) -> int:
        """Return the innermost event of a kind that contains this event; -1 if there is none."""
        row = int(self.row_of[event])
        placed = self.group_of(row) if row >= 0 else None
        if placed is None or not placed.group.nested:
            return -1
        rows = self.run.event_rows
        at = int(rows["start_ns"][event]) + self.shift_ns
        for depth in range(row - placed.first - 1, -1, -1):
            callers = placed.group.rows[depth]
            index = int(np.searchsorted(callers.start_ns, at, side="right")) - 1
            if index >= 0 and callers.end_ns[index] >= at and rows["kind"][callers.id[index]] == kind:
                return int(callers.id[index])
        return -1

    def nested(self) -> Iterator[tuple[Boxes, Boxes | None]]:
        """Yield each row of operator calls with the row of the calls they made (None for the last row)."""
        for placed in self.placed:
            if placed.group.nested and not placed.group.id.startswith("python"):
                rows = placed.group.rows
                yield from zip(rows, (*rows[1:], None), strict=True)


def side(
    number: int, run: Run, steps: Steps, accounts: Ledger | None, names: Names, first_row: int, shift_ns: int
) -> Side:
    """Prepare a run for a scene; its rows are numbered from `first_row`."""
    first_name = names.add(run.event_rows.words("name").vocabulary)
    accounts = accounts or of_recorded(run)
    spans = whole(run, accounts)
    coverage = {key: Coverage.of(part) for key, part in spans.items()}
    builder = RowBuilder(
        run=run,
        steps=steps,
        side=number,
        shift_ns=shift_ns,
        whole=spans,
        accounts=accounts,
        names=names,
        first_name=first_name,
    )
    placed = []
    for group in (*groups(builder), *curves(builder)):
        placed.append(Placed(group, first_row))
        first_row += group.height
    return Side(
        number=number,
        run=run,
        steps=steps,
        accounts=accounts,
        whole=coverage,
        spent_ns={key: part.within(steps.start_ns, steps.end_ns) for key, part in coverage.items()},
        shift_ns=shift_ns,
        placed=tuple(placed),
        first_name=first_name,
        row_of=rows_of_events([(each.group, each.first) for each in placed], len(run.event_rows)),
        partner=_partners(run),
        notes=tuple(builder.notes),
    )


def _partners(run: Run) -> Codes:
    """Return for each event the other end of its launch; for a call with several launches, the first one."""
    partners = np.full(len(run.event_rows), -1, np.int32)
    work = device_work(run)
    call = calls_of(work)
    work, call = work.where(call >= 0), call[call >= 0]
    partners[work.event] = call
    latest_first = np.argsort(-work.start_ns, kind="stable")
    partners[call[latest_first]] = work.event[latest_first]  # the first launch is written last
    return partners
