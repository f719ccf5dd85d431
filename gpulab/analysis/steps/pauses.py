"""Pauses: steps far longer than the others. How many, how regular, their cost, and the code that ran in them.

All marked steps are examined, recorded with events or not. Waits for batches, garbage collections and compilations are
subtracted first, because other rules report them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.prefetch_bias import DEFAULT_PREFETCH_FACTOR
from gpulab.analysis.data.training_loader import training_loader_index
from gpulab.analysis.events.named_phases import loop_marks
from gpulab.analysis.host.gc_and_compilation import stall_spans
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.analysis.steps.phases import code_evaluations
from gpulab.intervals import Ints, Spans, covered_ns, union
from gpulab.run import Run
from gpulab.tables import MarkKind

SLOW_PREFETCH = 2.0  # times the mean of all batches: the first batches of new workers take longer
MIN_RATIO = 1.5  # a step with a pause takes at least this many times the median; less is ordinary variation
MIN_DEVIATIONS = 6.0  # and it exceeds the median by this many median absolute deviations
MIN_STEPS_EXAMINED = 12  # with fewer steps an outlier cannot be recognised
MIN_QUARTILE_FRAC = 0.4  # of the upper quartile: pauses of one kind have similar length
MIN_PERIODIC_PAUSES = 4  # fewer pauses may be regular by chance
MAX_FRAC = 0.55  # of the steps: pauses in every second step, and a few by chance
REGULAR_FRAC = 0.8  # in periodic pauses, this share of the distances between pauses is equal


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Warm steps with a pause."""

    count: int
    steps: int  # steps examined
    period_steps: int | None  # period in steps; None: irregular
    typical_cost_ns: int  # median time by which such a step exceeds an ordinary one
    total_ns: int  # cost of all pauses
    step_mean_ns: int  # mean step time, pauses included
    step_median_ns: int  # median step time
    library_call: str | None  # library function that the user's line called during pauses, in most samples
    frame: str | None  # the user's line during pauses
    samples: int  # number of samples that show this line
    spans: Spans  # the steps with a pause

    @property
    def frac(self) -> float:
        """Share of the mean step time."""
        return self.total_ns / max(1, self.steps * self.step_mean_ns)


@dataclass(frozen=True, kw_only=True)
class PassStarts:
    """Cost of starting another pass over the data."""

    count: int  # passes started after the first
    each_ns: int  # median extra time for the first batch of a pass
    frac: float  # share of the time of all steps
    spans: Spans


def find_pauses(run: Run, steps: Steps) -> Pauses | None:
    """Find the steps with a pause; None if there are none. Steps with an evaluation do not count: that is work.

    If every second step has one, the median is no step without a pause, but the lower quartile is.
    """
    mask = _warm_steps(steps)
    if mask.sum() < MIN_STEPS_EXAMINED:
        return None
    pauses = _pauses_above(run, steps, mask, 50)
    if pauses is None:
        frequent = _pauses_above(run, steps, mask, 25)
        pauses = frequent if frequent is not None and frequent.period_steps else None
    return pauses


def _pauses_above(run: Run, steps: Steps, mask: Mask, percentile: int) -> Pauses | None:
    """Find the steps that are much longer than this percentile of all."""
    start, end = steps.start_ns[mask], steps.end_ns[mask]
    dur = end - start - _time_of_other_rules(run, start, end)
    excess = dur - _ordinary(dur, steps.recorded[mask], percentile)
    middle = float(np.percentile(dur, percentile))
    spread = float(np.percentile(np.abs(excess), percentile))
    is_pause = (excess > (MIN_RATIO - 1) * middle) & (excess > MIN_DEVIATIONS * spread)
    is_pause &= ~(_evaluates(run, start, end) | _follows_worker_start(run, start, end))
    if is_pause.any():  # short outliers are noise of a busy machine
        is_pause &= excess >= MIN_QUARTILE_FRAC * np.percentile(excess[is_pause], 75)
    if is_pause.sum() < 2 or is_pause.mean() > MAX_FRAC:
        return None
    spans = union(start[is_pause], end[is_pause])
    library_call, frame, samples = _sampled_code(run, spans)
    return Pauses(
        count=int(is_pause.sum()),
        steps=len(dur),
        period_steps=_period(np.flatnonzero(mask)[is_pause]),
        typical_cost_ns=int(np.median(excess[is_pause])),
        total_ns=int(excess[is_pause].sum()),
        step_mean_ns=int((end - start).mean()),
        step_median_ns=int(np.median(end - start)),
        library_call=library_call,
        frame=frame,
        samples=samples,
        spans=spans,
    )


