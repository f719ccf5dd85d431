"""The result of a prediction that a comparison measured; the history of a machine consists of these."""

from __future__ import annotations

from datetime import date

from gpulab.comparison.comparison import Comparison
from gpulab.replay.history import MeasuredPrediction


def outcome(compared: Comparison, kind: str | None = None) -> MeasuredPrediction | None:
    """The prediction of a comparison beside its measurement; None without one, or where the measurement is no judge.

    A measurement disturbed by other programs, or made on other hardware, says nothing about a prediction.
    `kind`: what was predicted, where the caller predicted it: the names of the rewrites, joined by "+".
    """
    gain = compared.predicted
    devices = {side.run.source.device for side in (compared.before, compared.after)}
    if gain is None or compared.inside is None or not compared.judged or len(devices) > 1:
        return None
    return MeasuredPrediction(
        kind=kind or (compared.acted_on.rule if compared.acted_on else "unnamed"),
        step_ns=gain.step_ns,
        predicted_ns=gain.step_ns - gain.saves_ns,
        best_ns=gain.best_ns,
        worst_ns=gain.worst_ns,
        measured_ns=round(compared.measured_ns),
        device=devices.pop(),
        date=compared.after.run.source.date or date.today().isoformat(),
    )
