"""When to run a job: CO2 by hour of a recorded day, and checkpoints on an instance that may be taken away."""

from __future__ import annotations

import numpy as np

CARBON_SOURCE = "region MISO_MASON_CITY, 22 and 23 October 2022, github.com/ml-energy/zeus, trace/carbon_hist.csv"
# Means of two half-hourly values of the column `hist`, by hour (UTC): 0 to 16 of 23 October, 17 to 23 of 22 October.
# (The column `value` is a forecast.) The file names no unit. Each value is the mean of six whole numbers of lb per MWh,
# converted to g per kWh: divided by 0.45359237 and multiplied by 6, all are whole.
CARBON_G_PER_KWH: tuple[float, ...] = (
    645.0, 652.8, 672.5, 662.7, 656.3, 592.7, 561.1, 576.0, 559.2, 559.4, 553.8, 608.8,
    626.1, 657.9, 661.4, 641.2, 639.9, 609.8, 629.9, 639.7, 629.5, 625.5, 612.5, 622.4,
)  # fmt: skip


def co2_g(start_h: int, hours: int, kw: float) -> float:
    """Return the CO2 of a job in g: its hours of the day, times the power in kW. It may run past the end of the day."""
    day = len(CARBON_G_PER_KWH)
    return kw * sum(CARBON_G_PER_KWH[(start_h + hour) % day] for hour in range(hours))


def overhead(interval_min: float, checkpoint_min: float, failure_min: float, restart_min: float) -> float:
    """Return the simulated extra time of a job on a preemptible instance, as a share of its work.

    A checkpoint takes `checkpoint_min` after every `interval_min` of work. Instances are taken away at random, after
    `failure_min` on average; a restart takes `restart_min`, and the work since the last checkpoint is lost.
    """
    generator = np.random.default_rng(19)
    segments = 200_000
    length = interval_min + checkpoint_min
    survival = float(np.exp(-length / failure_min))
    failures = generator.geometric(survival, segments) - 1  # before each segment succeeds
    # The time of a failure within a segment: exponential, truncated at the length of the segment.
    uniform = generator.random(int(failures.sum()))
    lost = -failure_min * np.log1p(-uniform * (1 - survival))
    total = segments * length + float(lost.sum()) + float(failures.sum()) * restart_min
    return total / (segments * interval_min) - 1
