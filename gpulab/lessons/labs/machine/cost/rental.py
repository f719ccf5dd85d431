"""Rental prices of one provider on one day, and decisions that follow from prices: which GPU, how many, which cores."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab.hardware.prices import RENTAL_PRICES, RENTAL_SOURCE

if TYPE_CHECKING:
    from gpulab.virtual.memory_fit.fitting import GpuComparison
    from gpulab.virtual.session import VirtualGpu

PRICE_SOURCE = RENTAL_SOURCE
PRICES_PER_H = dict(RENTAL_PRICES)  # dollars
HOUR_S = 3600.0

Condition = Callable[[float, float, float], bool]  # speed-up, price of a GPU, price of the rest of the job


def gpu_with_typical_cpu(gpu: str) -> VirtualGpu:
    """Return a virtual GPU in a machine with a typical server CPU, as it is rented, in place of this machine's CPU."""
    from gpulab.virtual.host.costs import HostCosts
    from gpulab.virtual.session import VirtualGpu

    return VirtualGpu(gpu, f"virtual {gpu}", add_to_runs=False, host=HostCosts.reference())


def job_cost(gpus: int, speedup: float, gpu_per_h: float, other_per_h: float, hours: float) -> float:
    """Return the cost of a job that takes `hours` on one GPU.

    `speedup`: how many times as fast it is on all GPUs together. `other_per_h`: what an hour costs besides the GPUs,
    such as the host, or the people who wait.
    """
    return (gpus * gpu_per_h + other_per_h) * hours / speedup


@dataclass(frozen=True, kw_only=True)
class ConditionCheck:
    """How often a condition for a second GPU agrees with the cost of both jobs."""

    cases: int
    wrong: int
    paying: int  # cases in which the second GPU lowers the cost


def check_condition(condition: Condition) -> ConditionCheck:
    """Compare a condition with the costs of a job on one GPU and on two, for many speed-ups and prices."""
    speedups = [1 + step / 20 for step in range(1, 21)]
    wrong = paying = cases = 0
    for speedup, gpu, other in itertools.product(speedups, (0.37, 1.59, 6.79), (0.0, 0.9, 4.1, 27.0)):
        saving = job_cost(1, 1.0, gpu, other, 10) - job_cost(2, speedup, gpu, other, 10)
        if abs(saving) < 1e-9:
            continue
        cases, paying = cases + 1, paying + (saving > 0)
        wrong += condition(speedup, gpu, other) != (saving > 0)
    return ConditionCheck(cases=cases, wrong=wrong, paying=paying)


@dataclass(frozen=True, kw_only=True)
class RankedGpu:
    """One GPU of a comparison: samples per second and their range, dollars per hour, dollars per epoch."""

    name: str
    per_s: float
    per_s_range: tuple[float, float]
    per_h: float
    epoch_cost: float
    limit: str


def rank_gpus(comparison: GpuComparison, cost: Callable[[float, float], float]) -> tuple[RankedGpu, ...]:
    """Return the GPUs of a comparison, the fastest first; `cost` calculates an epoch from a rate and a price."""
    return tuple(
        RankedGpu(
            name=candidate.estimate.spec.name,
            per_s=candidate.estimate.per_s,
            per_s_range=candidate.estimate.per_s_range or (candidate.estimate.per_s,) * 2,
            per_h=candidate.price,
            epoch_cost=cost(candidate.estimate.per_s, candidate.price),
            limit=str(candidate.estimate.bottleneck),
        )
        for candidate in comparison.candidates
        if candidate.price is not None
    )


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """A plan for the job of the exercise."""

    gpu: str = "h100"
    gpus: int = 1
    workers: int = 4  # per GPU
    decode_once: bool = False

    def __post_init__(self) -> None:
        if self.gpu not in GPU_EPOCH_S:
            raise ValueError(f"gpu is one of {', '.join(GPU_EPOCH_S)}, not {self.gpu!r}")
        if not (isinstance(self.gpus, int) and isinstance(self.workers, int)):
            raise ValueError(f"gpus and workers are whole numbers, not {self.gpus!r} and {self.workers!r}")
        if self.gpus < 1 or self.workers < 1:
            raise ValueError("a plan needs at least one GPU, and one worker for each")

    @property
    def epoch_s(self) -> float:
        """Seconds per epoch: the slower one of the GPUs and the loader."""
        speedup = self.gpus * math.pow(SCALING, math.log2(self.gpus))
        compute_s = GPU_EPOCH_S[self.gpu] / speedup
        cpu_s = DECODED_CPU_S if self.decode_once else EPOCH_CPU_S
        return max(compute_s, cpu_s / (min(self.workers, CORES_PER_GPU) * self.gpus))

    @property
    def hours(self) -> float:
        """Hours of all epochs."""
        return EPOCHS * self.epoch_s / HOUR_S

    @property
    def cost(self) -> float:
        """Dollars for all epochs."""
        return self.hours * self.gpus * PRICES_PER_H[self.gpu]

    @property
    def in_time(self) -> bool:
        """Whether the job ends before the deadline."""
        return self.hours <= DEADLINE_H


EPOCHS, DEADLINE_H = 100, 24.0
CORES_PER_GPU = 8
EPOCH_CPU_S, DECODED_CPU_S = 10_000.0, 1_250.0  # CPU time of the loader per epoch
SCALING = 0.9  # share of the ideal speed-up that remains whenever the number of GPUs doubles
# Seconds per epoch of 5 million samples, from the rates that virtual GPUs gave for the network of 19.4 (batch 128).
GPU_EPOCH_S = dict(zip(RENTAL_PRICES, (1040.0, 620.0, 323.0, 304.0, 304.0), strict=True))
