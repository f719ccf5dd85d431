"""Append readings to the history, compute minutes and hours, and delete what is older than each resolution keeps."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpulab.watch.database import open_to_write
from gpulab.watch.observation import Device, Observation
from gpulab.watch.process_names import ProcessName
from gpulab.watch.rollup import update_totals
from gpulab.watch.schema import PROCESS_READINGS, READINGS, RESOLUTIONS, SECONDS

MAX_BYTES = 2 * 2**30
_MAX_UNWRITTEN = 600  # readings that wait in memory for a full disk; older ones become a gap
_VACUUM_PAGES = 256  # freed per cleaning: a few milliseconds
_SHRINK_S = 3600  # of the oldest seconds, deleted at once if the database is too large

NO_WATCH, KILLED, DISK_FULL = "no watch was running", "the watch was killed", "the history could not be written"


class HistoryWriter:
    """Writes the history of one host. Several writers may share a file: the first one writes a second's reading.

    A disk that is full or a database that is locked loses nothing for ten minutes: readings wait in memory.
    """

    def __init__(self, path: Path, host: str, *, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._host, self._max_bytes = path, host, max_bytes
        self._connection = open_to_write(path)
        self._devices: dict[Device, int] = {}
        self._processes: dict[ProcessName, int] = {}
        self._unwritten: list[tuple[Observation, Mapping[int, ProcessName]]] = []
        self._records: list[tuple[str, Device | None, tuple[Any, ...]]] = []  # events and gaps that wait, too
        self.failure = ""  # why the last write failed; "" if it did not

    def begin(self, now_s: int) -> None:
        """Name the gap since the last reading: the watch was stopped, or killed."""
        row = self._connection.execute(
            f"SELECT max(at_s) FROM {SECONDS.device_table} JOIN device ON device.id = device WHERE host = ?",
            (self._host,),
        ).fetchone()
        last_s = self._meta("last_reading") if row[0] is None else row[0]
        if last_s is not None and now_s - int(last_s) > 1:
            why = NO_WATCH if self._meta("stopped") == str(last_s) else KILLED
            self.gap(None, int(last_s) + 1, now_s, why)

    def devices(self) -> tuple[Device, ...]:
        """The devices of this host that the history has readings of in the last day."""
        query = (
            "SELECT uid, kind, name, memory_bytes, power_limit_w, sm_clock_max_mhz, driver FROM device "
            f"WHERE host = ? AND id IN (SELECT DISTINCT device FROM {SECONDS.device_table})"
        )
        names = ("uid", "kind", "name", "memory_bytes", "power_limit_w", "sm_clock_max_mhz", "driver")
        rows = self._connection.execute(query, (self._host,)).fetchall()
        return tuple(Device(**dict(zip(names, row, strict=True))) for row in rows)

    def append(self, observation: Observation, names: Mapping[int, ProcessName]) -> bool:
        """Write a reading and everything that waits. Returns False if it cannot be written now; then it waits."""
        self._unwritten.append((observation, names))
        if len(self._unwritten) > _MAX_UNWRITTEN:
            lost = self._unwritten.pop(0)[0]
            self.gap(None, lost.at_s, lost.at_s + 1, DISK_FULL)
        return self.flush()

    def flush(self) -> bool:
        """Write everything that waits."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for observation, names in self._unwritten:
                self._insert(observation, names)
            for statement, device, values in self._records:
                number = _ALL_DEVICES if device is None else self._device(device)
                self._connection.execute(statement, (self._host, number, *values))
            self._connection.execute("COMMIT")
        except sqlite3.Error as problem:
            self._devices, self._processes = {}, {}  # their rows may not have been written
            if self._connection.in_transaction:
                self._connection.rollback()
            self.failure = str(problem)
            return False
        self.failure = ""
        self._unwritten, self._records = [], []
        return True

    def gap(self, device: Device | None, from_s: int, until_s: int, why: str) -> None:
        """Record that there are no readings of a device, or of all, and why; again with a later end if it goes on."""
        for index, (statement, other, values) in enumerate(self._records):
            if statement == _GAP and other == device and values[2] == why and values[0] <= from_s <= values[1]:
                self._records[index] = (_GAP, device, (values[0], max(until_s, values[1]), why))
                return
        self._records.append((_GAP, device, (from_s, until_s, why)))

    def event(self, device: Device | None, at_s: float, kind: str, text: str) -> None:
        """Record an event."""
        self._records.append((_EVENT, device, (at_s, kind, text)))

    def maintain(self, now_s: int) -> None:
        """Compute the minutes and hours that have ended, and delete what is too old. Call it once a minute."""
        if self._unwritten:  # a minute that is computed now would lack them
            return
        try:
            update_totals(self._connection, now_s)
            self._prune(now_s)
        except sqlite3.Error as problem:
            if self._connection.in_transaction:
                self._connection.rollback()
            self.failure = str(problem)

    def close(self, now_s: int | None = None) -> None:
        """Write what waits, record that the watch stopped, and close the file."""
        if self.flush() and now_s is not None:
            self.maintain(now_s)
            with contextlib.suppress(sqlite3.Error):  # a full disk: the end is then taken for a kill
                self._set_meta("stopped", self._meta("last_reading") or "")
        self._connection.close()

    def size_bytes(self) -> int:
        """Size of the data, without free pages."""
        pages, free, page = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * page)

    def _insert(self, observation: Observation, names: Mapping[int, ProcessName]) -> None:
        for reading in observation.readings:
            if reading.why:
                continue
            device = self._device(reading.device)
            values = [reading.values.get(column.name) for column in READINGS]
            self._connection.execute(_INSERT_DEVICE, (observation.at_s, device, *values))
            for process in reading.processes or ():
                number = self._process(names[process.pid])
                row = (observation.at_s, device, number, process.memory_bytes, process.sm_frac)
                self._connection.execute(_INSERT_PROCESS, row)
        self._set_meta("last_reading", str(observation.at_s))

    def _device(self, device: Device) -> int:
        if device not in self._devices:
            columns = (device.kind, device.name, device.memory_bytes, device.power_limit_w, device.sm_clock_max_mhz)
            self._connection.execute(_INSERT_DEVICE_NAME, (self._host, device.uid, *columns, device.driver))
            query = "SELECT id FROM device WHERE host = ? AND uid = ?"
            self._devices[device] = self._connection.execute(query, (self._host, device.uid)).fetchone()[0]
        return self._devices[device]

    def _process(self, name: ProcessName) -> int:
        if name not in self._processes:
            identity = (self._host, name.pid, name.started_s)
            row = (*identity, name.user, name.name, name.job)
            self._connection.execute("INSERT OR IGNORE INTO process VALUES (NULL, ?, ?, ?, ?, ?, ?)", row)
            query = "SELECT id FROM process WHERE host = ? AND pid = ? AND started_s = ?"
            self._processes[name] = self._connection.execute(query, identity).fetchone()[0]
        return self._processes[name]

    def _prune(self, now_s: int) -> None:
        for resolution in RESOLUTIONS:
            if resolution.retention_s is not None:
                self._delete_before(now_s - resolution.retention_s, resolution.device_table, resolution.process_table)
        if self.size_bytes() > self._max_bytes:
            (oldest_s,) = self._connection.execute(f"SELECT min(at_s) FROM {SECONDS.device_table}").fetchone()
            if oldest_s is not None and oldest_s + _SHRINK_S < now_s:
                self._delete_before(oldest_s + _SHRINK_S, SECONDS.device_table, SECONDS.process_table)
        self._connection.execute(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})").fetchall()

    def _delete_before(self, at_s: int, *tables: str) -> None:
        for table in tables:
            self._connection.execute(f"DELETE FROM {table} WHERE at_s < ?", (at_s,))

    def _meta(self, key: str) -> str | None:
        row = self._connection.execute("SELECT value FROM meta WHERE key = ?", (f"{key} {self._host}",)).fetchone()
        return None if row is None else str(row[0])

    def _set_meta(self, key: str, value: str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"{key} {self._host}", value))


def _insert(table: str, columns: int) -> str:
    return f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * columns)})"


_ALL_DEVICES = 0
_EVENT = "INSERT INTO event VALUES (?, ?, ?, ?, ?)"
_GAP = "INSERT INTO gap VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET until_s = max(until_s, excluded.until_s)"
_INSERT_DEVICE = _insert(SECONDS.device_table, 2 + len(READINGS))
_INSERT_PROCESS = _insert(SECONDS.process_table, 3 + len(PROCESS_READINGS))
_INSERT_DEVICE_NAME = (
    "INSERT INTO device VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (host, uid) DO UPDATE SET"
    " name = excluded.name, power_limit_w = excluded.power_limit_w, driver = excluded.driver"
)
