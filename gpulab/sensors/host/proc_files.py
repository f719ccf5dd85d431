"""What Linux knows about this process and the cores, from files of /proc that stay open between readings.

A reading is one system call instead of six. Each call lets go of the GIL and must get it back from the recorded thread,
which is most of what a reading costs the program.
"""

from __future__ import annotations

import errno
import math
import os
import re
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
_VMSTAT_BYTES = 16_384
_SWAPPED_IN = re.compile(r"^pswpin (\d+)$", re.M)
_LINE_BYTES = 256  # a line of /proc/stat has at most ten numbers of 20 digits


class CpuTimes(NamedTuple):
    """CPU seconds of one core, or of several together."""

    busy: float
    waiting: float  # idle while waiting for storage; NaN if unknown
    total: float


class ProcFile:
    """A file that the kernel writes anew at every reading from its start; opened by the first reading."""

    def __init__(self, path: Path, size: int = 1024) -> None:
        self._path, self._size = path, size
        self._descriptor: int | None = None
        self._identity: tuple[int, int] | None = None
        self._closed = False

    def read(self) -> str:
        """Return the text, up to `size` bytes; raises OSError if the file cannot be read, or if it was closed."""
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), str(self._path))
        if self._descriptor is None:
            self._descriptor = os.open(self._path, os.O_RDONLY)
            self._identity = _identity(self._descriptor)
        return os.pread(self._descriptor, self._size, 0).decode("ascii", "replace")

    def close(self) -> None:
        """Close the file for good; a second call does nothing."""
        descriptor, self._descriptor, self._closed = self._descriptor, None, True
        # The program may have closed all its descriptors, and opened a file of its own under this number.
        if descriptor is not None and _identity(descriptor) == self._identity:
            os.close(descriptor)


class ProcFiles:
    """Readings of this process and of all cores; None or NaN where /proc does not tell them."""

    def __init__(self, proc: Path = PROC) -> None:
        self._statm = ProcFile(proc / "self/statm")
        self._io = ProcFile(proc / "self/io")
        self._vmstat = ProcFile(proc / "vmstat", _VMSTAT_BYTES)
        self._stat = ProcFile(proc / "stat", _LINE_BYTES * ((os.cpu_count() or 1) + 2))

    def rss_bytes(self) -> float | None:
        """Resident memory: the second number of statm, in pages."""
        try:
            return float(int(self._statm.read().split()[1]) * os.sysconf("SC_PAGESIZE"))
        except (OSError, ValueError, IndexError):
            return None

    def read_bytes(self) -> float | None:
        """Bytes that this process caused to be read from storage; None also if the system denies access."""
        try:
            fields = dict(line.split(": ") for line in self._io.read().splitlines())
            return float(int(fields["read_bytes"]))
        except (OSError, ValueError, KeyError):
            return None

    def swapped_in_bytes(self) -> float | None:
        """Bytes that the system read back from swap since it started, of all processes."""
        try:
            match = _SWAPPED_IN.search(self._vmstat.read())
            return None if match is None else float(int(match[1]) * os.sysconf("SC_PAGESIZE"))
        except (OSError, ValueError):
            return None

    def core_times(self) -> list[CpuTimes] | None:
        """CPU time of each core since the system started."""
        try:
            lines = self._stat.read().split("\n")[:-1]  # without the part of a line at the end
            times = [_core_times(line) for line in lines if line.startswith("cpu") and not line.startswith("cpu ")]
        except (OSError, ValueError):
            return None
        return times or None

    def close(self) -> None:
        """Close all files for good."""
        for file in (self._statm, self._io, self._vmstat, self._stat):
            file.close()


def delayed_s(file: ProcFile) -> float:
    """Time for which a thread was ready to run but had no core, from its schedstat file; NaN if unknown.

    This is the second number, in ns (Documentation/scheduler/sched-stats.rst); some kernels lack it.
    """
    try:
        return int(file.read().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return math.nan


def schedstat(native_id: int) -> ProcFile:
    """Return the schedstat file of a thread of this process."""
    return ProcFile(PROC / f"self/task/{native_id}/schedstat")


def _core_times(line: str) -> CpuTimes:
    """Parse the line of one core: user, nice, system, idle, iowait, irq, softirq, steal, in clock ticks.

    Time of guests follows; it is part of user and nice already. Waiting for storage is not work.
    """
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    seconds = [int(ticks) / ticks_per_s for ticks in line.split()[1:9]]
    if len(seconds) < 5:
        raise ValueError(line)
    total, idle, waiting = sum(seconds), seconds[3], seconds[4]
    return CpuTimes(total - idle - waiting, waiting, total)


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open file; None if the descriptor is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino
