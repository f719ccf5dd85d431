"""A run in a scene: its groups with their rows, which event is drawn where, which call started which work."""

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
from gpulab.views.timeline.scene.rows import Drawn, groups, rows_of_events


@dataclass(frozen=True, eq=False)
class Placed:
    """A group and the first of its rows."""

    group: Group
    first: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Side:
    """One of the runs that a scene shows."""

    number: int
    run: Run
    steps: Steps
    accounts: Ledger | None  # of the interior steps, else of all that was recorded; None: no events
    whole: dict[str, Coverage]  # the ledger of all that was recorded, in the run's own time
    spent_ns: dict[str, Ints]  # of each step, by part of that ledger
    shift_ns: int  # from the run's time to the scene's
    placed: tuple[Placed, ...]
    first_name: int
    row_of: Codes  # for each event, the row it is drawn in; -1: none
    partner: Codes  # for each event, the call that started it or the first work that it started; -1: none
    notes: tuple[str, ...]

    @property
    def name(self) -> str:
        """What it is called."""
        return self.run.name

    def group_of(self, row: int) -> Placed | None:
        """The group that a row belongs to; None where it is none of this side's."""
        return next((each for each in self.placed if each.first <= row < each.first + each.group.height), None)

    def around(self, event: int, kind: Kind = Kind.OP) -> int:
        """The innermost event of a kind that held this one; -1: none."""
        row = int(self.row_of[event])
        placed = self.group_of(row) if row >= 0 else None
        if placed is None or not placed.group.nested:
            return -1
        rows = self.run.event_rows
        at = int(rows["start_ns"][event]) + self.shift_ns
        for depth in range(row - placed.first - 1, -1, -1):
            above = placed.group.rows[depth]
            place = int(np.searchsorted(above.start_ns, at, side="right")) - 1
            if place >= 0 and above.end_ns[place] >= at and rows["kind"][above.id[place]] == kind:
                return int(above.id[place])
        return -1

    def nested(self) -> Iterator[tuple[Boxes, Boxes | None]]:
        """Each row of the calls of its threads, and the row of what they called."""
        for placed in self.placed:
            if placed.group.nested and not placed.group.id.startswith("python"):
                rows = placed.group.rows
                yield from zip(rows, (*rows[1:], None), strict=True)


def side(
    number: int, run: Run, steps: Steps, accounts: Ledger | None, names: Names, first_row: int, shift_ns: int
) -> Side:
    """A run made ready to be drawn from a row on."""
    first_name = names.add(run.event_rows.words("name").vocabulary)
    accounts = accounts or of_recorded(run)
    spans = whole(run, accounts)
    covered = {key: Coverage.of(each) for key, each in spans.items()}
    drawn = Drawn(
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
    for group in (*groups(drawn), *curves(drawn)):
        placed.append(Placed(group, first_row))
        first_row += group.height
    return Side(
        number=number,
        run=run,
        steps=steps,
        accounts=accounts,
        whole=covered,
        spent_ns={key: each.within(steps.start_ns, steps.end_ns) for key, each in covered.items()},
        shift_ns=shift_ns,
        placed=tuple(placed),
        first_name=first_name,
        row_of=rows_of_events([(each.group, each.first) for each in placed], len(run.event_rows)),
        partner=_partners(run),
        notes=tuple(drawn.notes),
    )


def _partners(run: Run) -> Codes:
    """For each event the one at the other end of its launch; of a call that started several, the first."""
    found = np.full(len(run.event_rows), -1, np.int32)
    work = device_work(run)
    call = calls_of(work)
    work, call = work.where(call >= 0), call[call >= 0]
    found[work.event] = call
    latest_first = np.argsort(-work.start_ns, kind="stable")
    found[call[latest_first]] = work.event[latest_first]  # the last one written stays
    return found
