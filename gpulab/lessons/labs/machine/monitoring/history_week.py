"""A simulated week in the database of `gpulab watch`: four GPUs, with two planted patterns of idle time.

It is written as minutes into a file of its own, which `gpulab.watch.history.GpuHistory` and `gpulab.history(path=...)`
read.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gpulab.extras import require_extra
from gpulab.views.sheet.sheet import Sheet
from gpulab.views.sheet.view import View
from gpulab.watch.database import open_to_write
from gpulab.watch.history import GpuHistory
from gpulab.watch.patterns.catalogue import find_patterns
from gpulab.watch.patterns.frame import HistoryFrame
from gpulab.watch.patterns.pattern import Pattern
from gpulab.watch.schema import MINUTES

if TYPE_CHECKING:
    import pandas as pd

MINUTES_OF_DAY, DAYS, GPUS = 1440, 7, 4
BEGIN_S = int(datetime(2026, 5, 4).timestamp())  # a Monday, 0:00 local time
END_S = BEGIN_S + DAYS * MINUTES_OF_DAY * 60
NIGHT_GPU, NIGHT_HOURS = 1, (21, 8)  # planted: held and idle from 21:00 to 8:00
FORGOTTEN_GPU, FORGOTTEN_FROM_DAY = 3, 4  # planted: held without work since Friday, 9:00
GIB = 2**30
IDLE = 0.05  # of a minute: below this, nothing works

Fractions = NDArray[np.float64]


def write_week(path: Path, seed: int = 0) -> None:
    """Write the week into a new database. Every GPU is held by one process all the time it is held."""
    generator = np.random.default_rng(seed)
    connection = open_to_write(path)
    try:
        connection.execute("BEGIN")
        connection.execute("INSERT INTO device VALUES (NULL, 'node', 'node', 'host', 'node', NULL, NULL, NULL, NULL)")
        for gpu in range(GPUS):
            _write_gpu(connection, gpu, _utilisation(generator, gpu))
        connection.execute("COMMIT")
    finally:
        connection.close()


def _utilisation(generator: np.random.Generator, gpu: int) -> Fractions:
    """Return the utilisation of each minute; NaN while no process is on the GPU."""
    minute = np.arange(DAYS * MINUTES_OF_DAY)
    noise = np.convolve(generator.normal(0, 0.08, len(minute) + 9), np.ones(10) / 10, "valid")
    util = np.clip(generator.uniform(0.6, 0.9) + noise, IDLE, 1.0)
    for start in np.flatnonzero(generator.random(len(minute)) < 1 / 300):
        util[start : start + int(generator.integers(2, 20))] = 0.0
    hour = minute // 60 % 24
    if gpu == NIGHT_GPU:
        util[(hour >= NIGHT_HOURS[0]) | (hour < NIGHT_HOURS[1])] = 0.0
    elif gpu == FORGOTTEN_GPU:
        util[minute >= FORGOTTEN_FROM_DAY * MINUTES_OF_DAY + 9 * 60] = 0.0
    else:  # jobs with pauses between them
        for start in np.flatnonzero(generator.random(len(minute)) < 1 / 900):
            util[start : start + int(generator.integers(30, 300))] = np.nan
    return util


def _write_gpu(connection: sqlite3.Connection, gpu: int, util: Fractions) -> None:
    device, occupied = gpu + 2, ~np.isnan(util)
    use, at_s = np.nan_to_num(util), BEGIN_S + 60 * np.arange(len(util))
    idle = occupied & (use < IDLE)
    connection.execute(
        "INSERT INTO device VALUES (?, 'node', ?, 'gpu', 'H100', ?, 700, 1980, '580')",
        (device, f"GPU-{gpu}", 80.0 * GIB),
    )
    _insert_minutes(
        connection,
        MINUTES.device_table,
        {
            "at_s": at_s, "device": np.full(len(at_s), device), "covered_s": np.full(len(at_s), 60.0),
            "held_s": 60.0 * occupied, "held_idle_s": 60.0 * idle, "util_frac": use,
            "memory_used_bytes": GIB * (0.5 + 40.0 * occupied), "power_w": 90 + 560 * use,
            "temperature_c": 45 + 30 * use,
            "sm_clock_mhz": np.where(use > IDLE, 1900.0, 345.0), "throttle_bits": np.zeros(len(at_s)),
            "energy_j": np.cumsum(60 * (90 + 560 * use)),
        },
    )  # fmt: skip
    names = {NIGHT_GPU: ("bob", "explore.ipynb"), FORGOTTEN_GPU: ("eve", "analysis.ipynb")}
    user, name = names.get(gpu, ("ada", "train.py"))
    process = gpu + 1
    connection.execute(
        "INSERT INTO process VALUES (?, 'node', ?, ?, ?, ?, ?)",
        (process, 1000 + gpu, float(BEGIN_S), user, name, f"{1000 + gpu}"),
    )
    _insert_minutes(
        connection,
        MINUTES.process_table,
        {
            "at_s": at_s[occupied], "device": np.full(occupied.sum(), device),
            "process": np.full(occupied.sum(), process),
            "memory_bytes": np.full(occupied.sum(), 40.0 * GIB), "sm_frac": use[occupied],
            "covered_s": np.full(occupied.sum(), 60.0), "idle_s": 60.0 * idle[occupied],
            "device_util_frac": use[occupied],
        },
    )  # fmt: skip


def _insert_minutes(connection: sqlite3.Connection, table: str, columns: dict[str, NDArray[np.generic]]) -> None:
    marks = ", ".join("?" * len(columns))
    rows = zip(*(values.tolist() for values in columns.values()), strict=True)
    connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)


def week_minutes(path: Path) -> pd.DataFrame:
    """Return the minutes of the GPUs: `gpu`, `day` (0 is Monday), `hour`, `util_frac`, and `held_idle`, 0 or 1."""
    require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
    import pandas as pd

    frames = []
    with GpuHistory(path) as history:
        gpus = [device for device in history.devices() if not device.is_host]
        for number, device in enumerate(gpus):
            series = history.device_series(device.id, BEGIN_S, END_S, MINUTES, ("util_frac", "held_idle_s"))
            minute = (series.at_s - BEGIN_S) // 60
            columns = {
                "gpu": np.full(len(minute), number),
                "day": minute // MINUTES_OF_DAY,
                "hour": minute // 60 % 24,
                "util_frac": series["util_frac"],
                "held_idle": series["held_idle_s"] / 60,
            }
            frames.append(pd.DataFrame(columns))
    return pd.concat(frames, ignore_index=True)


def week_patterns(path: Path) -> tuple[Pattern, ...]:
    """Return the patterns that gpulab finds in the week, as `gpulab.history` shows them."""
    with GpuHistory(path) as history:
        return find_patterns(HistoryFrame.load(history, BEGIN_S, END_S))


def week_heat_map(path: Path) -> View:
    """Return the use by day and hour and by GPU and day, as `gpulab.history` shows it."""
    from gpulab.views.history.heat_map import heat_map_section

    with GpuHistory(path) as history:
        section = heat_map_section(HistoryFrame.load(history, BEGIN_S, END_S))
    return View(Sheet("gpulab: use of a week", () if section is None else (section,)))


def night_label() -> str:
    """Return the planted hours as gpulab writes them: "from 21:00 to 8:00"."""
    return f"from {NIGHT_HOURS[0]}:00 to {NIGHT_HOURS[1]}:00"
