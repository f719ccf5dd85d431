"""The gain of a change of a job, by a replay of all of its ranks."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.errors import RunError
from gpulab.replay.job.job_prediction import JobChange, job_model, predict_job
from gpulab.rules.engine.finding import Gain
from gpulab.run import Run

_MAX_RANKS, _MAX_EVENTS = 16, 500_000  # a replay of more takes longer than the rest of a report


def replayed_gain(runs: Sequence[Run], change: JobChange, basis: str) -> Gain | None:
    """Return the gain by a replay of all ranks together; None if they are too many, or cannot be replayed."""
    if len(runs) > _MAX_RANKS or sum(len(run.event_rows) for run in runs) > _MAX_EVENTS:
        return None
    try:
        prediction = predict_job(job_model(runs), (change,))
    except RunError:  # the replay of a rank does not reproduce its recording, for example
        return None
    return Gain(
        step_ns=prediction.step_ns,
        best_ns=min(prediction.best_ns, prediction.step_ns),
        worst_ns=prediction.worst_ns,
        floor_ns=min(prediction.floor_ns, prediction.step_ns),
        basis=basis,
        floor_assumes=prediction.bound_label,
    )
