"""Evaluations without a DataLoader: slices of a tensor, random batches as in nanoGPT, episodes of an environment.

Samples of the main thread show, over the whole run, when a function evaluates by its name or the trained models are in
eval mode (the column `evaluation`). The marks of the updates bound each evaluation: it lies between two updates that
are further apart than usual, before the first one or after the last one. After the last one, the loop goes on until its
DataLoader has no more batches.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.evaluations.forward_only import ForwardOnly, forward_only
from gpulab.intervals import Ints, Spans, covered_ns
from gpulab.phase_names import EVAL_MODE
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import MarkKind

_MIN_UPDATES = 3
_MIN_SAMPLES = 3  # of all evaluations; one alone may be chance
_LONG = 1.5  # times the usual time from one update to the next
_MAX_ORDINARY_FRAC = 0.2  # of the samples between ordinary updates: with more, each step does what the label says
_MIN_EVALUATING_FRAC = 0.5  # of the samples from the first to the last one of an evaluation
_MOST_RATIO = 2.0  # times as long, or as short: an evaluation of which no sample was taken
_MIN_COMPARED = 2  # evaluations to compare with


@dataclass(frozen=True, kw_only=True)
class CodeEvaluations:
    """Evaluations by the code that ran, not by a DataLoader."""

    function: str  # "estimate_loss"; "" if only the eval mode of the models tells
    spans: Spans  # one for each evaluation
    samples: int  # of the main thread that show them
    recorded: ForwardOnly | None  # None if no events of them were recorded

    @property
    def is_proven(self) -> bool:
        """Whether forward passes without a backward pass were recorded in one of them."""
        return self.recorded is not None and self.recorded.calls > 0


@dataclass(frozen=True, eq=False)
class _Interval:
    """The time between two updates, or before the first or after the last one, and the samples in it."""

    start_ns: int
    end_ns: int
    usual_ns: int  # from one update to the next
    is_inner: bool  # between two updates
    is_in_loop: bool  # that, or after the last update until the DataLoader has no more batches
    length_ns: int  # without pauses of the profiler
    at_ns: Ints  # of its samples
    labels: tuple[str, ...]  # of its samples; "" for code that does not evaluate

    @property
    def is_long(self) -> bool:
        return self.is_inner and self.length_ns > _LONG * self.usual_ns

    @property
    def excess_ns(self) -> int:
        return self.length_ns - self.usual_ns


def find_code_evaluations(run: Run, *, elsewhere: Spans, paused: Spans) -> CodeEvaluations | None:
    """Find evaluations by the samples of the main thread; None if there are none.

    `elsewhere`: evaluations that the program names, or that iterate over a DataLoader. `paused`: by the profiler.
    """
    updates = run.mark_rows.of_kind(MarkKind.OPTIMIZER)
    codes = run.host_rows["evaluation"]
    if len(updates) < _MIN_UPDATES or (codes >= 0).sum() < _MIN_SAMPLES:
        return None
    intervals = _intervals(run, updates, elsewhere, paused)
    spans, evidence = _evaluations(intervals, _trusted_labels(intervals))
    if len(evidence) < _MIN_SAMPLES:
        return None
    recorded = forward_only(run, spans)
    if recorded is not None and not recorded.runs_model:
        return None  # whatever the name says, no model ran
    name, number = Counter(evidence).most_common(1)[0]
    is_function = name != EVAL_MODE and 2 * number > len(evidence)
    return CodeEvaluations(function=name if is_function else "", spans=spans, samples=len(evidence), recorded=recorded)


def _intervals(run: Run, updates: Rows, elsewhere: Spans, paused: Spans) -> list[_Interval]:
    """Return the long and the sampled intervals without another evaluation.

    The usual time is the median of the intervals that end with the same optimizer.
    """
    order = np.argsort(updates["end_ns"], kind="stable")
    at_ns, optimizers = updates["end_ns"][order], updates["optimizer"][order]
    loop_ends_ns = _loop_end(run, int(at_ns[-1]))
    bounds = np.concatenate([[0], at_ns, loop_ends_ns, [max(run.span_ns, int(at_ns[-1]))]])
    start_ns, end_ns = bounds[:-1], bounds[1:]
    length_ns = end_ns - start_ns - covered_ns(paused, start_ns, end_ns)
    usual_ns = np.zeros(len(start_ns), np.int64)
    for optimizer in np.unique(optimizers):
        indices = np.flatnonzero(optimizers == optimizer)
        inner = indices[indices > 0]
        usual_ns[indices] = int(np.median(length_ns[inner])) if len(inner) else 0
    samples = run.host_rows
    samples = samples.select(np.flatnonzero(covered_ns(paused, samples["at_ns"], samples["at_ns"] + 1) == 0))
    sampled_ns, labels = samples["at_ns"], [label or "" for label in samples.text("evaluation").to_list()]
    first, last = np.searchsorted(sampled_ns, start_ns), np.searchsorted(sampled_ns, end_ns)
    is_used = (covered_ns(elsewhere, start_ns, end_ns) == 0) & ((last > first) | (length_ns > _LONG * usual_ns))
    return [
        _Interval(
            start_ns=int(start_ns[index]),
            end_ns=int(end_ns[index]),
            usual_ns=int(usual_ns[index]),
            is_inner=0 < index < len(at_ns),
            is_in_loop=0 < index < len(at_ns) + len(loop_ends_ns),
            length_ns=int(length_ns[index]),
            at_ns=sampled_ns[first[index] : last[index]],
            labels=tuple(labels[first[index] : last[index]]),
        )
        for index in np.flatnonzero(is_used & (length_ns > 0)).tolist()
    ]


def _loop_end(run: Run, last_update_ns: int) -> list[int]:
    """Return when the DataLoader of the last update was iterated to its end, if that was later; else []."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    before = calls.select(calls["end_ns"] <= last_update_ns)
    if not len(before):
        return []
    is_same = calls["loader"] == before["loader"][before["end_ns"].argmax()]
    later_ns: list[int] = calls["end_ns"][is_same & (calls["end_ns"] > last_update_ns)].tolist()
    return [max(later_ns)] if later_ns else []


