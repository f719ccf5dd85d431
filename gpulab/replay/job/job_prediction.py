"""Predict the step time of a whole job with several changes: all ranks are replayed together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gpulab.errors import RunError
from gpulab.replay.graph.graph import Floats
from gpulab.replay.job.job_graph import RECORD_ALL, JobGraph, build_job_graph
from gpulab.replay.job.job_rewrite import JobRewrite
from gpulab.replay.job.joint_sweep import JobSchedule, joint_sweep
from gpulab.replay.job.shared_machine import SharedMachine, shared_machine
from gpulab.replay.predicted_step import PredictedStep
from gpulab.replay.prediction import BEST_CASE, NOISE_CPU, NOISE_GPU, draw_unknowns, with_warm_caches
from gpulab.replay.rewrite import GRADES, MIDDLE, Draw, Value, joint_bound_label
from gpulab.run import Run
from gpulab.wording import percent

MAX_REPLAY_ERROR = 0.05  # of the step of a job, replayed without changes
SAMPLES = 12


@dataclass(frozen=True)
class JobChange:
    """A change of a job with its value."""

    rewrite: JobRewrite
    value: Value

    def __str__(self) -> str:
        return self.rewrite.name if self.value is True else f"{self.rewrite.name}={self.value}"


@dataclass(frozen=True, eq=False)
class JobModel:
    """The ranks of a job, prepared for predictions."""

    job: JobGraph

    @cached_property
    def schedule(self) -> JobSchedule:
        """The unchanged job, replayed."""
        return joint_sweep(self.job)

    @property
    def step_ns(self) -> int:
        """The typical step, without the profiler if that was measured: the median over ranks."""
        return round(float(np.median([graph.steps.step_ns or 0 for graph in self.job.graphs])))

    @cached_property
    def machine(self) -> SharedMachine:
        """How ranks without a GPU share the cores."""
        return shared_machine(self.job)

    @property
    def replay_error(self) -> float:
        """Error of the replay without changes, as a fraction of the step."""
        return self.schedule.step_ns / max(1, self.step_ns) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class JobPrediction(PredictedStep):
    """The typical step of a job with all changes applied."""

    model: JobModel
    changes: tuple[JobChange, ...]
    schedule: JobSchedule  # with all unknowns in the middle

    @property
    def bound_label(self) -> str:
        """What the bound assumes, a noun phrase."""
        return joint_bound_label([change.rewrite for change in self.changes])


def job_model(runs: Sequence[Run]) -> JobModel:
    """Prepare the ranks of a job for predictions.

    Raises RunError if they cannot be matched, or if the replay without changes does not reproduce the recording.
    """
    model = JobModel(build_job_graph(runs))
    if abs(model.replay_error) > MAX_REPLAY_ERROR:
        direction = "longer" if model.replay_error > 0 else "shorter"
        raise RunError(
            "Nothing can be predicted from these ranks.",
            why=f"the replay does not reproduce the recording: its step is {percent(abs(model.replay_error), 1)} "
            f"{direction}",
            fix=f"{RECORD_ALL}, and no other programs running",
        )
    return model


def predict_job(model: JobModel, changes: Sequence[JobChange]) -> JobPrediction:
    """Replay the job with these changes. Raises RunError if one of them does not apply to it."""
    _check(model.job, changes)
    middle = joint_sweep(_applied(model.job, changes, MIDDLE))
    likely_ns = _scaled_ns(model, middle, MIDDLE)
    draws = draw_unknowns(SAMPLES)
    drawn_ns = [_scaled_ns(model, joint_sweep(_applied(model.job, changes, draw)), draw) for draw in draws]
    floor = model.job
    for change in changes:
        floor = change.rewrite.best_case(floor, change.value)
    floor_ns = min(likely_ns, *drawn_ns, _scaled_ns(model, joint_sweep(floor), BEST_CASE))
    grade = max((change.rewrite.grade for change in changes), default="A")
    noise = NOISE_GPU if model.job.graphs[0].on_gpu else NOISE_CPU
    margin = GRADES[grade][1] * min(abs(model.step_ns - likely_ns), 2 * likely_ns) + noise * likely_ns
    margin += abs(model.replay_error) * likely_ns
    slowest_ns = likely_ns + max(margin, _contention_ns(model, middle, likely_ns))
    low, high = np.percentile(drawn_ns, (10, 90))
    factors = [each.rewrite.work_factor(model.job, each.value) for each in changes if each.rewrite.work_factor]
    return JobPrediction(
        model=model,
        changes=tuple(changes),
        step_ns=model.step_ns,
        likely_ns=max(1, round(likely_ns)),
        best_ns=max(1, round(max(floor_ns, min(float(low), likely_ns - margin)))),
        worst_ns=max(1, round(max(float(high), min(slowest_ns, max(model.step_ns, likely_ns + margin))))),
        floor_ns=max(1, round(floor_ns)),
        grade=grade,
        work_factor=float(np.prod(factors)),
        schedule=middle,
    )


def _contention_ns(model: JobModel, schedule: JobSchedule, likely_ns: float) -> float:
    """Return how much longer than likely a step can be because ranks on one host compute at the same time.

    While one rank waited for another, the other had the host's caches, memory bandwidth and the second thread of its
    core to itself. Without that wait, both compute at once, which can take up to twice as long. And a step takes as
    long as the cores need for the operators of all ranks. With more ranks than cores, no saving is certain.
    """
    graphs = model.job.graphs
    hosts = {graph.run.facts.get("host") for graph in graphs}
    if graphs[0].on_gpu or len(hosts) == len(graphs) > 1:
        return 0.0
    saved_ns = float((_waits_ns(model.schedule) - _waits_ns(schedule)).max())
    if len(graphs) > model.machine.cores:  # what one rank does not use, the others do
        return max(0.0, model.step_ns - likely_ns)
    coinciding_ns = min(max(0.0, saved_ns), model.machine.alone_ns, likely_ns)
    return max(coinciding_ns, model.machine.capacity_ns - likely_ns)


def _waits_ns(schedule: JobSchedule) -> Floats:
    """Return how long each rank waits for others per step."""
    steps = max(1, min(len(removed) for removed in schedule.removed_ns))
    waits: Floats = np.nansum(schedule.wait_ns, axis=0) / steps
    return waits


def _applied(job: JobGraph, changes: Sequence[JobChange], draw: Draw) -> JobGraph:
    for change in changes:
        job = change.rewrite.edit(job, change.value, draw)
    return job


def _scaled_ns(model: JobModel, schedule: JobSchedule, draw: Draw) -> float:
    """Return the typical step on the scale of the un-profiled step, with the effect of caches on a CPU."""
    every = schedule.job.synced_every
    if every == 1:
        step_ns = model.step_ns * schedule.step_ns / max(1.0, model.schedule.step_ns)
    else:  # steps with and without an exchange differ, so there is no typical one
        step_ns = model.step_ns * schedule.mean_step_ns(every) / max(1.0, model.schedule.mean_step_ns(every))
    if model.job.graphs[0].on_gpu or step_ns >= model.step_ns:
        return step_ns
    return with_warm_caches(step_ns, model.step_ns, draw)


def _check(job: JobGraph, changes: Sequence[JobChange]) -> None:
    for position, change in enumerate(changes):
        reason = change.rewrite.refusal_reason(job, change.value)
        if reason is not None:
            raise RunError(
                f"{', '.join(map(str, changes))} cannot be predicted from these ranks.",
                why=f"{change}: {reason}" if len(changes) > 1 else reason,
                fix="leave this change out, or record a job to which it applies",
            )
        if position + 1 < len(changes):
            job = change.rewrite.edit(job, change.value, MIDDLE)
