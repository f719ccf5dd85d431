"""What the GPU's sensors say of the loop: clocks while it worked, what held them down, who else used it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import main_device
from gpulab.rows import Array, Rows
from gpulab.run import Gpu, Run
from gpulab.sensor_tables import ThrottleReason
from gpulab.tables import DEVICE_KINDS

LOAD_FRAC = 0.3  # busy in so much of the driver's last period: clocks and link are up then
SANE_FRAC = 1.1  # a counter that grows faster than time counts in a unit we do not know
FEW = 5  # fewer samples under load than this tell of no share of time

POWER, BRAKE, SLOWDOWN = ThrottleReason.POWER_CAP, ThrottleReason.POWER_BRAKE, ThrottleReason.HARDWARE_SLOWDOWN
HEAT = ThrottleReason.HEAT | ThrottleReason.HARDWARE_HEAT


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """The GPU that worked most, while the loop ran; shares 0-1, None where the sensors did not tell."""

    gpu: Gpu
    samples: int  # under load
    clock_mhz: float | None  # mean under load
    free_mhz: float | None  # what it runs at when nothing holds it down: seen here, or else what it is built for
    first_mhz: float | None  # median of the first and of the last third of the samples under load
    last_mhz: float | None
    temperature_c: float | None  # the highest
    power_w: float | None  # median under load
    held_by_power: float | None  # share of the loop's time, by the driver's counters
    held_by_heat: float | None
    power_frac: float | None  # share of the samples under load that give this reason
    heat_frac: float | None
    brake_frac: float | None

    @property
    def lost_frac(self) -> float | None:
        """What lower clocks take from work that follows the clock."""
        if not self.clock_mhz or not self.free_mhz:
            return None
        return max(0.0, 1 - self.clock_mhz / self.free_mhz)


def clocks(run: Run, steps: Steps) -> Clocks | None:
    """How fast the GPU's clocks were under load; None where it was not seen under load."""
    device = sensed_device(run)
    every, rows = of_the_loop(run, steps, device), loaded(run, steps, device)
    gpu = next((each for place, each in enumerate(run.machine.gpus) if place == device), None)
    if gpu is None or len(rows) < FEW:
        return None
    clock, bits = rows["sm_clock_mhz"], rows["throttle_bits"]
    third = max(1, len(rows) // 3)
    return Clocks(
        gpu=gpu,
        samples=len(rows),
        clock_mhz=None if np.isnan(clock).all() else float(np.nanmean(clock)),
        free_mhz=_free(gpu, clock, bits),
        first_mhz=median(clock[:third]),
        last_mhz=median(clock[-third:]),
        temperature_c=None if np.isnan(rows["temperature_c"]).all() else float(np.nanmax(rows["temperature_c"])),
        power_w=median(rows["power_w"]),
        held_by_power=grown(every, "power_held_s"),
        held_by_heat=grown(every, "thermal_held_s"),
        power_frac=_given(bits, POWER),
        heat_frac=_given(bits, HEAT),
        brake_frac=_given(bits, BRAKE | SLOWDOWN, without=HEAT),
    )


def of_the_loop(run: Run, steps: Steps, device: int) -> Rows:
    """The samples of a GPU from the first step to the last; all of them where no steps were found."""
    rows = run.gpu_rows.where(run.gpu_rows["device"] == device)
    if not len(steps):
        return rows
    at = rows["at_ns"]
    return rows.where((at >= steps.start_ns.min()) & (at <= steps.end_ns.max()))


def loaded(run: Run, steps: Steps, device: int) -> Rows:
    """Those of these samples that were taken while the GPU was at work."""
    rows = of_the_loop(run, steps, device)
    return rows.where(rows["util_frac"] >= LOAD_FRAC)


def sensed_device(run: Run) -> int:
    """The GPU whose sensors tell of this run: the one that did most work, by the events or else by its own word."""
    if np.isin(run.event_rows["kind"], DEVICE_KINDS).any():
        return main_device(run)
    rows = run.gpu_rows
    found = np.unique(rows["device"])
    used = [float(np.nansum(rows["util_frac"][rows["device"] == device])) for device in found]
    return int(found[int(np.argmax(used))]) if used else 0


def grown(rows: Rows, column: str) -> float | None:
    """By how much of the time between the first sample and the last a counter of seconds grew, 0-1; None: not told."""
    told = rows.where(~np.isnan(rows[column]))
    if len(told) < 2:
        return None
    span_s = float(told["at_ns"][-1] - told["at_ns"][0]) / 1e9
    share = float(told[column][-1] - told[column][0]) / span_s if span_s > 0 else -1.0
    return min(1.0, share) if 0 <= share <= SANE_FRAC else None


def median(values: Array) -> float | None:
    """Of the values that are told; None if none is."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if len(known) else None


def _given(bits: Array, mask: int, without: int = 0) -> float | None:
    """The share of the samples in which one of these reasons is given, and none of the others."""
    told = bits[~np.isnan(bits)].astype(np.int64)
    return float(((told & mask != 0) & (told & without == 0)).mean()) if len(told) else None


def _free(gpu: Gpu, clock: Array, bits: Array) -> float | None:
    """The clock when nothing holds it down: seen beside samples that are held down, else the highest there is."""
    told = ~np.isnan(clock) & ~np.isnan(bits)
    held = np.where(told, bits, 0).astype(np.int64) & (POWER | HEAT | BRAKE | SLOWDOWN) != 0
    free = clock[told & ~held]
    return float(np.median(free)) if held.any() and len(free) >= FEW else gpu.sm_clock_max_mhz
