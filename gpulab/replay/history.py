"""Errors of earlier predictions on this machine, by kind; they widen the ranges of later predictions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

PRIOR_COUNT = 5.0  # prior: counts like this many earlier predictions without any error
COVERED_PERCENT = 80  # per cent of earlier errors that a range must cover


@dataclass(frozen=True)
class MeasuredPrediction:
    """A prediction and the measured result, in ns per step."""

    kind: str  # names of its rewrites, sorted and joined by "+", or the rule whose fix was applied
    step_ns: int  # the step time before the change
    predicted_ns: int
    best_ns: int
    worst_ns: int
    measured_ns: int
    device: str
    date: str  # ISO


@dataclass(frozen=True)
class PastError:
    """Error of earlier predictions of one kind."""

    spread: float = 0.0  # minimum half-width of a range, as a fraction of the predicted step
    count: int = 0


@dataclass(frozen=True)
class History:
    """Predictions whose results were measured."""

    measured: tuple[MeasuredPrediction, ...] = ()

    def error_of(self, kind: str) -> PastError:
        """Return the error of this kind of prediction; zero spread if none was measured yet."""
        measured = [each for each in self.measured if each.kind == kind]
        if not measured:
            return PastError()
        errors = [abs(float(np.log(each.measured_ns / each.predicted_ns))) for each in measured]
        trust = len(measured) / (len(measured) + PRIOR_COUNT)
        return PastError(trust * float(np.percentile(errors, COVERED_PERCENT)), len(measured))


NO_HISTORY = History()
