"""Replay all ranks of a job together: each is swept until its next collective, which ends when all have arrived."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np

from gpulab.errors import RunError
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.job.job_graph import JobGraph
from gpulab.replay.sweep import Schedule, burst_median, rank_sweep


@dataclass(frozen=True, eq=False)
class JobSchedule:
    """The replay of a job."""

    job: JobGraph
    schedules: tuple[Schedule, ...]  # of each rank, on its own clock
    removed_ns: tuple[Floats, ...]  # per rank and interior step: the time that no other rank waits for
    arrival_ns: Floats  # collective x rank: when the rank arrives, on the clock of the first rank; NaN: not a member
    start_ns: Floats  # when the transfer of each collective starts, on that clock

    @property
    def wait_ns(self) -> Floats:
        """Return how long each rank waits for the others at each collective; NaN where it is not a member."""
        waits: Floats = np.maximum(self.start_ns[:, None] - self.arrival_ns, 0.0)
        return waits

    @property
    def rank_steps_ns(self) -> tuple[float, ...]:
        """Return the typical step of each rank."""
        return tuple(
            _typical_step_ns(schedule, removed)
            for schedule, removed in zip(self.schedules, self.removed_ns, strict=True)
        )

    @property
    def step_ns(self) -> float:
        """Return the typical step of the job: all ranks have about the same, as they wait for each other."""
        return float(np.median(self.rank_steps_ns))

    def mean_step_ns(self, every: int) -> float:
        """Return the mean step, over as many steps as make complete groups of this many."""
        pairs = zip(self.schedules, self.removed_ns, strict=True)
        return float(np.mean([_mean_step_ns(*pair, every) for pair in pairs]))


def _typical_step_ns(schedule: Schedule, removed_ns: Floats) -> float:
    burst = schedule.graph.steps.burst
    times = [burst_median(np.maximum(schedule.host_steps_ns - removed_ns, 0.0), burst)]
    if schedule.graph.on_gpu and len(schedule.device_end_ns):
        times.append(burst_median(np.maximum(schedule.device_steps_ns - removed_ns, 0.0), burst))
    return max(*times, *schedule.graph.limits_ns.values(), 0.0)


def _mean_step_ns(schedule: Schedule, removed_ns: Floats, every: int) -> float:
    """Return the mean of the steps, as many as make complete groups of `every` steps."""
    times = [schedule.host_steps_ns - removed_ns]
    if schedule.graph.on_gpu and len(schedule.device_end_ns):
        times.append(schedule.device_steps_ns - removed_ns)
    complete = len(removed_ns) // every * every or len(removed_ns)
    return max(*(float(np.maximum(ns, 0.0)[:complete].mean()) for ns in times), *schedule.graph.limits_ns.values(), 0.0)


@dataclass(eq=False)
class _RankSweep:
    """The sweep of one rank, which stops at its collectives."""

    graph: Graph
    order: Ints  # its collectives, in the order in which it launches them
    offset_ns: float  # of its clock
    sweep: Generator[float, float, Schedule]
    removed_ns: Floats
    position: int = 0
    schedule: Schedule | None = None

    def next_arrival(self, end_ns: float | None) -> float | None:
        """Go on from the end of a collective (on the clock of the job) to the next; return when the rank arrives."""
        try:
            local_ns = next(self.sweep) if end_ns is None else self.sweep.send(end_ns - self.offset_ns)
        except StopIteration as finished:
            self.schedule = finished.value
            return None
        return local_ns + self.offset_ns

    def be_excused(self, late_ns: float, op: int) -> None:
        """Let the rank arrive earlier by this time: from here on, its clock is that much behind."""
        self.offset_ns -= late_ns
        step = self.graph.step_of[self.graph.device.call[op]]
        if step >= 0:
            self.removed_ns[step] += late_ns


def joint_sweep(job: JobGraph) -> JobSchedule:
    """Replay all ranks. Raises RunError if they wait for each other in a circle."""
    joint, count = job.joint, len(job.graphs)
    sweeps = [_rank_sweep(job, rank) for rank in range(count)]
    members = (joint.op >= 0).sum(axis=1)
    arrivals = np.full((len(joint), count), np.nan)
    starts = np.full(len(joint), np.nan)
    arrived = np.zeros(len(joint), np.int64)
    runnable: list[tuple[int, float | None]] = [(rank, None) for rank in range(count)]
    while runnable:
        rank, end_ns = runnable.pop()
        side = sweeps[rank]
        at_ns = side.next_arrival(end_ns)
        if at_ns is None:
            continue
        index = int(side.order[side.position])
        side.position += 1
        arrivals[index, rank] = at_ns
        arrived[index] += 1
        if arrived[index] < members[index]:
            continue
        starts[index] = _start_ns(job, arrivals[index])
        for member in np.flatnonzero(joint.op[index] >= 0).tolist():
            late_ns = arrivals[index, member] - starts[index]
            if late_ns > 0:
                sweeps[member].be_excused(late_ns, int(joint.op[index, member]))
            runnable.append((member, float(starts[index] + joint.transfer_ns[index])))
    schedules = tuple(side.schedule for side in sweeps if side.schedule is not None)
    if len(schedules) < count:
        raise RunError(
            "The ranks cannot be replayed together.",
            why="they launch their collectives in different orders, so that they would wait for each other forever",
            fix="ask about one rank: gpulab.whatif(ranks[0], ...)",
        )
    return JobSchedule(job, schedules, tuple(side.removed_ns for side in sweeps), arrivals, starts)


def _start_ns(job: JobGraph, arrivals_ns: Floats) -> float:
    """Return when the transfer starts: when the last rank has arrived that the others wait for."""
    members = np.flatnonzero(~np.isnan(arrivals_ns))
    awaited = np.setdiff1d(members, job.excused)
    return job.awaited(arrivals_ns[awaited if len(awaited) else members])


def _rank_sweep(job: JobGraph, rank: int) -> _RankSweep:
    graph, ops = job.graphs[rank], job.joint.op[:, rank]
    members = np.flatnonzero(ops >= 0)
    order = members[np.argsort(ops[members], kind="stable")]
    return _RankSweep(
        graph=graph,
        order=order,
        offset_ns=float(job.offset_ns[rank]),
        sweep=rank_sweep(graph, ops[order]),
        removed_ns=np.zeros(len(graph.step_start_node)),
    )
