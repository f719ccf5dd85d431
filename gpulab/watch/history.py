"""Read the history: devices, processes, gaps and events of a time, at one of three resolutions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.errors import StoreError
from gpulab.watch.database import default_path, open_to_read
from gpulab.watch.rollup import PeriodRows, open_period_rows
from gpulab.watch.schema import (
    AGGREGATES,
    DAY_S,
    HOST_KIND,
    HOUR_S,
    HOURS,
    MINUTES,
    PROCESS_READINGS,
    PROCESS_SHARES,
    READINGS,
    RESOLUTIONS,
    SECONDS,
    SHARES,
    Resolution,
)

Floats = NDArray[np.float64]
_DEVICE_FIELDS = ("id", "host", "uid", "kind", "name", "memory_bytes", "power_limit_w", "sm_clock_max_mhz", "driver")


@dataclass(frozen=True, kw_only=True)
class StoredDevice:
    """A GPU, a MIG instance or a host in the history."""

    id: int
    host: str
    uid: str
    kind: str
    name: str
    memory_bytes: float | None
    power_limit_w: float | None
    sm_clock_max_mhz: float | None
    driver: str | None

    @property
    def is_host(self) -> bool:
        """Whether this is the host itself."""
        return self.kind == HOST_KIND


@dataclass(frozen=True, kw_only=True)
class StoredProcess:
    """A process in the history."""

    id: int
    host: str
    pid: int
    started_s: float
    user: str | None
    name: str
    job: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Series:
    """Readings over time: `at_s` is the UNIX start of each period, the columns are those of its table; NaN if unknown.

    Periods without any reading have no row.
    """

    period_s: int
    at_s: NDArray[np.int64]
    columns: Mapping[str, Floats]

    def __len__(self) -> int:
        return len(self.at_s)

    def __getitem__(self, column: str) -> Floats:
        return self.columns[column]


@dataclass(frozen=True, kw_only=True)
class HistoryGap:
    """A time without readings of a device (None: of all), and why."""

    device: int | None
    from_s: int
    until_s: int
    why: str


@dataclass(frozen=True, kw_only=True)
class HistoryEvent:
    """Something that happened to a device (None: to the host)."""

    device: int | None
    at_s: float
    kind: str
    text: str


class GpuHistory:
    """The history in a file. Close it, or use it in a `with` block."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path
        self._connection = open_to_read(self.path)
        self._computed: dict[Resolution, PeriodRows] = {}  # of the periods that are not stored yet

    def __enter__(self) -> GpuHistory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def devices(self) -> tuple[StoredDevice, ...]:
        """All devices, the hosts last."""
        rows = self._rows(f"SELECT {', '.join(_DEVICE_FIELDS)} FROM device ORDER BY kind = 'host', host, id")
        return tuple(StoredDevice(**dict(zip(_DEVICE_FIELDS, row, strict=True))) for row in rows)

    def processes(self) -> Mapping[int, StoredProcess]:
        """All processes by their number in the history."""
        names = ("id", "host", "pid", "started_s", "user", "name", "job")
        rows = self._rows(f"SELECT {', '.join(names)} FROM process")
        return {row[0]: StoredProcess(**dict(zip(names, row, strict=True))) for row in rows}

    def span(self) -> tuple[int, int] | None:
        """UNIX times of the first and the last reading; None if there is none."""
        query = "SELECT min(at_s), max(at_s) FROM {}"
        spans = [self._rows(query.format(resolution.device_table))[0] for resolution in RESOLUTIONS]
        times = [time for span in spans for time in span if time is not None]
        return (min(times), max(times)) if times else None

    def device_series(
        self,
        device: int,
        from_s: float,
        until_s: float,
        resolution: Resolution,
        columns: tuple[str, ...] | None = None,
    ) -> Series:
        """The readings of a device; minutes and hours include the current, incomplete ones.

        columns: by default all. A month of minutes with all columns takes a second.
        """
        columns = _device_columns(resolution) if columns is None else columns
        rows = self._select(resolution, resolution.device_table, columns, from_s, until_s, "device = ?", (device,))
        return _series(resolution, ("at_s", *columns), rows, ())

    def process_series(self, from_s: float, until_s: float, resolution: Resolution) -> Series:
        """The readings of all processes, with the columns `process` and `device`."""
        columns = _process_columns(resolution)
        keys = ("device", "process")
        rows = self._select(
            resolution, resolution.process_table, (*keys, *columns), from_s, until_s, "process >= ?", (0,)
        )
        return _series(resolution, ("at_s", *keys, *columns), rows, keys)

    def gaps(self, from_s: float, until_s: float) -> tuple[HistoryGap, ...]:
        """The gaps that overlap a time, in order."""
        query = "SELECT device, from_s, until_s, why FROM gap WHERE until_s > ? AND from_s < ? ORDER BY from_s"
        rows = self._rows(query, (from_s, until_s))
        return tuple(HistoryGap(device=row[0] or None, from_s=row[1], until_s=row[2], why=row[3]) for row in rows)

    def events(self, from_s: float, until_s: float) -> tuple[HistoryEvent, ...]:
        """The events of a time, in order."""
        query = "SELECT device, at_s, kind, text FROM event WHERE at_s >= ? AND at_s < ? ORDER BY at_s"
        rows = self._rows(query, (from_s, until_s))
        return tuple(HistoryEvent(device=row[0] or None, at_s=row[1], kind=row[2], text=row[3]) for row in rows)

    def _select(
        self,
        resolution: Resolution,
        table: str,
        columns: tuple[str, ...],
        from_s: float,
        until_s: float,
        condition: str,
        values: tuple[int, ...],
    ) -> list[tuple[Any, ...]]:
        query = (
            f"SELECT at_s, {', '.join(columns)} FROM {table} WHERE at_s >= ? AND at_s < ? AND {condition} ORDER BY at_s"
        )
        start_s = from_s // resolution.period_s * resolution.period_s
        rows = self._rows(query, (start_s, until_s, *values))
        if resolution is not SECONDS:
            rows += self._open_rows(
                resolution, columns, start_s, until_s, values[0] if "device =" in condition else None
            )
        return rows

    def _open_rows(
        self, resolution: Resolution, columns: tuple[str, ...], from_s: float, until_s: float, device: int | None
    ) -> list[tuple[Any, ...]]:
        """Return the rows of the periods that are not stored yet, computed once."""
        if resolution not in self._computed:
            with self._errors():
                self._computed[resolution] = open_period_rows(self._connection, resolution)
        computed = self._computed[resolution]
        if device is None:
            return [row for row in computed.processes if from_s <= row[0] < until_s]
        every = ("at_s", "device", *_device_columns(resolution))
        indices = [every.index(name) for name in ("at_s", *columns)]
        rows = [row for row in computed.devices if from_s <= row[0] < until_s and row[1] == device]
        return [tuple(row[index] for index in indices) for row in rows]

    def _rows(self, query: str, values: tuple[float, ...] = ()) -> list[tuple[Any, ...]]:
        with self._errors():
            return self._connection.execute(query, values).fetchall()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as problem:
            raise StoreError(
                f"The history {str(self.path)!r} cannot be read.",
                why=str(problem),
                fix="if it is damaged, the next gpulab watch renames it and begins a new one",
            ) from problem


def fitting_resolution(from_s: float, until_s: float) -> Resolution:
    """Return the resolution that shows a time with at most some thousand points."""
    span_s = until_s - from_s
    return SECONDS if span_s <= HOUR_S else MINUTES if span_s <= 3 * DAY_S else HOURS


def _device_columns(resolution: Resolution) -> tuple[str, ...]:
    if resolution is SECONDS:
        return tuple(column.name for column in READINGS)
    return (*SHARES, *AGGREGATES)


def _process_columns(resolution: Resolution) -> tuple[str, ...]:
    return PROCESS_READINGS if resolution is SECONDS else (*PROCESS_READINGS, *PROCESS_SHARES)


def _series(
    resolution: Resolution, names: tuple[str, ...], rows: list[tuple[Any, ...]], keys: tuple[str, ...]
) -> Series:
    values = np.array(rows, float).reshape(-1, len(names))
    columns = {name: values[:, index] for index, name in enumerate(names) if name != "at_s"}
    for key in keys:
        columns[key] = columns[key].astype(np.int64)
    return Series(period_s=resolution.period_s, at_s=values[:, 0].astype(np.int64), columns=columns)
