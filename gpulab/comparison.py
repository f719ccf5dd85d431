"""Two runs side by side: what changed, by how much, whether that is more than noise, and what was predicted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpulab.analysis.loader import leading_loader
from gpulab.analysis.steps import Steps, grouped
from gpulab.errors import RunError
from gpulab.intervals import Ints
from gpulab.rules import Diagnosis, Finding, Gain, diagnose
from gpulab.run import Run

RESAMPLES = 2000  # enough for the 2.5 % quantile to settle in the third figure
LEAST_STEPS = 3  # fewer steps on either side have no spread to speak of


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What differs between two runs, and how sure that is. A ratio above one means that `after` is faster."""

    before: Diagnosis
    after: Diagnosis
    before_steps_ns: Ints  # what the ratio rests on: un-profiled steps where both runs have them, by bursts
    after_steps_ns: Ints
    averaged: bool  # means are compared, as the cause strikes only now and then; medians otherwise
    profiled: bool  # the steps compared were recorded ones, with the profiler's cost in them
    ratio: float  # typical step before over typical step after
    ratio_low: float  # 95 % bootstrap interval
    ratio_high: float
    above_noise: bool
    resolved: tuple[Finding, ...]  # found before, not after
    new: tuple[Finding, ...]  # found after, not before
    remaining: tuple[Finding, ...]  # found in both, as they are after
    predicted: Gain | None  # what the finding that was acted on predicted
    inside: bool | None  # whether the measured step lies in the predicted range; None without a prediction
    why: str  # one sentence: why the prediction missed, or why nothing can be said; "" otherwise
    parts: tuple[tuple[str, str, int, int], ...]  # key, label, mean ns per step before and after

    @property
    def before_ns(self) -> int:
        """Typical step before."""
        return int(_centre(self.averaged)(self.before_steps_ns))

    @property
    def after_ns(self) -> int:
        """Typical step after."""
        return int(_centre(self.averaged)(self.after_steps_ns))


def compare(before: Run, after: Run, rule: str | None = None) -> Comparison:
    """What changed from one run to the other. Raises RunError where either has no steps to compare.

    `rule`: whose fix was applied in between; the first finding's unless given.
    """
    one, other = diagnose(before), diagnose(after)
    predicted = _acted_on(one, rule)
    averaged = predicted is not None and predicted.averaged
    profiled = not (one.steps.plain.any() and other.steps.plain.any())
    one_ns = _steps_ns(one.steps, profiled, averaged, before)
    other_ns = _steps_ns(other.steps, profiled, averaged, after)
    ratio, low, high = bootstrap_ratio(one_ns, other_ns, averaged=averaged)
    enough = min(len(one_ns), len(other_ns)) >= LEAST_STEPS
    above_noise = enough and not low <= 1.0 <= high
    inside = None if predicted is None else _inside(predicted, one_ns, other_ns)
    had = {finding.rule for finding in one.findings}
    has = {finding.rule for finding in other.findings}
    return Comparison(
        before=one,
        after=other,
        before_steps_ns=one_ns,
        after_steps_ns=other_ns,
        averaged=averaged,
        profiled=profiled,
        ratio=ratio,
        ratio_low=low,
        ratio_high=high,
        above_noise=above_noise,
        resolved=tuple(finding for finding in one.findings if finding.rule not in has),
        new=tuple(finding for finding in other.findings if finding.rule not in had),
        remaining=tuple(finding for finding in other.findings if finding.rule in had),
        predicted=predicted,
        inside=inside,
        why=_why(one, other, one_ns, other_ns, above_noise, inside),
        parts=_parts(one, other),
    )


def _acted_on(one: Diagnosis, rule: str | None) -> Gain | None:
    if rule is None:
        return one.first.gain if one.first else None
    found = next((finding for finding in one.findings if finding.rule == rule), None)
    if found is None:
        raise RunError(
            f"There is no finding {rule!r} in the run {one.run.name!r}.",
            why=f"its findings are {', '.join(finding.rule for finding in one.findings) or 'none'}",
            fix="name one of these, or leave the rule out for the first",
        )
    return found.gain


def _centre(averaged: bool) -> Callable[..., Any]:
    return np.mean if averaged else np.median


