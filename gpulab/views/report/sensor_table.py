"""Sensor readings over a run as a table; a missing value reads "not measured", never zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Display
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.views import sensor_columns
from gpulab.views.sheet.sheet import Block, Line, Row, TableBlock
from gpulab.wording import UNKNOWN, count, duration, percent

Floats = NDArray[np.float64]

_NOTABLE_LATENESS_NS = 10e6  # a tenth of the interval between samples, by default
_COUNTED = {"the power limit": "power_held_s", "heat": "thermal_held_s"}  # counters, in seconds


def sensor_blocks(run: Run) -> tuple[Block, ...]:
    """Return a table with a row for each sensor: mean, minimum, maximum."""
    rows = (*_gpu_rows(run), *_sensor_rows(run.host_rows))
    if not rows:
        return (Line("No sensors were read during this run."),)
    table = TableBlock(header=("", "mean", "min", "max"), rows=rows)
    return (table, *_throttling(run.gpu_rows))


def sampling_summary(run: Run) -> str:
    """Return how often the sensors were read, and how late the sampler was if that matters."""
    samples = max((run.host_rows, _of_first_gpu(run.gpu_rows)), key=len)
    if not len(samples):
        return "none read"
    late_ns = samples["late_ns"]
    interval = f", every {duration(float(np.median(np.diff(samples['at_ns']))))}" if len(samples) > 2 else ""
    late = f"; taken at most {duration(float(late_ns.max()), 2)} late" if late_ns.max() > _NOTABLE_LATENESS_NS else ""
    return f"{count(len(samples), 'sample')}{interval}{late}"


def _of_first_gpu(samples: Rows) -> Rows:
    """Return the samples of one GPU: all GPUs are read at the same times."""
    return samples.select(samples["device"] == samples["device"].min()) if len(samples) else samples


def _gpu_rows(run: Run) -> Iterator[Row]:
    for device in np.unique(run.gpu_rows["device"]).tolist():
        prefix = f"GPU {device} " if len(run.machine.gpus) > 1 else "GPU "
        yield from _sensor_rows(run.gpu_rows.select(run.gpu_rows["device"] == device), prefix)


def _sensor_rows(samples: Rows, prefix: str = "") -> Iterator[Row]:
    if not len(samples):
        return
    for column in samples.table.displayed(Display.TABLE):
        _, values = sensor_columns.readings(samples, column)
        yield _row(prefix + column.label, values, sensor_columns.formatter(column), sensor_columns.is_count(column))


def _row(name: str, values: Floats, show: sensor_columns.Format, is_count: bool) -> Row:
    """Return mean, minimum and maximum; no mean of a count, such as the number of processes."""
    valid = values[~np.isnan(values)]
    if not len(valid):
        return Row((name, UNKNOWN, "", ""))
    mean = "" if is_count else show(float(valid.mean()))
    return Row((name, mean, show(float(valid.min())), show(float(valid.max()))))


def _throttling(samples: Rows) -> tuple[Line, ...]:
    """Say why GPU clocks were throttled: by the reasons in the samples, and by the driver's time counters."""
    bits = samples["throttle_bits"]
    known_bits = bits[~np.isnan(bits)].astype(np.int64)
    counted_s = [(name, _longest_s(samples, column)) for name, column in _COUNTED.items()]
    if not len(known_bits) and all(seconds is None for _, seconds in counted_s):
        return ()
    names = samples.table.column("throttle_bits").flags
    shares = ((name, float(((known_bits & bit) != 0).mean())) for bit, name in names if len(known_bits))
    reasons = [f"{name} in {percent(share)} of samples" for name, share in shares if share > 0]
    reasons += [f"{name} for {duration(1e9 * seconds)}" for name, seconds in counted_s if seconds]
    return (Line(f"GPU clocks throttled by: {', '.join(reasons)}." if reasons else "GPU clocks were not throttled."),)


def _longest_s(samples: Rows, column: str) -> float | None:
    """Return the largest increase of a counter of seconds on any GPU; None if no GPU has two readings."""
    rises = []
    for device in np.unique(samples["device"]).tolist():
        values = samples[column][samples["device"] == device]
        values = values[~np.isnan(values)]
        if len(values) > 1:
            rises.append(float(values[-1] - values[0]))
    return max(rises, default=None)
