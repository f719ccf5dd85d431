"""GPU clocks while the loop ran: rates under load, throttling by power or heat, temperature."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import main_device
from gpulab.rows import Array, Rows
from gpulab.run import Gpu, Run
from gpulab.sensor_tables import ThrottleReason
from gpulab.tables import DEVICE_KINDS

LOAD_FRAC = 0.3  # utilisation from which a sample counts as under load, with clocks and link at full rate
MAX_COUNTER_FRAC = 1.1  # a counter that grows faster than time has an unknown unit
MIN_LOADED_SAMPLES = 5  # with fewer samples under load, shares of time are unknown

POWER, BRAKE, SLOWDOWN = ThrottleReason.POWER_CAP, ThrottleReason.POWER_BRAKE, ThrottleReason.HARDWARE_SLOWDOWN
HEAT = ThrottleReason.HEAT | ThrottleReason.HARDWARE_HEAT


@dataclass(frozen=True, kw_only=True)
class Clocks:
    """Clocks of the busiest GPU while the loop ran. Shares are 0-1. None: unknown."""

    gpu: Gpu
    samples: int  # number of samples under load
    clock_mhz: float | None  # mean under load
    unthrottled_mhz: float | None  # clock without throttling: measured here, else the maximum of the GPU
    first_mhz: float | None  # medians of the first and the last third of the samples under load
    last_mhz: float | None
    temperature_c: float | None  # the highest
    power_w: float | None  # median under load
    power_throttled_frac: float | None  # throttled share of the loop's time, by the driver's counters
    heat_throttled_frac: float | None
    power_frac: float | None  # share of the samples under load with this throttle reason
    heat_frac: float | None
    brake_frac: float | None

    @property
    def lost_frac(self) -> float | None:
        """Lost share of the speed of clock-bound work; None if unknown."""
        if not self.clock_mhz or not self.unthrottled_mhz:
            return None
        return max(0.0, 1 - self.clock_mhz / self.unthrottled_mhz)


def clocks_under_load(run: Run, steps: Steps) -> Clocks | None:
    """Compute the clocks of the GPU under load; None with too few samples under load."""
    device = sensed_device(run)
    loop_rows, rows = gpu_samples_in_loop(run, steps, device), gpu_samples_under_load(run, steps, device)
    gpu = next((each for index, each in enumerate(run.machine.gpus) if index == device), None)
    if gpu is None or len(rows) < MIN_LOADED_SAMPLES:
        return None
    clock, bits = rows["sm_clock_mhz"], rows["throttle_bits"]
    third = max(1, len(rows) // 3)
    return Clocks(
        gpu=gpu,
        samples=len(rows),
        clock_mhz=None if np.isnan(clock).all() else float(np.nanmean(clock)),
        unthrottled_mhz=_unthrottled_mhz(gpu, clock, bits),
        first_mhz=known_median(clock[:third]),
        last_mhz=known_median(clock[-third:]),
        temperature_c=None if np.isnan(rows["temperature_c"]).all() else float(np.nanmax(rows["temperature_c"])),
        power_w=known_median(rows["power_w"]),
        power_throttled_frac=counter_time_frac(loop_rows, "power_held_s"),
        heat_throttled_frac=counter_time_frac(loop_rows, "thermal_held_s"),
        power_frac=_reason_frac(bits, POWER),
        heat_frac=_reason_frac(bits, HEAT),
        brake_frac=_reason_frac(bits, BRAKE | SLOWDOWN, without=HEAT),
    )


def gpu_samples_in_loop(run: Run, steps: Steps, device: int) -> Rows:
    """Return the samples of a GPU from the first step to the last; all samples without steps."""
    rows = run.gpu_rows.select(run.gpu_rows["device"] == device)
    if not len(steps):
        return rows
    at = rows["at_ns"]
    return rows.select((at >= steps.start_ns.min()) & (at <= steps.end_ns.max()))


def gpu_samples_under_load(run: Run, steps: Steps, device: int) -> Rows:
    """Return the samples of the loop with the GPU under load."""
    rows = gpu_samples_in_loop(run, steps, device)
    return rows.select(rows["util_frac"] >= LOAD_FRAC)


def sensed_device(run: Run) -> int:
    """Return the index of the busiest GPU, by the events, else by its utilisation samples."""
    if run.event_rows.is_kind(*DEVICE_KINDS).any():
        return main_device(run)
    rows = run.gpu_rows
    devices = np.unique(rows["device"])
    utilisations = [float(np.nansum(rows["util_frac"][rows["device"] == device])) for device in devices]
    return int(devices[int(np.argmax(utilisations))]) if utilisations else 0


def counter_time_frac(rows: Rows, column: str) -> float | None:
    """Return the increase of a counter of seconds as a share of the sampled time, 0-1; None if unknown."""
    known_rows = rows.select(~np.isnan(rows[column]))
    if len(known_rows) < 2:
        return None
    span_s = float(known_rows["at_ns"][-1] - known_rows["at_ns"][0]) / 1e9
    share = float(known_rows[column][-1] - known_rows[column][0]) / span_s if span_s > 0 else -1.0
    return min(1.0, share) if 0 <= share <= MAX_COUNTER_FRAC else None


def known_median(values: Array) -> float | None:
    """Return the median of the known values; None if there are none."""
    known_values = values[~np.isnan(values)]
    return float(np.median(known_values)) if len(known_values) else None


def _reason_frac(bits: Array, mask: int, without: int = 0) -> float | None:
    """Return the share of the samples with one of these reasons and none of `without`."""
    known_bits = bits[~np.isnan(bits)].astype(np.int64)
    return float(((known_bits & mask != 0) & (known_bits & without == 0)).mean()) if len(known_bits) else None


def _unthrottled_mhz(gpu: Gpu, clock: Array, bits: Array) -> float | None:
    """Return the unthrottled clock: the median of unthrottled samples if others are throttled, else the maximum."""
    is_known = ~np.isnan(clock) & ~np.isnan(bits)
    throttled = np.where(is_known, bits, 0).astype(np.int64) & (POWER | HEAT | BRAKE | SLOWDOWN) != 0
    unthrottled = clock[is_known & ~throttled]
    return (
        float(np.median(unthrottled))
        if throttled.any() and len(unthrottled) >= MIN_LOADED_SAMPLES
        else gpu.sm_clock_max_mhz
    )