def _trusted_labels(intervals: list[_Interval]) -> frozenset[str]:
    """Return the labels that come in few samples between ordinary updates: they tell evaluations from training."""
    ordinary = Counter(label for each in intervals if each.is_inner and not each.is_long for label in each.labels)
    most = _MAX_ORDINARY_FRAC * ordinary.total()
    labels = {label for each in intervals for label in each.labels if label}
    return frozenset(label for label in labels if ordinary[label] <= most)


def _evaluations(intervals: list[_Interval], trusted: frozenset[str]) -> tuple[Spans, list[str]]:
    """Return the span of each evaluation, and the labels of the samples in them."""
    spans: list[tuple[int, int]] = []
    evidence: list[str] = []
    excess_ns: list[int] = []
    rest: list[_Interval] = []
    for interval in intervals:
        span, labels = _sampled_span(interval, trusted)
        if span is None:
            rest.append(interval)
            continue
        spans.append(span)
        evidence += labels
        excess_ns += [interval.excess_ns] if interval.is_inner else []
    if len(excess_ns) >= _MIN_COMPARED:
        typical_ns = float(np.median(excess_ns))
        spans += [span for each in rest if (span := _unsampled_span(each, typical_ns)) is not None]
    start_ns, end_ns = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    return Spans(start_ns, end_ns), evidence


def _sampled_span(interval: _Interval, trusted: frozenset[str]) -> tuple[tuple[int, int] | None, list[str]]:
    """Return when an evaluation within this interval ran, and the labels of its samples; None without one.

    Outside the training loop, the eval mode of a model proves nothing: a program may leave it so, and draw pictures.
    """
    accepted = trusted if interval.is_in_loop else trusted - {EVAL_MODE}
    evaluates = np.array([label in accepted for label in interval.labels], bool)
    if not evaluates.any() or (interval.is_inner and not interval.is_long):
        return None, []
    first, last = (int(index) for index in np.flatnonzero(evaluates)[[0, -1]])
    if evaluates[first : last + 1].mean() < _MIN_EVALUATING_FRAC:
        return None, []
    at_ns, count = interval.at_ns, len(interval.at_ns)
    start_ns = interval.start_ns if not first else int(at_ns[first - 1 : first + 1].mean())
    next_ns = interval.end_ns if last + 1 == count else int(at_ns[last + 1])
    if interval.is_in_loop:  # a training step follows, which takes the usual time; or nothing
        end_ns = max(int(at_ns[last]), min(interval.end_ns - interval.usual_ns, next_ns))
    else:
        end_ns = (int(at_ns[last]) + next_ns) // 2
    return (start_ns, end_ns), [label for label in interval.labels[first : last + 1] if label in accepted]


def _unsampled_span(interval: _Interval, typical_ns: float) -> tuple[int, int] | None:
    """Return when an evaluation ran that no sample shows, if the interval is as long as those with one."""
    end_ns = interval.end_ns - interval.usual_ns
    is_alike = typical_ns / _MOST_RATIO <= interval.excess_ns <= typical_ns * _MOST_RATIO
    if not interval.is_long or not is_alike or (interval.at_ns < end_ns).any():
        return None
    return interval.start_ns, end_ns
