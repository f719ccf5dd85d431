"""A queue of jobs for a pool of GPUs, event by event: who starts when, and how much of the GPUs is reserved and used.

All times are whole minutes. A pool has no nodes: any free GPUs do. A job of less than one GPU shares one with others,
and is assumed to run as long as on a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from gpulab.wording import percent

POOL_GPUS = 16
_SLACK = 1e-9


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job of the queue."""

    name: str
    submit_min: int
    gpus: float  # requested: a whole number, or less than one
    share: float  # of a GPU that it uses, for each GPU that its owner asked for
    minutes: int
    limit_min: int  # its time limit, which the scheduler sees; not less than `minutes`

    @property
    def used_gpu_min(self) -> float:
        """GPU-minutes of work."""
        return math.ceil(self.gpus) * self.share * self.minutes


@dataclass(frozen=True, kw_only=True)
class StartedJob:
    """A job on its GPUs: the numbers of the GPUs, and what it has of each."""

    job: QueuedJob
    start_min: int
    gpu_numbers: tuple[int, ...]

    @property
    def amount(self) -> float:
        """What it has of each of its GPUs."""
        return min(self.job.gpus, 1.0)

    @property
    def end_min(self) -> int:
        """When it ends."""
        return self.start_min + self.job.minutes

    @property
    def latest_end_min(self) -> int:
        """When it ends at the latest: what the scheduler can know."""
        return self.start_min + self.job.limit_min

    @property
    def wait_min(self) -> int:
        """How long it waited."""
        return self.start_min - self.job.submit_min


def find_gpus(free: Sequence[float], gpus: float) -> tuple[int, ...] | None:
    """Return the numbers of GPUs for a request, given what is free of each; None if there are not enough.

    A request of less than one GPU takes the GPU where the least remains free.
    """
    if gpus < 1:
        candidates = [number for number, amount in enumerate(free) if amount >= gpus - _SLACK]
        return (min(candidates, key=lambda number: free[number]),) if candidates else None
    candidates = [number for number, amount in enumerate(free) if amount >= 1 - _SLACK]
    return tuple(candidates[: int(gpus)]) if len(candidates) >= gpus else None


@dataclass
class GpuPool:
    """A pool of GPUs and the jobs that run on them."""

    count: int = POOL_GPUS
    now_min: int = 0
    running: list[StartedJob] = field(default_factory=list)

    def free(self) -> list[float]:
        """Return what is free of each GPU."""
        amounts = [1.0] * self.count
        for started in self.running:
            for number in started.gpu_numbers:
                amounts[number] -= started.amount
        return amounts

    def fits(self, job: QueuedJob) -> bool:
        """Return whether there is room for a job now."""
        return find_gpus(self.free(), job.gpus) is not None

    def start(self, job: QueuedJob) -> StartedJob:
        """Start a job for which there is room."""
        numbers = find_gpus(self.free(), job.gpus)
        if numbers is None:
            raise ValueError(f"no room for {job.name}")
        started = StartedJob(job=job, start_min=self.now_min, gpu_numbers=numbers)
        self.running.append(started)
        return started

    def planned_start(self, job: QueuedJob, also: QueuedJob | None = None) -> float:
        """Return when there is room for a job at the latest, if each running job runs until its time limit.

        `also`: a job that would start now, before it; infinity if there is no room for that one.
        """
        running, free = list(self.running), self.free()
        if also is not None:
            numbers = find_gpus(free, also.gpus)
            if numbers is None:
                return math.inf
            running.append(StartedJob(job=also, start_min=self.now_min, gpu_numbers=numbers))
            for number in numbers:
                free[number] -= running[-1].amount
        at_min: float = self.now_min
        for started in sorted(running, key=lambda one: one.latest_end_min):
            if find_gpus(free, job.gpus) is not None:
                return at_min
            at_min = started.latest_end_min
            for number in started.gpu_numbers:
                free[number] += started.amount
        return at_min if find_gpus(free, job.gpus) is not None else math.inf


@dataclass(frozen=True, kw_only=True)
class QueueOutcome:
    """What became of all jobs of a queue."""

    started: tuple[StartedJob, ...]
    gpus: int
    late_heads: int  # jobs that started later than planned when they became first in the queue

    @property
    def end_min(self) -> int:
        """When the last job ends."""
        return max(one.end_min for one in self.started)

    @property
    def mean_wait_min(self) -> float:
        """Mean waiting time in minutes."""
        return float(np.mean([one.wait_min for one in self.started]))

    @property
    def longest_wait_min(self) -> int:
        """The longest waiting time."""
        return max(one.wait_min for one in self.started)

    @property
    def reserved_frac(self) -> float:
        """Share of the GPU-minutes until the last end that was reserved."""
        reserved = sum(one.amount * len(one.gpu_numbers) * one.job.minutes for one in self.started)
        return reserved / (self.gpus * self.end_min)

    @property
    def used_frac(self) -> float:
        """Share of the GPU-minutes until the last end in which a GPU worked."""
        return sum(one.job.used_gpu_min for one in self.started) / (self.gpus * self.end_min)

    def wait_of_min(self, gpus: int) -> float:
        """Return the mean waiting time of jobs that requested this many GPUs, or more."""
        waits = [one.wait_min for one in self.started if one.job.gpus >= gpus]
        return float(np.mean(waits))

    @property
    def cells(self) -> tuple[str, ...]:
        """The outcome as cells of a table: waits in minutes and hours, shares in %."""
        waits = f"{self.mean_wait_min:,.0f}", f"{self.wait_of_min(8):,.0f}", f"{self.longest_wait_min / 60:.1f}"
        return (*waits, percent(self.reserved_frac), percent(self.used_frac), f"{self.end_min / 60:.0f}")


