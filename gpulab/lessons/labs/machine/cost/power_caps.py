"""Power caps: two published sweeps on a V100, and a model of clock and power that explains them.

The readings are from the artefact of Zeus (You, Chung and Chowdhury, NSDI 2023): seconds per epoch and mean power of a
V100 with limits of 100 to 250 W.

In the model, dynamic power is proportional to the clock and to the square of the voltage. The voltage falls with the
clock down to a lowest value, and stays there at lower clocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

RECORDED_BY = "recorded on a V100 by Zeus, NSDI 2023"
ZEUS_SOURCE = "github.com/ml-energy/zeus, examples/research_reproducibility/zeus_nsdi23/trace/summary_power_v100.csv"

# The model, with parameters fitted to the sweep of ResNet-50.
IDLE_W, FULL_W = 42.5, 220.25
KNEE, LOWEST_VOLTAGE = 0.8, 0.85  # the clock below which the voltage stays, and that voltage; both as shares
RESNET_MEMORY_SHARE = 0.3  # of the time of an epoch at the highest clock: not affected by the clock
CLOCKS: tuple[float, ...] = tuple(round(0.3 + 0.05 * step, 2) for step in range(15))


@dataclass(frozen=True, kw_only=True)
class CapReading:
    """An epoch with a power limit: its time and the mean power."""

    cap_w: int
    epoch_s: float
    mean_w: float

    @property
    def joules(self) -> float:
        """Energy of the epoch."""
        return self.epoch_s * self.mean_w


def _readings(epochs_s: tuple[float, ...], watts: tuple[float, ...]) -> tuple[CapReading, ...]:
    caps = range(100, 251, 25)
    return tuple(
        CapReading(cap_w=cap, epoch_s=seconds, mean_w=mean)
        for cap, seconds, mean in zip(caps, epochs_s, watts, strict=True)
    )


# ImageNet, 1,281,167 images, batch 256.
RESNET50 = _readings(
    (6781.17, 5064.97, 4148.66, 3852.18, 3700.97, 3584.30, 3514.99),
    (98.38, 121.97, 144.59, 166.37, 184.94, 205.44, 220.25),
)
# CIFAR-100, 50,000 images, batch 128, Adadelta.
SHUFFLENET = _readings(
    (17.307, 16.887, 16.700, 16.933, 17.290, 16.977, 17.150),
    (83.95, 103.76, 115.15, 119.69, 120.24, 119.40, 123.09),
)
IMAGES = {"ResNet-50": 1_281_167, "ShuffleNet": 50_000}
# ShuffleNet with batch 8 and Adam: the GPU waits most of the time. Means over an epoch, at a limit of 250 W.
WAITING_W = 39.4


def voltage(clock: float) -> float:
    """Return the voltage at a clock, both as shares of the highest."""
    if clock <= KNEE:
        return LOWEST_VOLTAGE
    return LOWEST_VOLTAGE + (1 - LOWEST_VOLTAGE) * (clock - KNEE) / (1 - KNEE)


def model_rate(clock: float, memory_share: float) -> float:
    """Return the rate of a job as a share of that at the highest clock.

    `memory_share`: the share of its time, at the highest clock, that the clock does not change.
    """
    return 1 / ((1 - memory_share) / clock + memory_share)


def memory_bound_rate(clock: float, needed: float = 0.6) -> float:
    """Return the rate of a kernel that waits for memory at all clocks above `needed`."""
    return min(1.0, clock / needed)


@dataclass(frozen=True, kw_only=True)
class BestClock:
    """The clock with the most work per joule, compared with the highest clock."""

    clock: float
    watts: float
    rate: float  # 1 at the highest clock
    gain: float  # work per joule / that at the highest clock


def best_clock(power_w: Callable[[float], float], rate: Callable[[float], float]) -> BestClock:
    """Return the clock at which a job does the most work per joule."""
    clock = max(CLOCKS, key=lambda each: rate(each) / power_w(each))
    gain = rate(clock) / power_w(clock) / (rate(1.0) / power_w(1.0))
    return BestClock(clock=clock, watts=power_w(clock), rate=rate(clock), gain=gain)


def largest_error(power_w: Callable[[float], float]) -> float:
    """Return the largest relative error of the rate that the model predicts for the recorded watts of ResNet-50."""
    clocks = np.linspace(0.3, 1, 701)
    watts = [power_w(float(clock)) for clock in clocks]
    rates = [model_rate(float(clock), RESNET_MEMORY_SHARE) for clock in clocks]
    fastest_s = RESNET50[-1].epoch_s
    predicted = np.interp([one.mean_w for one in RESNET50], watts, rates)
    measured = np.array([fastest_s / one.epoch_s for one in RESNET50])
    return float(np.abs(predicted / measured - 1).max())
