"""A predicted step, of a run or of a job: a likely value, a range and a bound, for an amount of work."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictedStep:
    """The typical step with changes applied: `floor_ns <= best_ns <= likely_ns <= worst_ns`."""

    step_ns: int  # without the changes
    likely_ns: int
    best_ns: int  # the 10th percentile of the possible values
    worst_ns: int  # the 90th percentile; it may be longer than `step_ns`
    floor_ns: int  # lower bound for any implementation of these changes
    grade: str  # the worst grade of its rewrites
    work_factor: float = 1.0  # samples per step relative to now: 4 for four times the batch

    @property
    def does_other_work(self) -> bool:
        """Whether a step has another number of samples than now, so that speed-ups are per sample."""
        return self.work_factor != 1

    @property
    def speedup(self) -> float:
        """Speed-up for the same work: present step time over the likely one, times the change in samples per step."""
        return self.work_factor * self.step_ns / self.likely_ns

    @property
    def best_speedup(self) -> float:
        """Speed-up at the short end of the range."""
        return self.work_factor * self.step_ns / self.best_ns

    @property
    def worst_speedup(self) -> float:
        """Speed-up at the long end of the range."""
        return self.work_factor * self.step_ns / self.worst_ns

    @property
    def bound(self) -> float:
        """Upper bound of the speed-up."""
        return self.work_factor * self.step_ns / self.floor_ns
