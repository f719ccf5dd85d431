"""Two sides beside one another: what changed, by how much, whether that is more than noise, and what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np

from gpulab.analysis.kernels.matching import Matched, matched
from gpulab.analysis.machine.memory_and_energy import Usage, usage
from gpulab.comparison.interval import ENOUGH_RUNS, Centre, Ratio, ratio
from gpulab.comparison.ledger_changes import Moved, parts
from gpulab.comparison.reasons import Pair, Reason, circumstances, misses
from gpulab.comparison.sides import Basis, Side, basis, taken_in_turn
from gpulab.errors import RunError
from gpulab.intervals import Ints
from gpulab.rules import Diagnosis, Finding, Gain
from gpulab.wording import number, percent

LEAST_STEPS = 3  # fewer steps on either side have no spread to speak of
# Less of a step is not called a difference: see benchmarks/predictions/comparisons.py for how far the same program
# run twice differs.
LEAST_FRAC = 0.03
# Steps that share the cores with other programs differ from run to run by this much for each core's worth of these.
CROWDING_FRAC = 0.2
UNEVEN = 0.1  # so many cores' worth more on one side, and its steps are longer for that alone
UNEVEN_MEANS = 0.3  # the same where runs were repeated, and how much they differ by it is seen


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """What differs between two sides, and how sure that is. A ratio above one means that `after` is faster."""

    before: Diagnosis  # of repeated runs the one with the middle step
    after: Diagnosis
    sides: tuple[Side, Side]  # all of them
    before_steps_ns: Ints  # what the ratio rests on: un-profiled steps where both sides have them, by bursts
    after_steps_ns: Ints
    runs_ns: tuple[Ints, Ints]  # the typical step of each run that is compared, on both sides
    before_ns: int  # typical step: that of a run's, and of repeated runs the mean of these
    after_ns: int
    centre: Centre  # the figure that stands for the steps of a run
    profiled: bool  # the steps compared were recorded ones, with the profiler's cost in them
    left_out: tuple[tuple[int, int], tuple[int, int]]  # steps of each side that others disturbed, of how many
    ratio: float  # typical step before over typical step after
    ratio_low: float  # 95 % interval
    ratio_high: float
    between_frac: float  # how much runs of one program are taken to differ, as a standard deviation
    judged: bool  # there are steps enough, and it is not to be told from what other programs did
    above_noise: bool
    resolved: tuple[Finding, ...]  # found before, not after
    new: tuple[Finding, ...]  # found after, not before
    remaining: tuple[Finding, ...]  # found in both, as they are after
    acted_on: Finding | None  # the finding whose fix was applied in between; None where the caller predicts
    predicted: Gain | None  # what it predicted, or what the caller did
    inside: bool | None  # whether the measured step lies in the predicted range; None without a prediction
    why: str  # one sentence: why the prediction missed, or why nothing can be said; "" otherwise
    reasons: tuple[Reason, ...]  # why the prediction may have missed, the largest effect first
    circumstances: tuple[Reason, ...]  # what differs beside the code, whether or not a prediction missed
    parts: tuple[Moved, ...]  # of the mean recorded step; each column sums to its step
    usage: tuple[Usage, Usage]  # memory and energy; what was not measured is None

    @cached_property
    def work(self) -> Matched | None:
        """Kernels or operators of both sides, matched; None where one side has none, or other devices worked."""
        return matched(*(side.recorded for side in self.sides))

    @property
    def measured_ns(self) -> float:
        """The measured step on the scale of the prediction, which may start from a slightly different step time."""
        if self.predicted is None:
            return self.before_ns / self.ratio
        return self.predicted.step_ns / self.ratio / self.predicted.work


def paired(
    before: Side, after: Side, rule: str | None = None, predicted: Gain | None = None, upon: Basis | None = None
) -> Comparison:
    """What changed from one side to the other. `upon`: which steps, where more than two sides must agree on them."""
    acted_on = None if predicted is not None else _acted_on(before, rule)
    predicted = predicted if predicted is not None else acted_on.gain if acted_on else None
    upon = upon or basis((before, after), averaged=predicted is not None and predicted.averaged)
    pair = Pair(
        before=before,
        after=after,
        before_ns=before.step_ns(upon),
        after_ns=after.step_ns(upon),
        parts=parts(before.ledgers, after.ledgers),
        acted_on=acted_on,
        upon=upon,
        crowds=(before.crowd(upon), after.crowd(upon)),
    )
    had, has = ({finding.rule for finding in side.findings} for side in (before, after))
    return Comparison(
        before=before.typical,
        after=after.typical,
        sides=(before, after),
        before_ns=pair.before_ns,
        after_ns=pair.after_ns,
        centre=upon.centre,
        profiled=upon.profiled,
        left_out=(before.left_out(upon), after.left_out(upon)),
        resolved=tuple(finding for finding in before.findings if finding.rule not in has),
        new=tuple(finding for finding in after.findings if finding.rule not in had),
        remaining=tuple(finding for finding in after.findings if finding.rule in had),
        acted_on=acted_on,
        predicted=predicted,
        circumstances=circumstances(pair),
        parts=pair.parts,
        usage=(_usage(before), _usage(after)),
        **_judged(pair, predicted),
    )


def _judged(pair: Pair, predicted: Gain | None) -> dict[str, Any]:
    """How sure the difference is, and how the prediction did."""
    one_ns, other_ns = pair.before.steps_ns(pair.upon), pair.after.steps_ns(pair.upon)
    extra = (CROWDING_FRAC * pair.crowds[0], CROWDING_FRAC * pair.crowds[1])
    in_turn = taken_in_turn(pair.before.used(pair.upon), pair.after.used(pair.upon))
    seen = ratio(one_ns, other_ns, centre=pair.upon.centre, in_turn=in_turn, extra_frac=extra)
    enough = min(sum(map(len, side)) for side in (one_ns, other_ns)) >= LEAST_STEPS
    repeated = min(len(one_ns), len(other_ns)) >= ENOUGH_RUNS
    disturbed = _disturbed(seen, pair.crowds, UNEVEN_MEANS if repeated else UNEVEN)
    inside = None if predicted is None else _inside(predicted, seen, other_ns, pair.upon.centre)
    too_slow = predicted is not None and predicted.step_ns / seen.value / predicted.work > predicted.worst_ns
    reasons = () if predicted is None or inside else misses(pair, too_slow, predicted.work)
    return {
        "before_steps_ns": np.concatenate(one_ns),
        "after_steps_ns": np.concatenate(other_ns),
        "runs_ns": tuple(_typical_ns(side, pair.upon.centre) for side in (one_ns, other_ns)),
        "ratio": seen.value,
        "ratio_low": seen.low,
        "ratio_high": seen.high,
        "between_frac": seen.between_frac,
        "judged": enough and not disturbed,
        "above_noise": enough and seen.sure and _size(seen) >= LEAST_FRAC and not disturbed,
        "inside": inside,
        "reasons": reasons,
        "why": _why(enough, disturbed or _beside(seen, max(pair.crowds)), seen, inside, reasons),
    }


def _typical_ns(runs: Sequence[Ints], centre: Centre) -> Ints:
    return np.array([round(float(centre.of(steps))) for steps in runs], np.int64)


def _acted_on(before: Side, rule: str | None) -> Finding | None:
    if rule is None:
        return before.typical.first
    found = next((finding for finding in before.findings if finding.rule == rule), None)
    if found is None:
        raise RunError(
            f"There is no finding {rule!r} in the run {before.typical.run.name!r}.",
            why=f"its findings are {', '.join(finding.rule for finding in before.findings) or 'none'}",
            fix="name one of these, or leave the rule out for the first",
        )
    return found


def _disturbed(seen: Ratio, crowds: tuple[float, float], uneven: float) -> str:
    """Why the difference may be the doing of other programs, which only ever make steps longer; "" where not."""
    more = crowds[1] - crowds[0]
    if abs(more) < uneven or (more > 0) != (seen.value < 1) or _size(seen) < LEAST_FRAC:
        return ""
    told = f"other programs used {number(crowds[0], 2)} cores before and {number(crowds[1], 2)} after"
    return f"{told}, which makes steps longer by itself; record both again while little else runs"


def _beside(seen: Ratio, crowd: float) -> str:
    """That other programs blurred a difference which is not sure; "" where they did not."""
    if crowd < UNEVEN or seen.sure:
        return ""
    noise = "the difference is within the noise of the step times"
    return f"{noise}; other programs used {number(crowd, 2)} cores meanwhile"


def _size(seen: Ratio) -> float:
    """The difference as a share of the longer step."""
    return 1 - min(seen.value, 1 / seen.value)


def _inside(predicted: Gain, seen: Ratio, after_ns: Sequence[Ints], centre: Centre) -> bool:
    """Whether the measured step lies in the range, give or take the spread of the steps after."""
    after = predicted.step_ns / seen.value / predicted.work
    noise = _error_frac(after_ns, centre) * after
    return predicted.best_ns - noise <= after <= predicted.worst_ns + noise


def _error_frac(runs: Sequence[Ints], centre: Centre) -> float:
    """The 95 % half-width of a side's typical step, as a share of it, by what was seen of it alone."""
    centres = np.array([float(centre.of(steps)) for steps in runs])
    if len(runs) > 1:
        return float(2 * centres.std(ddof=1) / np.sqrt(len(runs)) / centres.mean())
    steps = runs[0]
    if centre is Centre.MEAN:
        return float(2 * np.std(steps) / np.sqrt(len(steps)) / centres[0])
    low, high = np.percentile(steps, (25, 75))  # of a median, as notched box plots draw it
    return float(1.57 * (high - low) / np.sqrt(len(steps)) / centres[0])


def _why(enough: bool, blurred: str, seen: Ratio, inside: bool | None, reasons: Sequence[Reason]) -> str:
    if not enough:
        return f"fewer than {LEAST_STEPS} steps on one side: no spread, so no difference can be called real"
    if blurred:
        return blurred
    if not seen.excludes_one:
        return "the difference is within the noise of the step times"
    if not seen.sure:
        return "chance alone shows as much in one of twenty comparisons; repeated runs would tell"
    if _size(seen) < LEAST_FRAC:
        return f"less than {percent(LEAST_FRAC)} of a step is not called a difference"
    if inside is False:
        unknown = "the two runs differ in more than the fix, or the model of the fix is wrong here"
        return reasons[0].text if reasons else unknown
    return ""


def _usage(side: Side) -> Usage:
    """Of the runs of a side, the mean of each figure that was measured."""
    told = [usage(each.run, each.steps) for each in side.runs]
    means = {}
    for name in (field.name for field in fields(Usage)):
        values = [getattr(each, name) for each in told if getattr(each, name) is not None]
        means[name] = fmean(values) if values else None
    return Usage(**means)
