"""Tables of the database, and how long each resolution is stored.

Device readings are the columns of DEVICE_SAMPLES. In minutes and hours, a level has its mean, minimum and maximum, a
counter its last value, and a bit mask every bit that was set. NULL means "not measured", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.columns import Column, ValueKind
from gpulab.sensor_tables import DEVICE_SAMPLES

VERSION = 1
HOUR_S, DAY_S = 3600, 86_400
HOST_KIND, GPU_KIND, MIG_KIND = "host", "gpu", "mig"
READINGS = tuple(column for column in DEVICE_SAMPLES.columns if column.label)
MINIMUM, MAXIMUM = "_min", "_max"


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """One resolution of the history: the name of its tables, its period, and how long it is stored (None: for ever)."""

    name: str
    period_s: int
    retention_s: int | None

    @property
    def device_table(self) -> str:
        """Table of the readings of devices."""
        return f"device_{self.name}"

    @property
    def process_table(self) -> str:
        """Table of the readings of processes."""
        return f"process_{self.name}"


SECONDS = Resolution(name="second", period_s=1, retention_s=DAY_S)
MINUTES = Resolution(name="minute", period_s=60, retention_s=31 * DAY_S)
HOURS = Resolution(name="hour", period_s=HOUR_S, retention_s=None)
RESOLUTIONS = (SECONDS, MINUTES, HOURS)

# Of a period, besides the readings: seconds with a reading, with a process on the GPU, and with one but without work.
SHARES = ("covered_s", "held_s", "held_idle_s")
PROCESS_READINGS = ("memory_bytes", "sm_frac")
PROCESS_SHARES = ("covered_s", "idle_s", "device_util_frac")


def aggregate_columns(column: Column) -> tuple[str, ...]:
    """Return the names that a reading has in minutes and hours."""
    if column.value_kind is ValueKind.LEVEL:
        return column.name, column.name + MINIMUM, column.name + MAXIMUM
    return (column.name,)


AGGREGATES = tuple(name for column in READINGS for name in aggregate_columns(column))


def statements() -> tuple[str, ...]:
    """Return the SQL that creates the tables."""
    return (
        "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
        "CREATE TABLE device (id INTEGER PRIMARY KEY, host TEXT, uid TEXT, kind TEXT, name TEXT, memory_bytes REAL,"
        " power_limit_w REAL, sm_clock_max_mhz REAL, driver TEXT, UNIQUE (host, uid))",
        "CREATE TABLE process (id INTEGER PRIMARY KEY, host TEXT, pid INTEGER, started_s REAL, user TEXT, name TEXT,"
        " job TEXT, UNIQUE (host, pid, started_s))",
        # Device 0: all devices of the host.
        "CREATE TABLE gap (host TEXT, device INTEGER, from_s INTEGER, until_s INTEGER, why TEXT,"
        " UNIQUE (host, device, from_s, why))",
        "CREATE TABLE event (host TEXT, device INTEGER, at_s REAL, kind TEXT, text TEXT)",
        "CREATE INDEX event_time ON event (at_s)",
        *_samples(SECONDS, tuple(column.name for column in READINGS), PROCESS_READINGS),
        *_samples(MINUTES, (*SHARES, *AGGREGATES), (*PROCESS_READINGS, *PROCESS_SHARES)),
        *_samples(HOURS, (*SHARES, *AGGREGATES), (*PROCESS_READINGS, *PROCESS_SHARES)),
    )


def _samples(resolution: Resolution, device: tuple[str, ...], process: tuple[str, ...]) -> tuple[str, ...]:
    device_columns, process_columns = (", ".join(f"{name} REAL" for name in names) for names in (device, process))
    # With the time in the key, a second writer of the same device adds nothing, and old rows are deleted in order.
    return (
        f"CREATE TABLE {resolution.device_table} (at_s INTEGER, device INTEGER, {device_columns},"
        " PRIMARY KEY (at_s, device)) WITHOUT ROWID",
        f"CREATE TABLE {resolution.process_table} (at_s INTEGER, device INTEGER, process INTEGER, {process_columns},"
        " PRIMARY KEY (at_s, device, process)) WITHOUT ROWID",
    )
