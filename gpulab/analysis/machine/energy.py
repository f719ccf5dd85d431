"""Energy of the loop: of all GPUs by NVML's counter or by the integral of power, and of the CPU packages by RAPL."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.host.cpu_contention import host_samples_in_loop
from gpulab.analysis.steps.detection import Steps
from gpulab.rows import Array, Rows
from gpulab.run import Run

COUNTER, INTEGRAL = "energy counter of the driver", "integral of power readings"
_MIN_S, _MIN_SAMPLES = 0.5, 3  # the counter is updated ten times a second
_COUNTER_UPDATE_S = 0.1
# The sensors of A100 and H100 look at a quarter of the time only (arXiv 2312.02741): the integral is off by a few
# percent, more if the load changes with the same period.
_SENSOR_ERROR = 0.05
_IDLE_QUANTILE = 5  # percent of the readings of power: the power of a GPU that does nothing, or more


@dataclass(frozen=True, kw_only=True)
class Energy:
    """Energy between the first step and the last (without steps: of the run), in J. None: not measured."""

    span_s: float
    gpu_j: float  # of all GPUs that this process sees
    method: str  # COUNTER or INTEGRAL
    error_frac: float  # of gpu_j
    idle_j: float | None  # at least: the time in which the GPU did nothing, at the lowest power that was read
    cpu_j: float | None
    step_j: float | None  # GPU energy of a mean step
    samples_per_step: int | None
    steps_per_epoch: int | None

    @property
    def sample_j(self) -> float | None:
        """GPU energy per sample of the training data."""
        return self.step_j / self.samples_per_step if self.step_j is not None and self.samples_per_step else None

    @property
    def epoch_j(self) -> float | None:
        """GPU energy of an epoch of training steps, without evaluations."""
        return self.step_j * self.steps_per_epoch if self.step_j is not None and self.steps_per_epoch else None

    @property
    def mean_w(self) -> float:
        """Mean power of all GPUs."""
        return self.gpu_j / self.span_s


def loop_energy(run: Run, steps: Steps, idle_frac: float | None = None) -> Energy | None:
    """Return the energy of the loop; None if no GPU told its power for half a second.

    idle_frac: share of a step in which the GPU did nothing, from the ledger.
    """
    rows = _rows_in_loop(run, steps)
    parts = [_of_device(rows.select(rows["device"] == device)) for device in np.unique(rows["device"]).tolist()]
    measured = [part for part in parts if part is not None]
    if not measured or len(measured) < len(parts):  # a sum without one of the GPUs would be taken for all of them
        return None
    gpu_j, span_s = sum(part.joules for part in measured), max(part.span_s for part in measured)
    count = len(steps) if steps.detected_by != "whole run" else 0
    return Energy(
        span_s=span_s,
        gpu_j=gpu_j,
        method=COUNTER if all(part.method == COUNTER for part in measured) else INTEGRAL,
        error_frac=max(part.error_frac for part in measured),
        idle_j=None if idle_frac is None else idle_frac * span_s * sum(part.lowest_w for part in measured),
        cpu_j=_cpu_j(run, steps),
        step_j=gpu_j / span_s * _loop_s(steps) / count if count else None,
        samples_per_step=_samples_per_step(run),
        steps_per_epoch=_steps_per_epoch(run),
    )


@dataclass(frozen=True, kw_only=True)
class _DeviceEnergy:
    """Energy of one GPU."""

    joules: float
    span_s: float
    method: str
    error_frac: float
    lowest_w: float


def _of_device(rows: Rows) -> _DeviceEnergy | None:
    measured = ~np.isnan(rows["power_w"])
    lowest_w = float(np.percentile(rows["power_w"][measured], _IDLE_QUANTILE)) if measured.any() else 0.0
    counted = _by_counter(rows, lowest_w)
    return counted if counted is not None else _by_integral(rows, lowest_w)


def _by_counter(rows: Rows, lowest_w: float) -> _DeviceEnergy | None:
    known_rows = rows.select(~np.isnan(rows["energy_j"]))
    span_s = _span_s(known_rows)
    if span_s is None:
        return None
    increases = np.diff(known_rows["energy_j"])
    joules = float(increases.sum())
    if joules <= 0 or (increases < 0).any():  # the driver was loaded anew
        return None
    error_frac = 2 * _COUNTER_UPDATE_S / span_s
    return _DeviceEnergy(joules=joules, span_s=span_s, method=COUNTER, error_frac=error_frac, lowest_w=lowest_w)


def _by_integral(rows: Rows, lowest_w: float) -> _DeviceEnergy | None:
    known_rows = rows.select(~np.isnan(rows["power_w"]))
    span_s = _span_s(known_rows)
    if span_s is None:
        return None
    at_s, power_w = known_rows["at_ns"] / 1e9, known_rows["power_w"]
    joules = float(((power_w[1:] + power_w[:-1]) / 2 * np.diff(at_s)).sum())
    # How far the integral would move if power changed at the other end of each interval.
    spread = float(abs(np.diff(power_w) * np.diff(at_s)).sum()) / 2
    error_frac = _SENSOR_ERROR + (spread / len(power_w) ** 0.5 / joules if joules > 0 else 0.0)
    return _DeviceEnergy(joules=joules, span_s=span_s, method=INTEGRAL, error_frac=error_frac, lowest_w=lowest_w)


def _span_s(rows: Rows) -> float | None:
    """Return the time between the first and the last reading; None if that is too short for an energy."""
    if len(rows) < _MIN_SAMPLES:
        return None
    span_s = float(rows["at_ns"][-1] - rows["at_ns"][0]) / 1e9
    return span_s if span_s >= _MIN_S else None


def _rows_in_loop(run: Run, steps: Steps) -> Rows:
    rows = run.gpu_rows
    if steps.detected_by == "whole run" or not len(steps):
        return rows
    return rows.select((rows["at_ns"] >= steps.start_ns[0]) & (rows["at_ns"] <= steps.end_ns[-1]))


def _loop_s(steps: Steps) -> float:
    return float(steps.end_ns[-1] - steps.start_ns[0]) / 1e9


def _cpu_j(run: Run, steps: Steps) -> float | None:
    """Return the energy of the CPU packages, of all programs."""
    values: Array = host_samples_in_loop(run, steps)["cpu_energy_j"]
    measured = values[~np.isnan(values)]
    return float(measured[-1] - measured[0]) if len(measured) >= _MIN_SAMPLES else None


def _samples_per_step(run: Run) -> int | None:
    """Return the batch size, if all DataLoaders have the same; with gradient accumulation, of a micro-batch."""
    sizes = {loader.batch_size for loader in run.loaders if loader.batch_size}
    return sizes.pop() if len(sizes) == 1 else None


def _steps_per_epoch(run: Run) -> int | None:
    """Return the batches of the training loader; None if it does not know, or with gradient accumulation."""
    loader = training_loader(run)
    return None if loader is None or loader.batches is None or loader.batches < 1 else loader.batches
