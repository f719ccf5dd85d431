"""Pass or fail a comparison as a test of performance that knows noise."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.comparison import Comparison
from gpulab.comparison.sides import ending
from gpulab.wording import percent, percent_range


@dataclass(frozen=True)
class GateVerdict:
    """Whether a comparison passes, and why."""

    passes: bool
    text: str


def judge(compared: Comparison, most_slowdown_frac: float) -> GateVerdict:
    """Fail if the step time rose by more than this fraction and noise does not explain the rise.

    Both must hold: the measured rise exceeds the limit, and the 95 % interval, which counts the noise within runs and
    between them, contains only longer step times. One in forty comparisons of equal code has such an interval; the
    limit makes it rarer. A comparison without both whose interval reaches above the limit is not conclusive: it
    passes, and says so. A run that crashed fails: the steps before the error are not the whole program.
    """
    for side in compared.sides:
        if side.crashes:
            return GateVerdict(False, f"FAIL: {side.name} {ending(side.crashes[0].run)}.")
    slower_frac = 1 / compared.ratio - 1
    low_frac, high_frac = 1 / compared.ratio_high - 1, 1 / compared.ratio_low - 1
    interval = f"95 % interval {percent_range(low_frac, high_frac)}"
    measured = f"{_change(slower_frac)} ({interval}; limit {percent(most_slowdown_frac)})"
    exceeds = slower_frac > most_slowdown_frac
    if exceeds and compared.conclusive and low_frac > 0:
        return GateVerdict(False, f"FAIL: the step time changed by {measured}.")
    if high_frac <= most_slowdown_frac:
        return GateVerdict(True, f"PASS: the step time changed by {measured}.")
    reason = "noise may explain it" if exceeds else "the interval contains slowdowns above the limit"
    return GateVerdict(
        True,
        f"PASS, not conclusive: the step time changed by {measured}, but {reason}. "
        "Record more steps, or several runs per side.",
    )


def _change(frac: float) -> str:
    return f"{'+' if frac >= 0 else '-'}{percent(abs(frac), 2)}"
