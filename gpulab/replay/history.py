"""What earlier predictions on this machine taught: how far each kind was off, by which later ones are wider."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SHRUNK = 5.0  # so many predictions without any error are believed before the first was measured
COVERED = 80  # per cent of earlier errors that a range is to hold


@dataclass(frozen=True)
class MeasuredPrediction:
    """A prediction beside the measured result, in ns of a step."""

    kind: str  # the names of its rewrites, sorted and joined by "+", or the rule whose fix was applied
    step_ns: int  # the step that the prediction starts from
    predicted_ns: int
    best_ns: int
    worst_ns: int
    measured_ns: int
    device: str
    date: str  # ISO


@dataclass(frozen=True)
class Learned:
    """How far predictions of a kind were off."""

    spread: float = 0.0  # half-width that a range must have at the least, as a share of the predicted step
    count: int = 0


@dataclass(frozen=True)
class History:
    """Predictions that were measured."""

    past: tuple[MeasuredPrediction, ...] = ()

    def of(self, kind: str) -> Learned:
        """What is known of this kind; nothing where none was measured yet."""
        mine = [each for each in self.past if each.kind == kind]
        if not mine:
            return Learned()
        errors = [abs(float(np.log(each.measured_ns / each.predicted_ns))) for each in mine]
        trust = len(mine) / (len(mine) + SHRUNK)
        return Learned(trust * float(np.percentile(errors, COVERED)), len(mine))


NO_HISTORY = History()
