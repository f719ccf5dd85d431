"""Predictions with their measured outcome, which make up the prediction history of a machine."""

from __future__ import annotations

from datetime import date

from gpulab.comparison.comparison import Comparison
from gpulab.replay.history import MeasuredPrediction


def measured_prediction(compared: Comparison, kind: str | None = None) -> MeasuredPrediction | None:
    """Return the prediction of a comparison with its measurement; None without a prediction or a valid measurement.

    A measurement disturbed by other programs, made on other hardware, or after an unknown change does not test a
    prediction.
    `kind`: for a prediction made by the caller, the names of the rewrites, joined by "+".
    """
    gain = compared.predicted
    devices = {side.run.source.device for side in (compared.before, compared.after)}
    if gain is None or not compared.prediction.is_of_change or not compared.conclusive or len(devices) > 1:
        return None
    return MeasuredPrediction(
        kind=kind or (compared.acted_on.rule if compared.acted_on else "unnamed"),
        step_ns=gain.step_ns,
        predicted_ns=gain.step_ns - gain.saved_ns,
        best_ns=gain.best_ns,
        worst_ns=gain.worst_ns,
        measured_ns=round(compared.measured_ns),
        device=devices.pop(),
        date=compared.after.run.source.date or date.today().isoformat(),
    )
