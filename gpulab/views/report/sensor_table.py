"""What the sensors said over a run, as a table; what they could not say is said in words, never as zero."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Display
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.views import sensor_columns
from gpulab.views.sheet.sheet import Block, Line, Row, Table
from gpulab.views.wording import UNKNOWN, counted, duration, percent

Floats = NDArray[np.float64]

_COUNTED = {"the power limit": "power_held_s", "heat": "thermal_held_s"}  # counters, in seconds


def readings(run: Run) -> tuple[Block, ...]:
    """A row for each sensor: mean, smallest, largest."""
    rows = (*_gpu_rows(run), *_sensor_rows(run.host_rows))
    if not rows:
        return (Line("No sensor was read during this run."),)
    table = Table(header=("", "mean", "smallest", "largest"), rows=rows)
    return (table, *_held_back(run.gpu_rows))


def lateness(run: Run) -> str:
    """How often the sensors were read, and how late; the sampler's own confession."""
    samples = max((run.host_rows, run.gpu_rows), key=len)
    if not len(samples):
        return "none read"
    late = samples["late_ns"]
    every = f", every {duration(float(np.median(np.diff(samples['at_ns']))))}" if len(samples) > 2 else ""
    return (
        f"{counted(len(samples), 'sample')}{every}; late by {duration(float(np.median(late)))} in the median, "
        f"{duration(float(late.max()))} at most"
    )


def _gpu_rows(run: Run) -> Iterator[Row]:
    for device in np.unique(run.gpu_rows["device"]).tolist():
        prefix = f"GPU {device} " if len(run.machine.gpus) > 1 else "GPU "
        yield from _sensor_rows(run.gpu_rows.where(run.gpu_rows["device"] == device), prefix)


def _sensor_rows(samples: Rows, prefix: str = "") -> Iterator[Row]:
    if not len(samples):
        return
    for column in samples.table.displayed(Display.TABLE):
        _, values = sensor_columns.readings(samples, column)
        yield _row(prefix + column.label, values, sensor_columns.formatter(column))


def _row(name: str, values: Floats, show: sensor_columns.Format) -> Row:
    known = values[~np.isnan(values)]
    if not len(known):
        return Row((name, UNKNOWN, "", ""))
    return Row((name, show(float(known.mean())), show(float(known.min())), show(float(known.max()))))


def _held_back(samples: Rows) -> tuple[Line, ...]:
    """What held the clocks back: by the reasons the driver named when asked, and by the time it counted."""
    bits = samples["throttle_bits"]
    told = bits[~np.isnan(bits)].astype(np.int64)
    counted_s = [(name, _longest_s(samples, column)) for name, column in _COUNTED.items()]
    if not len(told) and all(held is None for _, held in counted_s):
        return ()
    names = samples.table.column("throttle_bits").flags
    shares = ((name, float(((told & bit) != 0).mean())) for bit, name in names if len(told))
    named = [f"{name} in {percent(share)} of samples" for name, share in shares if share > 0]
    named += [f"{name} for {duration(1e9 * held)}" for name, held in counted_s if held]
    return (Line(f"GPU clocks held back: {', '.join(named) or 'never'}."),)


def _longest_s(samples: Rows, column: str) -> float | None:
    """By how much a counter of seconds rose, on the GPU where it rose most; None where no two readings tell."""
    rises = []
    for device in np.unique(samples["device"]).tolist():
        values = samples[column][samples["device"] == device]
        values = values[~np.isnan(values)]
        if len(values) > 1:
            rises.append(float(values[-1] - values[0]))
    return max(rises, default=None)
