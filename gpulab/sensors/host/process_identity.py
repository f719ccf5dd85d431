"""Name a process so that another process can tell later whether it still runs: machine, process id, start time.

A process id alone is used again by later processes, and on a shared folder it may be of another machine or container.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil

_PATTERN = re.compile(r"([0-9a-f]{8})-(\d{1,10})-(\d{1,20})")


@dataclass(frozen=True)
class ProcessIdentity:
    """A process; its text is part of file names."""

    machine: str  # this start of the machine, and this container
    pid: int
    started: int  # start time in the unit of the system; 0: unknown

    def __str__(self) -> str:
        return f"{self.machine}-{self.pid}-{self.started}"

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """The process named at the start of a text; None if there is none."""
        match = _PATTERN.match(text)
        return cls(match[1], int(match[2]), int(match[3])) if match else None

    @property
    def is_local(self) -> bool:
        """Whether it is or was a process of this machine, since its last start, and of this container."""
        return self.machine == _machine_id()

    @property
    def has_ended(self) -> bool:
        """Whether the process has ended; False if it is of another machine, where nobody here can tell."""
        return self.is_local and self.started > 0 and _start_time(self.pid) != self.started


def current_process() -> ProcessIdentity:
    """The calling process."""
    return _identity(os.getpid())


@functools.lru_cache(maxsize=1)
def _identity(pid: int) -> ProcessIdentity:
    return ProcessIdentity(_machine_id(), pid, _start_time(pid) or 0)


@functools.cache
def _machine_id() -> str:
    parts = [platform.node()]
    try:
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"))
        parts.append(str(Path("/proc/self/ns/pid").readlink()))
    except (OSError, ValueError):  # not Linux, or /proc is hidden: the host name must do
        pass
    return hashlib.sha256("\n".join(parts).encode("utf-8", "replace")).hexdigest()[:8]


def _start_time(pid: int) -> int | None:
    """When the process started; None if there is none, or it has ended and waits for its parent."""
    if sys.platform == "linux":
        # In clock ticks since the machine started; psutil converts them to a time that moves when the clock is set.
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
            fields = text.rpartition(")")[2].split()  # the name before it may contain anything
            return None if fields[0] in "ZX" else int(fields[19])
        except (OSError, ValueError, IndexError):
            return None
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else int(process.create_time())
    except psutil.Error:
        return None
