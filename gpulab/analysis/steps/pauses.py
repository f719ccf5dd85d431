"""Steps that take far longer than their neighbours: how many, how regular, what they cost, what ran in them.

Asked of all steps that were marked, recorded with events or not. What waits for a batch, a garbage collection or a
compilation is taken out first: those have names of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.gc_and_compilation import stalled
from gpulab.analysis.steps.detection import WARM_UP, Mask, Steps
from gpulab.intervals import Ints, Spans, covered_ns, union
from gpulab.run import Run
from gpulab.tables import MarkKind

TIMES = 1.5  # a pause makes its step this many times the median; less is the spread of ordinary steps
SPREADS = 6.0  # and it stands out by this many times the spread of them, by median absolute deviation
LEAST_STEPS = 12  # fewer do not tell an outlier from a habit
LIKE_FRAC = 0.4  # of the upper quartile: pauses of one kind are about equally long
LEAST_REGULAR = 4  # fewer pauses are regular by chance
REGULAR_FRAC = 0.8  # so many of the distances between pauses are alike where they are periodic


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Steps that pause, among the warm ones."""

    count: int
    steps: int  # how many were looked at
    every: int | None  # they come every so many steps; None: not regularly
    each_ns: int  # what one costs beyond an ordinary step, the median
    total_ns: int  # what all cost together
    step_mean_ns: int  # with its share of the pauses
    ordinary_ns: int  # the median step
    called: str | None  # what the user's line called in a library then, in most samples
    frame: str | None  # the user's line then
    samples: int  # how many samples stand behind that
    spans: Spans  # the steps that pause

    @property
    def frac(self) -> float:
        """The share of an average step."""
        return self.total_ns / max(1, self.steps * self.step_mean_ns)


@dataclass(frozen=True, kw_only=True)
class Passes:
    """What it costs to begin another pass over the data."""

    count: int  # beginnings after the first
    each_ns: int  # how much longer than others the first batch of a pass takes, the median
    frac: float  # share of the time of all steps
    spans: Spans


def pauses(run: Run, steps: Steps) -> Pauses | None:
    """The steps that pause; None where none do, or where they are an evaluation, which is work and no pause."""
    looked = _comparable(steps)
    if looked.sum() < LEAST_STEPS:
        return None
    start, end = steps.start_ns[looked], steps.end_ns[looked]
    dur = end - start - _named(run, start, end)
    excess = dur - _ordinary(dur, steps.recorded[looked])
    middle = float(np.median(dur))
    spread = float(np.median(np.abs(excess)))
    out = (excess > (TIMES - 1) * middle) & (excess > SPREADS * spread)
    out &= ~_evaluates(run, start, end)
    if out.any():  # what a busy machine adds here and there is shorter than what is looked for
        out &= excess >= LIKE_FRAC * np.percentile(excess[out], 75)
    if out.sum() < 2 or 2 * out.sum() > len(dur):
        return None
    spans = union(start[out], end[out])
    called, frame, samples = _doing(run, spans)
    return Pauses(
        count=int(out.sum()),
        steps=len(dur),
        every=_every(np.flatnonzero(looked)[out]),
        each_ns=int(np.median(excess[out])),
        total_ns=int(excess[out].sum()),
        step_mean_ns=int((end - start).mean()),
        ordinary_ns=int(np.median(end - start)),
        called=called,
        frame=frame,
        samples=samples,
        spans=spans,
    )


def passes(run: Run, steps: Steps) -> Passes | None:
    """What the first batch of a pass costs beyond the others; None with one pass, or where it costs nothing more."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if not len(calls) or steps.found_by != "DataLoader":
        return None
    leading = int(np.bincount(calls["loader"][calls["yielded"]], minlength=1).argmax())
    mine = calls.where((calls["loader"] == leading) & calls["yielded"])
    begins = np.flatnonzero(np.diff(mine["epoch"]) > 0) + 1
    took = mine["end_ns"] - mine["start_ns"]
    cost = took[begins] - int(np.median(took)) if len(begins) else took[:0]
    begins, cost = begins[cost > 0], cost[cost > 0]
    if not len(begins):
        return None
    return Passes(
        count=len(begins),
        each_ns=int(np.median(cost)),
        frac=float(cost.sum() / max(1, int(steps.dur_ns.sum()))),
        spans=union(mine["start_ns"][begins], mine["end_ns"][begins]),
    )


def _comparable(steps: Steps) -> Mask:
    """Warm steps: plain ones, and those recorded with events, which are compared with their own kind."""
    late: Mask = (np.arange(len(steps)) >= WARM_UP) & (steps.plain | steps.interior)
    return late


def _named(run: Run, start: Ints, end: Ints) -> Ints:
    """Per step, the time that other rules have a name for: waits for batches, collections, compilations."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    held = stalled(run)
    spans = union(np.concatenate([calls["start_ns"], held.start_ns]), np.concatenate([calls["end_ns"], held.end_ns]))
    return covered_ns(spans, start, end)


def _ordinary(dur: Ints, recorded: Mask) -> Ints:
    """For each step the median of its kind: recording lengthens a step."""
    ordinary = np.full(len(dur), int(np.median(dur)), np.int64)
    for kind in (recorded, ~recorded):
        if kind.sum() >= LEAST_STEPS // 2:
            ordinary[kind] = int(np.median(dur[kind]))
    return ordinary


def _evaluates(run: Run, start: Ints, end: Ints) -> Mask:
    """Which steps hold batches of another loader than the leading one."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if not len(calls):
        return np.zeros(len(start), bool)
    leading = int(np.bincount(calls["loader"][calls["yielded"]], minlength=1).argmax())
    at = np.sort(calls["start_ns"][calls["loader"] != leading])
    others: Mask = np.searchsorted(at, end) > np.searchsorted(at, start)
    return others


def _every(index: Ints) -> int | None:
    """The distance at which they come; None where the distances differ, or there are too few to tell."""
    apart = np.diff(index)
    if len(index) < LEAST_REGULAR:
        return None
    middle = int(np.median(apart))
    # One may lie in a step that is not looked at, because gpulab itself paused there.
    times = np.maximum(np.round(apart / max(1, middle)), 1)
    regular = (np.abs(apart - times * middle) <= round(0.02 * middle)).mean() >= REGULAR_FRAC
    regular &= times.sum() <= 2 * len(apart)  # most of those that should have come did
    return middle if regular and middle > 2 else None


def _doing(run: Run, spans: Spans) -> tuple[str | None, str | None, int]:
    """What most samples taken in these spans found: the call into a library, the user's line, and how many samples."""
    samples = run.host_rows
    inside = samples.where(covered_ns(spans, samples["at_ns"], samples["at_ns"] + 1) > 0)
    lines = Counter(text for text in inside.words("frame").to_list() if text is not None)
    if not lines:
        return None, None, 0
    frame = lines.most_common(1)[0][0]
    there = inside.where(inside.matching(lambda word: word == frame, "frame"))
    calls = Counter(text for text in there.words("called").to_list() if text is not None)
    return (calls.most_common(1)[0][0] if calls else None), frame, len(there)
