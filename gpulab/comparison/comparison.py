"""Compare two sides: what changed, by how much, whether it exceeds the noise, and how the prediction did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from gpulab.analysis.kernels.matching import WorkChanges, match_work
from gpulab.analysis.machine.memory_and_energy import ResourceUse, resource_use
from gpulab.comparison.compared_prediction import ComparedPrediction, same_cause
from gpulab.comparison.displayed import Displayed
from gpulab.comparison.interval import MIN_REPEATED_RUNS, Ratio, Statistic, step_time_ratio
from gpulab.comparison.ledger_changes import PartChange, part_changes
from gpulab.comparison.reasons import Pair, Reason, circumstances, device_reason, miss_reasons
from gpulab.comparison.sides import Basis, ComparedSide, are_alternating, choose_basis
from gpulab.intervals import Ints
from gpulab.rules import Diagnosis, Finding, Gain
from gpulab.wording import number, percent, plural, scale

MIN_COMPARED_STEPS = 3  # with fewer steps on either side the spread is unknown
# A smaller share of a step is not reported as a difference: see benchmarks/predictions/comparisons.py for how much two
# runs of the same program differ.
MIN_DIFFERENCE_FRAC = 0.03
# Per core used by other programs, step times differ by this much more from run to run.
CROWDING_FRAC = 0.2
MAX_UNEVEN_CORES = (
    0.1  # if other programs use this many more cores on one side, its steps are longer for that reason alone
)
MAX_UNEVEN_CORES_REPEATED = 0.3  # the same for repeated runs, whose spread includes that effect


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Comparison(Displayed):
    """The differences between two sides, and how certain they are. A ratio above one means that `after` is faster."""

    before: Diagnosis  # of repeated runs, the one with the median step time
    after: Diagnosis
    sides: tuple[ComparedSide, ComparedSide]  # all runs of both sides
    before_steps_ns: Ints  # step times that the ratio is based on: unprofiled if both sides have them, in bursts
    after_steps_ns: Ints
    runs_ns: tuple[Ints, Ints]  # typical step time of each compared run, for both sides
    before_ns: int  # typical step time of the run; the mean over repeated runs
    after_ns: int
    statistic: Statistic  # the statistic that represents the steps of a run
    profiled: bool  # the compared steps were recorded and include profiler overhead
    disturbed_steps: tuple[
        tuple[int, int], tuple[int, int]
    ]  # per side: steps disturbed by other programs, and all steps
    ratio: float  # typical step time before / after
    ratio_low: float  # bounds of the 95 % confidence interval
    ratio_high: float
    between_runs_frac: float  # assumed standard deviation between runs of the same program, as a fraction
    conclusive: bool  # there are enough steps, and other programs do not explain the difference
    above_noise: bool
    resolved: tuple[Finding, ...]  # findings before only
    new: tuple[Finding, ...]  # findings after only
    # Findings of one side only, if a run of the other side crashed: it may have ended before the cause showed.
    undecided: tuple[Finding, ...]
    remaining: tuple[Finding, ...]  # findings in both, as of after; late batches may have another rule than before
    prediction: ComparedPrediction  # and what shows that it is about the change between the sides
    # Whether the measured step time is in the predicted range; None without a prediction.
    in_predicted_range: bool | None
    why: str  # one sentence: why the prediction missed, or why there is no verdict; "" otherwise
    reasons: tuple[Reason, ...]  # possible reasons why the prediction missed, largest effect first
    circumstances: tuple[Reason, ...]  # differences other than the code, whether or not a prediction missed
    parts: tuple[PartChange, ...]  # of the compared step times, to which the columns sum
    usage: tuple[ResourceUse, ResourceUse]  # memory and energy; None: not measured

    @property
    def acted_on(self) -> Finding | None:
        """The finding whose fix was applied in between, as far as is known; None if another change was predicted."""
        return self.prediction.finding

    @property
    def predicted(self) -> Gain | None:
        """The prediction that is compared with the measurement."""
        return self.prediction.gain

    @cached_property
    def device_work_changes(self) -> WorkChanges | None:
        """Kernels or operators of both sides, matched; None if a side has none, or if only one ran on a GPU."""
        return match_work(*(side.recorded for side in self.sides))

    def before_of(self, finding: Finding) -> Finding | None:
        """Return the finding before that has the same cause as a finding after; None if there was none."""
        return same_cause(finding, self.sides[0].findings)

    @property
    def measured_ns(self) -> float:
        """The measured step time, scaled to the step time that the prediction started from."""
        if self.predicted is None:
            return self.before_ns / self.ratio
        return self.predicted.step_ns / self.ratio / self.predicted.work_ratio


def compare_sides(
    before: ComparedSide, after: ComparedSide, prediction: ComparedPrediction, basis: Basis | None = None
) -> Comparison:
    """Compare two sides. `basis`: the steps to use; given if more than two sides must use the same kind of steps."""
    predicted = prediction.gain
    basis = basis or choose_basis((before, after), averaged=predicted is not None and predicted.is_mean)
    pair = Pair(
        before=before,
        after=after,
        before_ns=before.step_ns(basis),
        after_ns=after.step_ns(basis),
        parts=part_changes(before, after, basis),
        acted_on=prediction.finding,
        basis=basis,
        other_cores=(before.other_cores(basis), after.other_cores(basis)),
    )
    absent_after = tuple(each for each in before.findings if same_cause(each, after.findings) is None)
    absent_before = tuple(each for each in after.findings if same_cause(each, before.findings) is None)
    return Comparison(
        before=before.typical,
        after=after.typical,
        sides=(before, after),
        before_ns=pair.before_ns,
        after_ns=pair.after_ns,
        statistic=basis.statistic,
        profiled=basis.profiled,
        disturbed_steps=(before.disturbed_steps(basis), after.disturbed_steps(basis)),
        resolved=() if after.crashes else absent_after,
        new=() if before.crashes else absent_before,
        undecided=(*(absent_after if after.crashes else ()), *(absent_before if before.crashes else ())),
        remaining=tuple(each for each in after.findings if same_cause(each, before.findings) is not None),
        prediction=prediction,
        circumstances=circumstances(pair, predicted.work_ratio if predicted is not None else 1.0),
        parts=pair.parts,
        usage=(_usage(before), _usage(after)),
        **_verdict(pair, prediction),
    )


def _verdict(pair: Pair, prediction: ComparedPrediction) -> dict[str, Any]:
    """Return how certain the difference is, and whether the prediction was right."""
    predicted = prediction.gain
    before_ns, after_ns = pair.before.steps_ns(pair.basis), pair.after.steps_ns(pair.basis)
    extra_frac = (CROWDING_FRAC * pair.other_cores[0], CROWDING_FRAC * pair.other_cores[1])
    in_turn = are_alternating(pair.before.compared_runs(pair.basis), pair.after.compared_runs(pair.basis))
    step_ratio = step_time_ratio(
        before_ns, after_ns, statistic=pair.basis.statistic, alternating=in_turn, extra_frac=extra_frac
    )
    enough_steps = min(sum(map(len, side)) for side in (before_ns, after_ns)) >= MIN_COMPARED_STEPS
    repeated = min(len(before_ns), len(after_ns)) >= MIN_REPEATED_RUNS
    disturbed = _disturbed(step_ratio, pair, MAX_UNEVEN_CORES_REPEATED if repeated else MAX_UNEVEN_CORES)
    inside = None if predicted is None else _in_predicted_range(predicted, step_ratio, after_ns, pair.basis.statistic)
    too_slow = (
        predicted is not None and predicted.step_ns / step_ratio.value / predicted.work_ratio > predicted.worst_ns
    )
    is_miss = predicted is not None and prediction.is_of_change and not inside
    reasons = miss_reasons(pair, too_slow, predicted.work_ratio) if predicted is not None and is_miss else ()
    return {
        "before_steps_ns": np.concatenate(before_ns),
        "after_steps_ns": np.concatenate(after_ns),
        "runs_ns": tuple(_typical_ns(side, pair.basis.statistic) for side in (before_ns, after_ns)),
        "ratio": step_ratio.value,
        "ratio_low": step_ratio.low,
        "ratio_high": step_ratio.high,
        "between_runs_frac": step_ratio.between_runs_frac,
        "conclusive": enough_steps and not disturbed,
        "above_noise": enough_steps
        and step_ratio.significant
        and _size(step_ratio) >= MIN_DIFFERENCE_FRAC
        and not disturbed,
        "in_predicted_range": inside,
        "reasons": reasons,
        "why": _why(
            enough_steps,
            disturbed or _noise_of_other_programs(step_ratio, max(pair.other_cores)),
            step_ratio,
            is_miss,
            reasons,
        ),
    }


def _typical_ns(runs: Sequence[Ints], centre: Statistic) -> Ints:
    return np.array([round(float(centre.compute(steps))) for steps in runs], np.int64)


def _disturbed(step_ratio: Ratio, pair: Pair, uneven: float) -> str:
    """Say why other programs may explain the difference (they can only make steps longer); "" if they do not."""
    crowds = pair.other_cores
    more = crowds[1] - crowds[0]
    if abs(more) < uneven or (more > 0) != (step_ratio.value < 1) or _size(step_ratio) < MIN_DIFFERENCE_FRAC:
        return ""
    cores = f"other programs used {number(crowds[0], 2)} of the cores before and {number(crowds[1], 2)} after"
    devices = device_reason(pair)
    if devices is not None:
        return f"{devices.text}, and {cores}; record both again on one device, and with no other programs running"
    return f"{cores}, which alone changes the step time; record both again on an otherwise idle machine"


def _noise_of_other_programs(step_ratio: Ratio, crowd: float) -> str:
    """Say that other programs added noise to an uncertain difference; "" if they did not."""
    if crowd < MAX_UNEVEN_CORES or step_ratio.significant:
        return ""
    noise = "the difference is within the noise of the step times"
    rounded = number(crowd, 2)
    return f"{noise}; other programs used {rounded} {plural(float(rounded), 'core')} at the same time"


def _size(step_ratio: Ratio) -> float:
    """Return the difference as a share of the longer step."""
    return 1 - min(step_ratio.value, 1 / step_ratio.value)


def _in_predicted_range(predicted: Gain, step_ratio: Ratio, after_ns: Sequence[Ints], centre: Statistic) -> bool:
    """Whether the measured step time is in the predicted range, allowing for the noise of the steps after."""
    measured_ns = predicted.step_ns / step_ratio.value / predicted.work_ratio
    noise = _error_frac(after_ns, centre) * measured_ns
    # A time that prints like the end of the range is inside: the difference is below the precision of the report.
    tolerance = max(noise, scale(predicted.step_ns).resolution_ns / 2)
    return predicted.best_ns - tolerance <= measured_ns <= predicted.worst_ns + tolerance


def _error_frac(runs: Sequence[Ints], centre: Statistic) -> float:
    """Return the 95 % half-width of a side's typical step time as a share of it, from that side's steps alone."""
    centres = np.array([float(centre.compute(steps)) for steps in runs])
    if len(runs) > 1:
        return float(2 * centres.std(ddof=1) / np.sqrt(len(runs)) / centres.mean())
    steps = runs[0]
    if centre is Statistic.MEAN:
        return float(2 * np.std(steps) / np.sqrt(len(steps)) / centres[0])
    low, high = np.percentile(steps, (25, 75))  # of a median, as in notched box plots
    return float(1.57 * (high - low) / np.sqrt(len(steps)) / centres[0])


def _why(enough: bool, disturbance: str, step_ratio: Ratio, is_miss: bool, reasons: Sequence[Reason]) -> str:
    if not enough:
        return f"one side has fewer than {MIN_COMPARED_STEPS} steps, too few to separate a difference from noise"
    if disturbance:
        return disturbance
    if not step_ratio.excludes_one:
        return "the difference is within the noise of the step times"
    if not step_ratio.significant:
        return "one in twenty comparisons shows such a difference by chance; repeat the runs to be sure"
    if _size(step_ratio) < MIN_DIFFERENCE_FRAC:
        return f"differences below {percent(MIN_DIFFERENCE_FRAC)} of a step do not count"
    if is_miss:
        unknown = "the two runs differ in more than the fix, or the prediction model is wrong for this fix"
        return reasons[0].text if reasons else unknown
    return ""


def _usage(side: ComparedSide) -> ResourceUse:
    """Return the mean of each measured figure over the runs of a side."""
    usages = [resource_use(each.run, each.steps) for each in side.runs]
    means = {}
    for name in (field.name for field in fields(ResourceUse)):
        values = [getattr(each, name) for each in usages if getattr(each, name) is not None]
        means[name] = fmean(values) if values else None
    return ResourceUse(**means)