OUTCOME_HEADER = ("", "mean wait, min", "of 8-GPU jobs", "longest, h", "reserved", "used", "all done after, h")

MayOvertake = Callable[[GpuPool, QueuedJob, QueuedJob], bool]
Order = Callable[[QueuedJob, int], float]


def by_submission(job: QueuedJob, now_min: int) -> float:
    """Order a queue by submission."""
    return job.submit_min


def run_queue(
    jobs: Sequence[QueuedJob], may_overtake: MayOvertake, *, order: Order = by_submission, gpus: int = POOL_GPUS
) -> QueueOutcome:
    """Run a queue until all jobs have ended.

    `may_overtake(pool, first, job)`: whether a job, for which there is room, may start before the first of the queue,
    for which there is none. `order(job, now_min)`: the first of the queue has the smallest number.
    """
    pool, outcomes, planned = GpuPool(gpus), list[StartedJob](), dict[str, float]()
    waiting: list[QueuedJob] = []
    arrivals = sorted(jobs, key=lambda job: job.submit_min)
    while arrivals or waiting or pool.running:
        events = [arrivals[0].submit_min] if arrivals else []
        pool.now_min = min([*events, *(one.end_min for one in pool.running)])
        pool.running = [one for one in pool.running if one.end_min > pool.now_min]
        while arrivals and arrivals[0].submit_min <= pool.now_min:
            waiting.append(arrivals.pop(0))
        waiting.sort(key=lambda job: (order(job, pool.now_min), job.submit_min, job.name))
        outcomes += _start_jobs(pool, waiting, may_overtake, planned)
    late = sum(one.start_min > planned.get(one.job.name, math.inf) for one in outcomes)
    return QueueOutcome(started=tuple(outcomes), gpus=gpus, late_heads=late)


def _start_jobs(
    pool: GpuPool, waiting: list[QueuedJob], may_overtake: MayOvertake, planned: dict[str, float]
) -> list[StartedJob]:
    """Start what can start now, and take it out of the queue."""
    started: list[StartedJob] = []
    while waiting and pool.fits(waiting[0]):
        started.append(pool.start(waiting.pop(0)))
    if waiting:
        first = waiting[0]
        planned.setdefault(first.name, pool.planned_start(first))
        for job in waiting[1:]:
            if pool.fits(job) and may_overtake(pool, first, job):
                started.append(pool.start(job))
                waiting.remove(job)
    return started


@cache
def generated_jobs(count: int = 240, seed: int = 1) -> tuple[QueuedJob, ...]:
    """Return a synthetic list of jobs: most are short and ask for one GPU, and use a part of it; a few need eight."""
    generator = np.random.default_rng(seed)
    submit_min = np.cumsum(generator.exponential(19, count)).astype(int)
    sizes = generator.choice([1, 2, 4, 8], size=count, p=[0.72, 0.12, 0.09, 0.07])
    minutes = np.clip(generator.lognormal(math.log(60), 1.3, count), 3, 1800).astype(int)
    limits = np.ceil(minutes * generator.uniform(1.1, 3.0, count) / 60).astype(int) * 60
    shares = np.where(sizes == 1, generator.beta(1.2, 2.2, count), generator.uniform(0.6, 0.95, count))
    return tuple(
        QueuedJob(
            name=f"job {number:03}",
            submit_min=int(submit_min[number]),
            gpus=int(sizes[number]),
            share=round(float(np.clip(shares[number], 0.02, 1)), 2),
            minutes=int(minutes[number]),
            limit_min=int(limits[number]),
        )
        for number in range(count)
    )


def with_requests(jobs: Sequence[QueuedJob], request: Callable[[QueuedJob], float]) -> list[QueuedJob]:
    """Return the jobs with other requests."""
    return [replace(job, gpus=request(job)) for job in jobs]


def with_limits(jobs: Sequence[QueuedJob], limit_min: int) -> list[QueuedJob]:
    """Return the jobs with the same time limit for all of them."""
    return [replace(job, limit_min=limit_min) for job in jobs]