def bootstrap_ratio(
    before_ns: Ints, after_ns: Ints, *, seed: int = 0, averaged: bool = False
) -> tuple[float, float, float]:
    """Ratio of the medians (or means), and its 95 % interval by resampling each run's steps; the same every time."""
    centre = _centre(averaged)
    ratio = float(centre(before_ns) / centre(after_ns))
    if min(len(before_ns), len(after_ns)) < 2:
        return ratio, ratio, ratio
    random = np.random.default_rng(seed)
    tops = centre(random.choice(before_ns, (RESAMPLES, len(before_ns))), axis=1)
    bottoms = centre(random.choice(after_ns, (RESAMPLES, len(after_ns))), axis=1)
    low, high = np.percentile(tops / bottoms, (2.5, 97.5))
    return ratio, float(low), float(high)


def _steps_ns(steps: Steps, profiled: bool, averaged: bool, run: Run) -> Ints:
    use = steps.interior if profiled else steps.plain
    chosen = steps.dur_ns[use]
    if averaged and (use[1:] & use[:-1]).any():
        # What strikes now and then may strike between two steps, as the start of an epoch's workers does.
        chosen = np.diff(steps.start_ns)[use[1:] & use[:-1]]
    if not len(chosen):
        raise RunError(
            f"The run {run.name!r} has no steps to compare.",
            why="no complete step of a loop was seen in it",
            fix="profile the cell that holds the training loop, and let it run for at least six steps",
        )
    return grouped(chosen, steps.burst)


def _inside(predicted: Gain, before_ns: Ints, after_ns: Ints) -> bool:
    """Whether the measured step lies in the range, give or take the spread of its own median or mean."""
    centre = _centre(predicted.averaged)
    after = float(centre(after_ns)) * predicted.step_ns / float(centre(before_ns))
    error_ns = 2 * float(np.std(after_ns)) / np.sqrt(len(after_ns)) if predicted.averaged else _median_error(after_ns)
    noise = error_ns / float(centre(after_ns)) * after
    return predicted.best_ns - noise <= after <= predicted.worst_ns + noise


def _median_error(steps_ns: Ints) -> float:
    """The 95 % half-width of a median, from the quartiles: 1.57 IQR / sqrt(n), as notched box plots draw it."""
    low, high = np.percentile(steps_ns, (25, 75))
    return float(1.57 * (high - low) / np.sqrt(len(steps_ns)))


def _why(one: Diagnosis, other: Diagnosis, one_ns: Ints, other_ns: Ints, above_noise: bool, inside: bool | None) -> str:
    if min(len(one_ns), len(other_ns)) < LEAST_STEPS:
        return f"fewer than {LEAST_STEPS} steps on one side: no spread, so no difference can be called real"
    if not above_noise:
        return "the difference is within the noise of the step times"
    if inside is False:
        return _why_missed(one, other)
    return ""


def _why_missed(one: Diagnosis, other: Diagnosis) -> str:
    """What else differs between the two runs, or which other part of the step moved."""
    loaders = leading_loader(one.run), leading_loader(other.run)
    sizes = [loader.batch_size for loader in loaders if loader and loader.batch_size]
    if len(set(sizes)) == 2:
        return f"the batch size changed too ({sizes[0]} to {sizes[1]})"
    if one.run.source.device != other.run.source.device:
        return "the runs are from different devices"
    moved = [(after - before, label) for _, label, before, after in _parts(one, other)]
    grown_ns, label = max(moved, default=(0, ""))
    if grown_ns > 0.05 * (one.steps.step_ns or 1):
        return f"{label} grew by {grown_ns / 1e6:.3g} ms a step meanwhile"
    first = one.first
    if first and first.rule in {finding.rule for finding in other.findings}:
        return "the cause was lessened, not removed"
    return "the two runs differ in more than the fix, or the model of the fix is wrong here"


def _parts(one: Diagnosis, other: Diagnosis) -> tuple[tuple[str, str, int, int], ...]:
    """Mean time per interior step of each part, before and after; each column sums to its mean step."""
    if one.ledger is None or other.ledger is None:
        return ()
    labels = {part.key: part.label for book in (one.ledger, other.ledger) for part in book.parts}
    means = [{key: _mean(book.part_ns.get(key)) for key in labels} for book in (one.ledger, other.ledger)]
    return tuple((key, label, means[0][key], means[1][key]) for key, label in labels.items())


def _mean(values: Ints | None) -> int:
    return 0 if values is None else round(float(values.mean()))
