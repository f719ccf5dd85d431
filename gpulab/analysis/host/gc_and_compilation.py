"""What garbage collections and compilations cost a step: in most steps, or in some and then on average."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Spans, covered_ns, intersect, nothing, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import StallKind

COMPILES_UNTIL = 3  # steps in which compiling is to be expected: forward, backward, and once more for other shapes
ENOUGH = 12  # so many un-profiled steps speak for themselves; with fewer, recorded ones are asked too


@dataclass(frozen=True, kw_only=True)
class Stalling:
    """What held the Python code up, over the steps looked at."""

    count: int
    steps: int  # how many steps were looked at
    hit: int  # how many of them had one
    mean_ns: int  # per step, over all of them
    typical_ns: int  # in the median step: 0 where fewer than half of them had one
    longest_ns: int
    step_mean_ns: int  # how long these steps are on average
    exposed_frac: float | None  # share of it with the device idle, by the interior steps; None: none fell into those
    spans: Spans  # in recorded steps too
    whats: tuple[tuple[str, int], ...]  # which they were and how often, those that took most time first

    @property
    def in_most(self) -> bool:
        """The median step tells what it costs: nearly every step has it, and about as much of it as the others."""
        return 2 * self.typical_ns >= self.mean_ns

    @property
    def per_step_ns(self) -> int:
        """What it costs a typical step where most have it, an average step otherwise."""
        return self.typical_ns if self.in_most else self.mean_ns


def collecting(run: Run, steps: Steps, ledger: Ledger) -> Stalling | None:
    """Garbage collections in the steps that are warm; None where there was none."""
    return _stalling(run, steps, ledger, StallKind.GC, steps.plain | steps.interior)


def compiling(run: Run, steps: Steps, ledger: Ledger) -> Stalling | None:
    """Compilations in the steps after the first three; None where there was none."""
    late = (np.arange(len(steps)) >= COMPILES_UNTIL) & (steps.dur_ns > 0)
    return _stalling(run, steps, ledger, StallKind.COMPILE, late)


def stalled(run: Run, kind: StallKind | None = None) -> Spans:
    """When Python code was held up by a stall of this kind, or of any."""
    return run.stall_rows.spans() if kind is None else run.stall_rows.of_kind(kind).spans()


def _stalling(run: Run, steps: Steps, ledger: Ledger, kind: StallKind, wanted: Mask) -> Stalling | None:
    stalls = run.stall_rows.of_kind(kind)
    spans = _begun_in(stalls, steps.start_ns[wanted], steps.end_ns[wanted]).spans()
    if (wanted & steps.plain).sum() >= ENOUGH:
        wanted = wanted & steps.plain
    start, end = steps.start_ns[wanted], steps.end_ns[wanted]
    inside = _begun_in(stalls, start, end)
    if not len(inside):
        return None
    per_step = covered_ns(spans, start, end)
    return Stalling(
        count=len(inside),
        steps=len(start),
        hit=int((per_step > 0).sum()),
        mean_ns=int(per_step.mean()),
        typical_ns=typical_ns(per_step, steps.burst),
        longest_ns=int(inside["dur_ns"].max()),
        step_mean_ns=int((end - start).mean()),
        exposed_frac=_exposed(spans, steps, ledger),
        spans=spans,
        whats=_by_time(inside),
    )


def _begun_in(rows: Rows, start: np.ndarray, end: np.ndarray) -> Rows:
    """The rows that begin inside one of these windows, which are in order of time."""
    if not len(rows) or not len(start):
        return rows.where(np.zeros(len(rows), bool))
    index = np.searchsorted(start, rows["start_ns"], side="right") - 1
    return rows.where((index >= 0) & (rows["start_ns"] < end[np.maximum(index, 0)]))


def _exposed(spans: Spans, steps: Steps, ledger: Ledger) -> float | None:
    within = intersect(spans, steps.interior_spans)
    if not within.total_ns:
        return None
    hidden = sum(intersect(within, ledger.spans[part.key]).total_ns for part in ledger.parts if part.busy)
    return 1 - hidden / within.total_ns


def _by_time(rows: Rows) -> tuple[tuple[str, int], ...]:
    took: Counter[str] = Counter()
    often: Counter[str] = Counter()
    for what, dur_ns in zip(rows.words("what").to_list(), rows["dur_ns"].tolist(), strict=True):
        took[what or ""] += dur_ns
        often[what or ""] += 1
    return tuple((what, often[what]) for what, _ in took.most_common())


def overlap_ns(ledger: Ledger, spans: Spans, *keys: str) -> int:
    """How much of these parts of a typical step such spans cover."""
    held = [intersect(ledger.spans[key], spans) for key in keys if key in ledger.spans]
    together = union(
        np.concatenate([each.start_ns for each in (*held, nothing())]),
        np.concatenate([each.end_ns for each in (*held, nothing())]),
    )
    return int(Coverage.of(together).total_ns / max(1, len(ledger.step_ns)))
