"""Cost of garbage collection and compilation: per typical step, or per mean step if only some have it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Mask, Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Coverage, Spans, covered_ns, intersect, no_spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import StallKind

EXPECTED_COMPILATION_STEPS = (
    3  # compilation is expected in these first steps: forward, backward, and again for other shapes
)
MIN_UNPROFILED_STEPS = 12  # with fewer unprofiled steps than this, recorded steps are used as well


@dataclass(frozen=True, kw_only=True)
class StallCost:
    """Stalls of the Python code in the examined steps."""

    count: int
    steps: int  # number of examined steps
    steps_with_stall: int  # number of steps with a stall
    mean_ns: int  # per step, over all of them
    typical_ns: int  # in the median step: 0 where fewer than half of them had one
    longest_ns: int
    step_mean_ns: int  # mean duration of these steps
    exposed_frac: float | None  # share of the stalls with the device idle, in interior steps; None: no stall in those
    spans: Spans  # includes stalls in recorded steps
    counts_by_name: tuple[tuple[str, int], ...]  # name and number of the stalls, most time first

    @property
    def in_most(self) -> bool:
        """Whether nearly every step has stalls of similar duration, so the median step shows the cost."""
        return 2 * self.typical_ns >= self.mean_ns

    @property
    def per_step_ns(self) -> int:
        """Cost per step: of the typical step if most steps have stalls, else of the mean step."""
        return self.typical_ns if self.in_most else self.mean_ns


def gc_cost(run: Run, steps: Steps, ledger: Ledger) -> StallCost | None:
    """Compute the cost of garbage collections in warm steps; None if there was none."""
    return _stall_cost(run, steps, ledger, StallKind.GC, steps.unprofiled | steps.interior)


def compilation_cost(run: Run, steps: Steps, ledger: Ledger) -> StallCost | None:
    """Compute the cost of compilations after the first three steps; None if there was none."""
    later_steps = (np.arange(len(steps)) >= EXPECTED_COMPILATION_STEPS) & (steps.dur_ns > 0)
    return _stall_cost(run, steps, ledger, StallKind.COMPILE, later_steps)


def stall_spans(run: Run, kind: StallKind | None = None) -> Spans:
    """Return the time of stalls of this kind, or of any kind."""
    return run.stall_rows.spans() if kind is None else run.stall_rows.of_kind(kind).spans()


def _stall_cost(run: Run, steps: Steps, ledger: Ledger, kind: StallKind, mask: Mask) -> StallCost | None:
    stalls = run.stall_rows.of_kind(kind)
    spans = _starting_in(stalls, steps.start_ns[mask], steps.end_ns[mask]).spans()
    if (mask & steps.unprofiled).sum() >= MIN_UNPROFILED_STEPS:
        mask = mask & steps.unprofiled
    start, end = steps.start_ns[mask], steps.end_ns[mask]
    in_steps = _starting_in(stalls, start, end)
    if not len(in_steps):
        return None
    per_step = covered_ns(spans, start, end)
    return StallCost(
        count=len(in_steps),
        steps=len(start),
        steps_with_stall=int((per_step > 0).sum()),
        mean_ns=int(per_step.mean()),
        typical_ns=typical_ns(per_step, steps.burst),
        longest_ns=int(in_steps["dur_ns"].max()),
        step_mean_ns=int((end - start).mean()),
        exposed_frac=_exposed(spans, steps, ledger),
        spans=spans,
        counts_by_name=_by_time(in_steps),
    )


def _starting_in(rows: Rows, start: np.ndarray, end: np.ndarray) -> Rows:
    """Return the rows that start in one of these windows, which are in order of time."""
    if not len(rows) or not len(start):
        return rows.select(np.zeros(len(rows), bool))
    index = np.searchsorted(start, rows["start_ns"], side="right") - 1
    return rows.select((index >= 0) & (rows["start_ns"] < end[np.maximum(index, 0)]))


def _exposed(spans: Spans, steps: Steps, ledger: Ledger) -> float | None:
    in_interior = intersect(spans, steps.interior_spans)
    if not in_interior.total_ns:
        return None
    overlapped_ns = sum(intersect(in_interior, ledger.spans[part.key]).total_ns for part in ledger.parts if part.busy)
    return 1 - overlapped_ns / in_interior.total_ns


def _by_time(rows: Rows) -> tuple[tuple[str, int], ...]:
    total_ns: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for name, dur_ns in zip(rows.text("what").to_list(), rows["dur_ns"].tolist(), strict=True):
        total_ns[name or ""] += dur_ns
        counts[name or ""] += 1
    return tuple((name, counts[name]) for name, _ in total_ns.most_common())


def overlap_ns(ledger: Ledger, spans: Spans, *keys: str) -> int:
    """Return how much of these ledger parts the spans cover, per step."""
    overlaps = [intersect(ledger.spans[key], spans) for key in keys if key in ledger.spans]
    merged_spans = union(
        np.concatenate([each.start_ns for each in (*overlaps, no_spans())]),
        np.concatenate([each.end_ns for each in (*overlaps, no_spans())]),
    )
    return int(Coverage.of(merged_spans).total_ns / max(1, len(ledger.step_ns)))
