"""One fix and what its trial measured."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.comparison import Comparison
from gpulab.rules import Finding

MORE_REPEATS = 2  # if the runs differ without a clear result: other programs may have disturbed one
_UNCLEAR_DIFFERENCE = 1.1  # a smaller ratio of the step times is not worth more runs


def is_unclear(comparison: Comparison) -> bool:
    """Whether more runs may tell whether there is a difference that is worth it."""
    difference = max(comparison.ratio, 1 / comparison.ratio)
    return not (comparison.above_noise and comparison.conclusive) and difference >= _UNCLEAR_DIFFERENCE


@dataclass(frozen=True)
class TriedFix:
    """A fix, and the comparison of the cell without and with it, or why there is none."""

    finding: Finding
    comparison: Comparison | None = None
    problem: str = ""  # why it could not be tried
    place: str = ""  # where in the cell it was

    @property
    def speedup(self) -> float:
        """Measured speed-up for the same work; 0 without a trial."""
        gain = self.finding.gain
        work = 1.0 if gain is None else gain.work_ratio
        return 0.0 if self.comparison is None else self.comparison.ratio * work

    @property
    def is_clear(self) -> bool:
        """Whether the measured difference is larger than the noise."""
        return self.comparison is not None and self.comparison.conclusive and self.comparison.above_noise

    @property
    def helps(self) -> bool:
        """Whether the fix makes the cell faster, by more than the noise."""
        return self.is_clear and self.speedup > 1
