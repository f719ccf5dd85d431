"""A model of seven small jobs on one GPU: one after the other, time-sliced, with MPS, on MIG instances, and as vGPUs.

Each job alternates between work on its own core and a kernel. The assumptions are constants: a kernel that is alone
takes KERNEL_MS and occupies SM_SHARE of the multiprocessors; one job now and then runs a kernel of BURST_MS that could
occupy all of them. Kernels that run at the same time share multiprocessors in proportion, and neither memory bandwidth
nor caches: the model is kind to MPS. A tick is 0.1 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from gpulab.errors import GpulabError
from gpulab.wording import duration

JOBS, STEPS = 7, 150
HOST_MS, KERNEL_MS = 10.0, 1.0
SM_SHARE = 0.12  # of the multiprocessors, which a small kernel occupies
BURST_MS, BURST_EVERY = 30.0, 10  # the long kernels of the last job: every so many steps
SLICE_MS, SWITCH_MS = 2.0, 0.2  # of time slicing
INSTANCE_SHARE = 16 / 132  # multiprocessors of a 1g.10gb instance of an H100 SXM

TICK_MS = 0.1
LIMIT_MS = 20_000.0  # several times what the slowest sharing needs
MODES = ("one after the other", "time slicing", "MPS", "MIG")


@dataclass
class _SharingJob:
    host_ticks: list[int]  # before each kernel
    kernel_ticks: list[int]
    shares: list[float]
    step: int = 0
    host_left: int = 0
    kernel_left: float = 0.0
    ready_tick: int = 0
    end_tick: int = 0
    waits: list[int] = field(default_factory=list)  # ticks from the launch of a kernel to its end

    @property
    def is_over(self) -> bool:
        return self.step >= len(self.host_ticks)

    @property
    def wants_gpu(self) -> bool:
        return not self.is_over and self.host_left == 0

    def begin_step(self) -> None:
        if not self.is_over:
            self.host_left, self.kernel_left = self.host_ticks[self.step], float(self.kernel_ticks[self.step])

    def compute_on_host(self, tick: int) -> None:
        self.host_left -= 1
        if self.host_left == 0:
            self.ready_tick = tick

    def run_kernel(self, tick: int, ticks: float) -> None:
        self.kernel_left -= ticks
        if self.kernel_left <= 1e-9:
            self.waits.append(tick - self.ready_tick)
            self.step += 1
            self.end_tick = tick
            self.begin_step()


@dataclass(frozen=True, kw_only=True)
class SharingOutcome:
    """How long all jobs took, and the times of the kernels of the six steady jobs, from launch to end."""

    total_ms: float
    steady_ms: float  # until the last of the six steady jobs ended
    kernel_ms: tuple[float, ...]

    @property
    def median_ms(self) -> float:
        """The median time of a kernel."""
        return float(np.median(self.kernel_ms))

    @property
    def p99_ms(self) -> float:
        """The time that 99 % of the kernels do not exceed."""
        return float(np.quantile(self.kernel_ms, 0.99))

    @property
    def longest_ms(self) -> float:
        """The longest time of a kernel."""
        return max(self.kernel_ms)


@cache
def share_gpu(mode: str, seed: int = 0) -> SharingOutcome:
    """Run the seven jobs in one of MODES."""
    jobs = _generated_sharing_jobs(seed)
    turns = [[job] for job in jobs] if mode == MODES[0] else [jobs]
    end_tick = 0
    for together in turns:
        end_tick = _run_together(together, mode, end_tick)
    return _outcome(jobs, end_tick)


def share_in_all_modes() -> Mapping[str, SharingOutcome]:
    """Run the seven jobs in each mode."""
    return {mode: share_gpu(mode) for mode in MODES}


def share_vgpus(owner_at: Callable[[float], float | None], machines: int = JOBS, seed: int = 0) -> SharingOutcome:
    """Run the first jobs, each in a virtual machine with a vGPU; six machines are the six steady jobs.

    `owner_at(now_ms)` returns the number of the machine, from 0, that alone may use the GPU at this time: a fixed
    share. None: nobody owns it, and the machines that wait take turns (best effort). Raises GpulabError if a machine
    never gets the GPU.
    """
    jobs = _generated_sharing_jobs(seed)[:machines]
    for job in jobs:
        job.begin_step()
    tick, turn, slot = 0, _Turn(), _Slot()
    while not all(job.is_over for job in jobs):
        tick += 1
        if tick * TICK_MS > LIMIT_MS:
            late = next(number for number, job in enumerate(jobs) if not job.is_over)
            raise GpulabError(
                f"Machine {late} is not done after {duration(LIMIT_MS * 1e6)}.",
                why="it hardly ever owns the GPU",
                fix=f"owner_at must return each number from 0 to {JOBS - 1} in turn",
            )
        computing = [job for job in jobs if not job.is_over and job.host_left > 0]
        owner = owner_at((tick - 0.5) * TICK_MS)  # in the middle of the tick, never between two slots
        if owner is None:
            turn.run([job for job in jobs if job.wants_gpu], tick)
        else:
            slot.run(jobs, int(owner), tick)
        for job in computing:
            job.compute_on_host(tick)
    return _outcome(jobs, tick)


def _outcome(jobs: Sequence[_SharingJob], end_tick: int) -> SharingOutcome:
    steady = jobs[: JOBS - 1]
    return SharingOutcome(
        total_ms=end_tick * TICK_MS,
        steady_ms=max(job.end_tick for job in steady) * TICK_MS,
        kernel_ms=tuple(ticks * TICK_MS for job in steady for ticks in job.waits),
    )


def _ticks(milliseconds: float) -> int:
    return max(1, round(milliseconds / TICK_MS))


def _generated_sharing_jobs(seed: int) -> list[_SharingJob]:
    generator = np.random.default_rng(seed)
    jobs = []
    for number in range(JOBS):
        host = [_ticks(HOST_MS * factor) for factor in generator.uniform(0.6, 1.4, STEPS)]
        bursts = [number == JOBS - 1 and step % BURST_EVERY == BURST_EVERY - 1 for step in range(STEPS)]
        kernels = [_ticks(BURST_MS if burst else KERNEL_MS) for burst in bursts]
        jobs.append(_SharingJob(host, kernels, [1.0 if burst else SM_SHARE for burst in bursts]))
    return jobs


def _run_together(jobs: Sequence[_SharingJob], mode: str, begin_tick: int) -> int:
    """Run jobs at the same time; return the tick at which the last one ends."""
    for job in jobs:
        job.begin_step()
    tick, turn = begin_tick, _Turn()
    while not all(job.is_over for job in jobs):
        tick += 1
        active = [job for job in jobs if job.wants_gpu]
        computing = [job for job in jobs if not job.is_over and job.host_left > 0]
        if mode == "time slicing":
            turn.run(active, tick)
        else:
            for job, rate in _rates(active, mode):
                job.run_kernel(tick, rate)
        for job in computing:
            job.compute_on_host(tick)
    return tick


def _rates(active: Sequence[_SharingJob], mode: str) -> list[tuple[_SharingJob, float]]:
    """Return how fast each kernel runs, compared with a GPU of its own."""
    if mode == "MIG":
        return [(job, min(1.0, INSTANCE_SHARE / job.shares[job.step])) for job in active]
    demand = sum(job.shares[job.step] for job in active)
    return [(job, 1 / max(1.0, demand)) for job in active]


@dataclass
class _Turn:
    """Whose turn it is on a time-sliced GPU."""

    owner: _SharingJob | None = None
    queue: list[_SharingJob] = field(default_factory=list)
    slice_left: int = 0
    switch_left: int = 0

    def run(self, active: Sequence[_SharingJob], tick: int) -> None:
        """Give a tick to the owner, or to the next one in the queue."""
        self.queue += [job for job in active if job is not self.owner and job not in self.queue]
        if self.owner is not None and (not self.owner.wants_gpu or (self.slice_left == 0 and self.queue)):
            if self.owner.wants_gpu:
                self.queue.append(self.owner)
            self.owner = None
        if self.owner is None and self.queue:
            self.owner = self.queue.pop(0)
            self.slice_left, self.switch_left = _ticks(SLICE_MS), _ticks(SWITCH_MS)
        if self.owner is None:
            return
        if self.switch_left:
            self.switch_left -= 1
            return
        if self.slice_left == 0:
            self.slice_left = _ticks(SLICE_MS)  # nobody else waits
        self.slice_left -= 1
        owner, step = self.owner, self.owner.step
        owner.run_kernel(tick, 1.0)
        if owner.step != step:
            self.owner = None


@dataclass
class _Slot:
    """The machine that owns a GPU with fixed shares, and the rest of the switch to it."""

    owner: int = -1
    switch_left: int = 0

    def run(self, jobs: Sequence[_SharingJob], owner: int, tick: int) -> None:
        """Give a tick to the owner; if it has no kernel to run, the GPU stays idle."""
        if owner != self.owner:
            self.owner, self.switch_left = owner, _ticks(SWITCH_MS)
        if self.switch_left:
            self.switch_left -= 1
        elif 0 <= owner < len(jobs) and jobs[owner].wants_gpu:
            jobs[owner].run_kernel(tick, 1.0)
