"""What this process may really use: cores by affinity and cgroup quota, memory by cgroup limit; and when it may not.

`root` stands for `/`, so that tests can lay out any system's files in a folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60  # cgroup v1 has no word for "no limit", only a number near 2**63
_MOUNT = Path("sys/fs/cgroup")


def cores_allowed(root: Path = Path("/"), affinity: int | None = None) -> float | None:
    """How many cores' worth of CPU time this process can get: by affinity and cgroup quota, whichever is less."""
    cores = affinity or _affinity()
    quotas = [
        cores_worth
        for controller, quota in (("", _quota_v2), ("cpu", _quota_v1))
        for folder in _folders(root, controller)
        for cores_worth in quota(folder)
    ]
    known = [float(cores)] if cores else []
    return min([*known, *quotas], default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The least memory limit of the cgroups this process is in; None where there is none."""
    limits = [
        int(text)
        for name, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
        for folder in _folders(root, name)
        if (text := _read(folder / file)).isdigit()
    ]
    return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)


class Throttling:
    """For how long a CPU quota held this container back so far. What has a quota is found once, at the beginning."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._told = bool(_read(root / "proc/self/cgroup"))
        self._files = [
            folder / "cpu.stat"
            for controller, quotas in (("", _quota_v2), ("cpu", _quota_v1))
            for folder in _folders(root, controller)
            if any(True for _ in quotas(folder))
        ]

    def read(self) -> float:
        """Seconds so far, by the quota that held back most; 0 where there is none, NaN where none is told of."""
        if not self._told:
            return math.nan
        return max((_throttled_s(_read(file)) for file in self._files), default=0.0)


def _throttled_s(stat: str) -> float:
    """Version 2 counts microseconds, version 1 nanoseconds."""
    told = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    for name, per_s in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if told.get(name, "").isdigit():
            return int(told[name]) / per_s
    return math.nan


def _affinity() -> int | None:
    if hasattr(os, "sched_getaffinity"):  # Linux; elsewhere a process may use every core
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _quota_v2(folder: Path) -> Iterator[float]:
    """cpu.max holds "quota period" in microseconds, or "max period"."""
    quota, _, period = _read(folder / "cpu.max").partition(" ")
    yield from _share(quota, period)


def _quota_v1(folder: Path) -> Iterator[float]:
    """Quota -1 means none."""
    yield from _share(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _share(quota: str, period: str) -> Iterator[float]:
    if quota.isdigit() and period.isdigit() and int(period):
        yield int(quota) / int(period)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """This process's cgroup and its ancestors, as far as they are visible; a limit of any of them binds.

    `controller` is "" for the one hierarchy of v2. In a container the mount may show only the container's own part,
    under a path shorter than the one /proc tells: folders that do not exist then read as nothing.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        mount = root / _MOUNT
        bases = (mount, mount / "unified") if not controller else (mount / controllers, mount / controller)
        for base in bases:
            own = base / path.lstrip("/")
            yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(base))


def _read(path: Path) -> str:
    """The text of a small file of the kernel's; "" where there is none or it is not ours to read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
