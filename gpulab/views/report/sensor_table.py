"""What the sensors said over a run, as a table; what they could not say is said in words, never as zero."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.views.sheet.sheet import Block, Line, Row, Table
from gpulab.views.wording import UNKNOWN, counted, duration, percent, quantity, size

Floats = NDArray[np.float64]
Show = Callable[[float | None], str]

# NVML's clocks-event reasons that hold clocks back; bit 1, idle, is none (nvml.h, nvmlClocksEventReason*).
HELD_BACK = {0x4: "power cap", 0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat (hardware)", 0x80: "power brake"}
_COUNTED = {"the power limit": "power_held_s", "heat": "thermal_held_s"}  # counters, in seconds


def readings(run: Run) -> tuple[Block, ...]:
    """A row for each sensor: mean, smallest, largest."""
    rows = (*_gpu_rows(run), *_host_rows(run.host_rows))
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
        samples = run.gpu_rows.where(run.gpu_rows["device"] == device)
        named = f"GPU {device} " if len(run.machine.gpus) > 1 else "GPU "
        yield _row(named + "utilisation", samples["util_frac"], percent)
        yield _row(named + "memory in use", samples["memory_used_bytes"], size)
        yield _row(named + "power", samples["power_w"], lambda value: quantity(value, "W"))
        yield _row(named + "SM clock", samples["sm_clock_mhz"], lambda value: quantity(value, "MHz"))
        yield _row(named + "temperature", samples["temperature_c"], lambda value: quantity(value, "C"))


def _host_rows(samples: Rows) -> Iterator[Row]:
    if not len(samples):
        return
    yield _row("CPU, all cores", samples["cpu_frac"], percent)
    yield _row("memory of this process", samples["rss_bytes"], size)
    yield _row("memory available", samples["memory_available_bytes"], size)
    yield _row("DataLoader workers", samples["workers"], lambda value: f"{value:.3g}")


def _row(name: str, values: Floats, show: Show) -> Row:
    told = values[~np.isnan(values)]
    if not len(told):
        return Row((name, UNKNOWN, "", ""))
    return Row((name, show(float(told.mean())), show(float(told.min())), show(float(told.max()))))


def _held_back(samples: Rows) -> tuple[Line, ...]:
    """What held the clocks back: by the reasons the driver named when asked, and by the time it counted."""
    bits = samples["throttle_bits"]
    told = bits[~np.isnan(bits)].astype(np.int64)
    counted_s = [(name, _longest_s(samples, column)) for name, column in _COUNTED.items()]
    if not len(told) and all(held is None for _, held in counted_s):
        return ()
    shares = ((name, float(((told & bit) != 0).mean())) for bit, name in HELD_BACK.items() if len(told))
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
