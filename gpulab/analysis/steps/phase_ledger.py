"""The ledger of a phase: where the time of its recorded parts goes, by the same parts as that of a training step."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.analysis.events.recorded_spans import pauses_of, windows_of
from gpulab.analysis.steps.ledger import Ledger, ledger_between
from gpulab.analysis.steps.phases import PhaseKind, RunPhase
from gpulab.intervals import intersect, subtract
from gpulab.run import Run

_MIN_RECORDED_NS, _MIN_RECORDED_FRAC = 10_000_000, 0.1  # one of both: less, at the edge of a window, says little


@dataclass(frozen=True, eq=False)
class PhaseLedger:
    """Exact partition of the recorded parts of a phase; the parts sum to `recorded_ns`."""

    phase: RunPhase
    ledger: Ledger

    @property
    def recorded_ns(self) -> int:
        """Time of the phase in which events were recorded."""
        return int(self.ledger.step_ns.sum())

    @property
    def largest(self) -> tuple[str, float]:
        """The label of the largest part, and its share of the recorded time, 0-1."""
        part = max(self.ledger.parts, key=lambda part: self.ledger.total_frac(part.key))
        return part.label, self.ledger.total_frac(part.key)


def phase_ledger(run: Run, phase: RunPhase) -> PhaseLedger | None:
    """Compute the ledger of a phase; None for pauses of the profiler, and if little or nothing of it was recorded.

    On a GPU, work that the host launched before the phase may run in its first part, and the last work after it.
    """
    recorded = intersect(phase.spans, subtract(windows_of(run), pauses_of(run)))
    enough_ns = min(_MIN_RECORDED_NS, _MIN_RECORDED_FRAC * phase.total_ns)
    if phase.kind is PhaseKind.PROFILER or not recorded.total_ns or recorded.total_ns < enough_ns:
        return None
    ledger = ledger_between(run, *recorded)
    return None if ledger is None else PhaseLedger(phase, ledger)