def pass_start_cost(run: Run, steps: Steps) -> PassStarts | None:
    """Compute the extra cost of the first batch of a pass; None with a single pass, or without extra cost."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if not len(calls) or steps.detected_by != "DataLoader":
        return None
    training = training_loader_index(loop_marks(run))
    fetches = calls.select((calls["loader"] == training) & calls["yielded"])
    first_batches = np.flatnonzero(np.diff(fetches["epoch"]) > 0) + 1
    fetch_ns = fetches["end_ns"] - fetches["start_ns"]
    extra_ns = fetch_ns[first_batches] - int(np.median(fetch_ns)) if len(first_batches) else fetch_ns[:0]
    first_batches, extra_ns = first_batches[extra_ns > 0], extra_ns[extra_ns > 0]
    if not len(first_batches):
        return None
    return PassStarts(
        count=len(first_batches),
        each_ns=int(np.median(extra_ns)),
        frac=float(extra_ns.sum() / max(1, int(steps.dur_ns.sum()))),
        spans=union(fetches["start_ns"][first_batches], fetches["end_ns"][first_batches]),
    )


def _warm_steps(steps: Steps) -> Mask:
    """Return the warm steps: plain ones and recorded ones. Each kind is compared with its own median."""
    warm: Mask = (np.arange(len(steps)) >= WARM_UP_STEPS) & (steps.unprofiled | steps.interior)
    return warm


def _time_of_other_rules(run: Run, start: Ints, end: Ints) -> Ints:
    """Return, per step, the time that other rules report: waits for batches, garbage collection, compilation."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    stalls = stall_spans(run)
    spans = union(
        np.concatenate([calls["start_ns"], stalls.start_ns]), np.concatenate([calls["end_ns"], stalls.end_ns])
    )
    return covered_ns(spans, start, end)


def _ordinary(dur: Ints, recorded: Mask, percentile: int) -> Ints:
    """Return, for each step, this percentile of its kind, as recording makes steps longer."""
    ordinary = np.full(len(dur), int(np.percentile(dur, percentile)), np.int64)
    for kind in (recorded, ~recorded):
        if kind.sum() >= MIN_STEPS_EXAMINED // 2:
            ordinary[kind] = int(np.percentile(dur[kind], percentile))
    return ordinary


def _evaluates(run: Run, start: Ints, end: Ints) -> Mask:
    """Return a mask of the steps with an evaluation: batches of another loader than the main one, or known code."""
    calls, code = run.mark_rows.of_kind(MarkKind.NEXT), code_evaluations(run)
    evaluates: Mask = np.zeros(len(start), bool) if code is None else covered_ns(code.spans, start, end) > 0
    if len(calls):
        training = training_loader_index(loop_marks(run))
        at = np.sort(calls["start_ns"][calls["loader"] != training])
        evaluates |= np.searchsorted(at, end) > np.searchsorted(at, start)
    return evaluates


def _follows_worker_start(run: Run, start: Ints, end: Ints) -> Mask:
    """Return a mask of the steps that new workers slow down: with their first batch, and while they prefetch.

    All workers load at the same time then, on the cores of the model or against the same disk.
    """
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    follows: Mask = np.zeros(len(start), bool)
    for index, loader in enumerate(run.loaders):
        if (loader.worker_starts or 0) <= 1:
            continue
        fetches = calls.select(calls["loader"] == index)
        is_first = np.diff(fetches["epoch"], prepend=-1) != 0
        prefetched = loader.prefetch_factor or DEFAULT_PREFETCH_FACTOR
        prefetch_ns = round(SLOW_PREFETCH * prefetched * (loader.worker_batch_ns or 0))
        first_ns = np.sort(fetches["start_ns"][is_first])
        busy_until_ns = np.sort(fetches["end_ns"][is_first] + prefetch_ns)
        # A step overlaps such a time if fewer of them ended before it than began before its end.
        follows |= np.searchsorted(first_ns, end) > np.searchsorted(busy_until_ns, start, side="right")
    return follows


def _period(index: Ints) -> int | None:
    """Return the period in steps; None if the distances differ or there are too few."""
    distances = np.diff(index)
    if len(index) < MIN_PERIODIC_PAUSES:
        return None
    # The shortest distance counts if it occurs again: on a noisy machine, many pauses may be missing.
    shortest = int(distances.min())
    candidates = [int(np.median(distances)), *([shortest] if (distances == shortest).sum() > 1 else [])]
    return next((period for period in candidates if _is_regular(distances, period)), None)


def _is_regular(distances: Ints, period: int) -> bool:
    """Whether pauses at these distances, in steps, come with this period."""
    # A pause may be missing because its step is not examined: gpulab itself paused there.
    multiples = np.maximum(np.round(distances / max(1, period)), 1)
    regular = (np.abs(distances - multiples * period) <= round(0.02 * period)).mean() >= REGULAR_FRAC
    return bool(regular and multiples.sum() <= 2 * len(distances) and period >= 2)  # at most half of them are missing


def _sampled_code(run: Run, spans: Spans) -> tuple[str | None, str | None, int]:
    """Return the most frequent library call and user line in the samples of these spans, and the number of samples."""
    samples = run.host_rows
    inside = samples.select(covered_ns(spans, samples["at_ns"], samples["at_ns"] + 1) > 0)
    lines = Counter(text for text in inside.text("frame").to_list() if text is not None)
    if not lines:
        return None, None, 0
    frame = lines.most_common(1)[0][0]
    at_line = inside.select(inside.matching(lambda word: word == frame, "frame"))
    calls = Counter(text for text in at_line.text("called").to_list() if text is not None)
    return (calls.most_common(1)[0][0] if calls else None), frame, len(at_line)
