"""Limits of this process: cores by affinity and cgroup quota, memory by cgroup limit, time lost to CPU throttling.

`root` stands for `/`, so that tests can lay out any system's files in a folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60  # cgroup v1 expresses "no limit" as a number near 2**63
_MOUNT = Path("sys/fs/cgroup")


def cores_allowed(root: Path = Path("/"), affinity: int | None = None) -> float | None:
    """Number of cores this process can use: by affinity or cgroup quota, whichever is less."""
    cores = affinity or _affinity()
    quotas = [
        cores_worth
        for controller, quota in (("", _quota_v2), ("cpu", _quota_v1))
        for folder in _folders(root, controller)
        for cores_worth in quota(folder)
    ]
    affinity_limits = [float(cores)] if cores else []
    return min([*affinity_limits, *quotas], default=None)


def memory_limit_bytes(root: Path = Path("/")) -> int | None:
    """The lowest memory limit of the cgroups of this process; None without a limit."""
    limits = [
        int(text)
        for name, file in (("", "memory.max"), ("memory", "memory.limit_in_bytes"))
        for folder in _folders(root, name)
        if (text := _read(folder / file)).isdigit()
    ]
    return min((limit for limit in limits if limit < _UNLIMITED_BYTES), default=None)


class Throttling:
    """Total time for which a CPU quota throttled this container. The files with quotas are found once, at creation."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._has_cgroups = bool(_read(root / "proc/self/cgroup"))
        self._files = [
            folder / "cpu.stat"
            for controller, quotas in (("", _quota_v2), ("cpu", _quota_v1))
            for folder in _folders(root, controller)
            if any(True for _ in quotas(folder))
        ]

    def read(self) -> float:
        """Seconds of throttling so far, by the strictest quota; 0 without a quota, NaN without cgroups."""
        if not self._has_cgroups:
            return math.nan
        return max((_throttled_s(_read(file)) for file in self._files), default=0.0)


def _throttled_s(stat: str) -> float:
    """Version 2 counts microseconds, version 1 nanoseconds."""
    fields = dict(line.split(" ", 1) for line in stat.splitlines() if " " in line)
    for name, per_s in (("throttled_usec", 1e6), ("throttled_time", 1e9)):
        if fields.get(name, "").isdigit():
            return int(fields[name]) / per_s
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
    """The cgroup of this process and its ancestors, as far as they are visible: the limits of all of them apply.

    `controller` is "" for the single hierarchy of v2. In a container the mount may show only the container's own part,
    under a shorter path than in /proc; folders that do not exist then read as empty.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controller not in controllers.split(","):
            continue
        mount = root / _MOUNT
        bases = (mount, mount / "unified") if not controller else (mount / controllers, mount / controller)
        for base in bases:
            leaf = base / path.lstrip("/")
            yield from (folder for folder in (leaf, *leaf.parents) if folder.is_relative_to(base))


def _read(path: Path) -> str:
    """Text of a kernel file; "" if it does not exist or is not readable."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
