"""One fix and what its trial measured."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.comparison import Comparison
from gpulab.errors import CaptureError
from gpulab.rules import Finding


@dataclass(frozen=True, kw_only=True)
class TriedFix:
    """A fix, and the comparison of the cell without and with it, or why there is none."""

    finding: Finding
    comparison: Comparison | None = None
    error: CaptureError | None = None  # why it could not be tried
    place: str = ""  # where in the cell it was
    work_ratio: float = 1.0  # work in a step with the fix / without

    @property
    def speedup(self) -> float:
        """Measured speed-up for the same work; 0 without a trial."""
        return 0.0 if self.comparison is None else self.comparison.ratio * self.work_ratio

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the speed-up for the same work; zeros without a trial."""
        if self.comparison is None:
            return 0.0, 0.0
        return self.comparison.ratio_low * self.work_ratio, self.comparison.ratio_high * self.work_ratio

    @property
    def is_clear(self) -> bool:
        """Whether the measured difference is larger than the noise."""
        if self.comparison is None or not self.comparison.conclusive:
            return False
        low, high = self.interval
        return self.comparison.above_noise if self.work_ratio == 1 else low > 1 or high < 1

    @property
    def helps(self) -> bool:
        """Whether the fix makes the cell faster, by more than the noise."""
        return self.is_clear and self.speedup > 1
