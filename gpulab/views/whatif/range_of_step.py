"""The range of a predicted step, as text and as a bar; of a run as of a job."""

from __future__ import annotations

from gpulab.replay.predicted_step import PredictedStep
from gpulab.views.report.headline import speedups_text
from gpulab.views.sheet.sheet import Expectation
from gpulab.wording import ratio, scale


def predicted_text(step: PredictedStep) -> str:
    """Return the present step, the range of the predicted one, and of the speed-up: "59.6 -> 38.6-46.9 ms (...)"."""
    unit = scale(step.step_ns)
    speedups = speedups_text(step.worst_speedup, step.best_speedup)
    work = f" for {ratio(step.work_factor)} the samples" if step.does_other_work else ""
    times = f"{unit.number(step.step_ns)} -> {unit.range(step.best_ns, step.worst_ns)} {unit.unit}{work}"
    return f"{times} ({speedups}{per_sample(step)})"


def per_sample(step: PredictedStep) -> str:
    """Return " per sample" for a speed-up that is per sample, because a step has another number of samples than now."""
    return " per sample" if step.does_other_work else ""


def expectation_of(step: PredictedStep) -> Expectation:
    """Return the range and the floor as fractions of the longest step."""
    longest_ns = max(step.step_ns, step.worst_ns)
    return Expectation(
        best_frac=step.best_ns / longest_ns,
        worst_frac=step.worst_ns / longest_ns,
        floor_frac=step.floor_ns / longest_ns,
    )
