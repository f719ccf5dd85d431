"""Minutes and hours of the history, computed from its seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from gpulab.watch.aggregation import Floats, aggregate_device, aggregate_process, device_utilisation, is_idle
from gpulab.watch.schema import HOURS, MINUTES, PROCESS_READINGS, READINGS, SECONDS, Resolution

_MAX_PERIODS = 120  # per call: after a long time without maintenance, the rest follows a minute later
Row = tuple[Any, ...]


class PeriodRows(NamedTuple):
    """Rows of one period for the two tables of a resolution."""

    devices: list[Row]
    processes: list[Row]


def update_totals(connection: sqlite3.Connection, now_s: int) -> None:
    """Store the periods that have ended before now and are missing. Two writers store the same."""
    for resolution in (MINUTES, HOURS):
        for start_s in _missing(connection, resolution, now_s)[:_MAX_PERIODS]:
            rows = period_rows(connection, start_s, resolution.period_s)
            connection.execute("BEGIN IMMEDIATE")
            _store(connection, resolution.device_table, rows.devices)
            _store(connection, resolution.process_table, rows.processes)
            connection.execute("COMMIT")


def open_period_rows(connection: sqlite3.Connection, resolution: Resolution) -> PeriodRows:
    """Return the rows of the periods that are not stored yet: the current one, and those of the last minutes."""
    period_s = resolution.period_s
    last = connection.execute(f"SELECT max(at_s) FROM {resolution.device_table}").fetchone()[0]
    query = f"SELECT DISTINCT at_s / {period_s} * {period_s} FROM {SECONDS.device_table} WHERE at_s >= ? ORDER BY 1"
    starts = [row[0] for row in connection.execute(query, (0 if last is None else last + period_s,))]
    rows = PeriodRows([], [])
    for start_s in starts[-_MAX_PERIODS:]:
        period = period_rows(connection, start_s, period_s)
        rows.devices.extend(period.devices)
        rows.processes.extend(period.processes)
    return rows


def period_rows(connection: sqlite3.Connection, start_s: int, period_s: int) -> PeriodRows:
    """Compute one period of every device and process."""
    span = (start_s, start_s + period_s)
    rows = PeriodRows([], [])
    processes = {number: list(group) for number, group in _by_device(connection, _PROCESS_QUERY, span)}
    for number, group in _by_device(connection, _DEVICE_QUERY, span):
        seconds = [row[1] for row in group]
        values = np.array([row[2:] for row in group], float)
        on_device = processes.get(number, [])
        occupied = np.isin(seconds, [row[1] for row in on_device])
        rows.devices.append((start_s, number, *_to_sql(aggregate_device(values, occupied))))
        rows.processes.extend(_process_rows(start_s, number, seconds, values, on_device))
    return rows


def _process_rows(start_s: int, number: int, seconds: list[int], values: Floats, on_device: list[Row]) -> Iterator[Row]:
    index_of = {at_s: index for index, at_s in enumerate(seconds)}
    idle, util_frac = is_idle(values), device_utilisation(values)
    in_order = sorted((row for row in on_device if row[1] in index_of), key=lambda row: (row[2], row[1]))
    for process, group in groupby(in_order, key=lambda row: row[2]):
        process_rows = list(group)
        indices = [index_of[row[1]] for row in process_rows]
        readings = np.array([row[3:] for row in process_rows], float)
        totals = aggregate_process(readings[:, 0], readings[:, 1], util_frac[indices], idle[indices])
        yield (start_s, number, process, *_to_sql(totals))


def _missing(connection: sqlite3.Connection, resolution: Resolution, now_s: int) -> list[int]:
    period_s = resolution.period_s
    last = connection.execute(f"SELECT max(at_s) FROM {resolution.device_table}").fetchone()[0]
    current_s = now_s // period_s * period_s
    # After the clock was set back, periods after now are stored already: then every period is looked at.
    from_s = last + period_s if last is not None and last < current_s else 0
    query = (
        f"SELECT DISTINCT at_s / {period_s} * {period_s} FROM {SECONDS.device_table} "
        "WHERE at_s >= ? AND at_s < ? ORDER BY 1"
    )
    starts = [int(row[0]) for row in connection.execute(query, (from_s, current_s))]
    if from_s:
        return starts
    stored = {row[0] for row in connection.execute(f"SELECT DISTINCT at_s FROM {resolution.device_table}")}
    return [start_s for start_s in starts if start_s not in stored]


def _by_device(connection: sqlite3.Connection, query: str, span: tuple[int, int]) -> Iterator[tuple[int, list[Row]]]:
    for number, group in groupby(connection.execute(query, span).fetchall(), key=lambda row: int(row[0])):
        yield number, list(group)


def _store(connection: sqlite3.Connection, table: str, rows: list[Row]) -> None:
    if rows:
        marks = ", ".join("?" * len(rows[0]))
        connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)


def _to_sql(values: Sequence[float]) -> list[float | None]:
    """Return values for SQLite, which has no NaN: what was not measured is NULL."""
    return [None if np.isnan(value) else value for value in values]


_READINGS = ", ".join(column.name for column in READINGS)
_DEVICE_QUERY = (
    f"SELECT device, at_s, {_READINGS} FROM {SECONDS.device_table} WHERE at_s >= ? AND at_s < ? ORDER BY device, at_s"
)
_PROCESS_QUERY = (
    f"SELECT device, at_s, process, {', '.join(PROCESS_READINGS)} FROM {SECONDS.process_table} "
    "WHERE at_s >= ? AND at_s < ? ORDER BY device, at_s"
)
