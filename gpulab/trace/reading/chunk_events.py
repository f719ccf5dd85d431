"""Options for reading a chunk of a trace, and the resulting events."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from gpulab.trace.columns.side_tables import (
    CALL_ARGUMENTS,
    DEVICE_WORK_ARGUMENTS,
    KERNEL_ARGUMENTS,
    SIDE_TABLES_OF_WORK,
    SideTable,
)

# Metadata next to the events, under the format's names; None if a file does not have it.
Header = Mapping[str, Any]
HEADER_KEYS = (
    "deviceProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "host_name",
    "cuda_runtime_version",
    "cuda_driver_version",
    "hip_runtime_version",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
)
NO_HEADER: Header = dict.fromkeys(HEADER_KEYS)


class ReadOptions(NamedTuple):
    """Options for reading a chunk. A file pays only for what it needs."""

    side_tables: frozenset[SideTable] = frozenset(
        (CALL_ARGUMENTS, DEVICE_WORK_ARGUMENTS, KERNEL_ARGUMENTS)
    )  # side tables whose arguments are read
    exact_times: bool = False  # times as Decimals: float64 does not hold all times of this file exactly to the ns
    known_categories_only: bool = True  # only known categories, for which no string is created


READ_EVERYTHING = ReadOptions(
    side_tables=frozenset(SIDE_TABLES_OF_WORK), exact_times=True, known_categories_only=False
)  # for chunks that are read only once


class Batch(NamedTuple):
    """Events of a chunk. Their fields are JSON values; times are in us, NaN if missing."""

    work: list[Any]  # events with a duration: name, cat, pid, tid, ts, dur, args
    memory: list[Any]  # allocations and frees: pid, tid, ts, args
    labels: list[Any]  # names of threads: pid, tid, args.name

    def extend(self, other: Batch) -> None:
        """Add the events of another batch."""
        for events, more in zip(self, other, strict=True):
            events.extend(more)
