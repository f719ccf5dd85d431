"""The ranks of a job as a table: what each does in a typical step, and which one the others wait for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.analysis.ranks.stragglers import Straggler, find_straggler
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.run import KILLED, Run
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, count, percent, scale

MAX_ROWS = 32
_UNMEASURED = "-"
_LABELS = {"loader": "data", "communication": "communication"}


@dataclass(frozen=True, eq=False)
class _RankOfJob:
    run: Run
    ledger: Ledger | None

    @property
    def step_ns(self) -> int | None:
        return None if self.ledger is None else find_steps(self.run).traced_ns


def rank_table(runs: Sequence[Run]) -> TableBlock | None:
    """Return the table of the runs of a job; None without several ranks and a step.

    The times are of traced steps: they compare ranks with each other. More than MAX_ROWS ranks are not all listed.
    """
    if len({run.rank for run in runs}) < 2:
        return None
    ranks = [_RankOfJob(run, build_ledger(run, find_steps(run))) for run in runs]
    steps_ns = [rank.step_ns for rank in ranks if rank.step_ns is not None]
    if not steps_ns:
        return None
    unit = scale(max(steps_ns))
    late = find_straggler(runs)
    rows = [Row(_cells(rank, index, unit, late)) for index, rank in enumerate(ranks[:MAX_ROWS])]
    omitted = len(ranks) - len(rows)
    caption = f"A typical traced step of each rank, in {unit.unit}. 'Works' is the time in operators and kernels."
    if late is not None:
        caption += f" 'Waits' is the wait for the last rank, from {count(late.collectives, 'matched collective')}."
    return TableBlock(
        header=("rank", "step", "works", "data", "communication", "rest", "waits", "last", ""),
        rows=tuple(rows),
        caption=caption + (f" {omitted:,} more ranks are not listed." if omitted else ""),
    )


def _cells(rank: _RankOfJob, index: int, unit: Scale, late: Straggler | None) -> tuple[str, ...]:
    name = str(index if rank.run.rank is None else rank.run.rank)
    ledger, step_ns = rank.ledger, rank.step_ns
    if ledger is None or step_ns is None:
        return (name, *[_UNMEASURED] * 7, _remark(rank.run))
    busy = [part.key for part in ledger.parts if part.busy and part.key not in _LABELS]
    parts_ns = [ledger.median_ns(*busy), *(ledger.median_ns(key) if key in ledger.part_ns else 0 for key in _LABELS)]
    rest_ns = max(0, step_ns - sum(parts_ns))
    waits, last = _arrival(rank.run, late)
    times = (step_ns, *parts_ns, rest_ns)
    return (
        name,
        *(unit.number(ns) for ns in times),
        _UNMEASURED if waits is None else unit.number(waits),
        last,
        _remark(rank.run),
    )


def _arrival(run: Run, late: Straggler | None) -> tuple[int | None, str]:
    """Return how long a rank waits for the last one, and how often it is the last one."""
    if late is None:
        return None, _UNMEASURED
    position = next((index for index, side in enumerate(late.ranks) if side.run is run), None)
    if position is None:
        return None, _UNMEASURED
    return late.waits_ns[position], percent(late.last_frac) if position == late.index else ""


def _remark(run: Run) -> str:
    if run.outcome == "ok":
        return ""
    return "killed" if run.outcome == KILLED else run.outcome
