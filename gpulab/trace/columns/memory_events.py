"""The profiler's memory events -> the memory table."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import MEMORY
from gpulab.trace.columns import arguments
from gpulab.trace.columns.times import MISSING, of_anything
from gpulab.trace.reading.batches import Batch
from gpulab.trace.reading.limits import NO_TIME, Losses

_KEYS = ("Bytes", "Addr", "Device Id", "Device Type", "Total Allocated", "Total Reserved")
_HOST = 0  # as PyTorch numbers the types of devices


class Moments:
    """The memory events so far."""

    def __init__(self) -> None:
        self._parts: dict[str, list[NDArray[Any]]] = {column.name: [] for column in MEMORY.columns}

    def take(self, batch: Batch, threads: NDArray[np.int32]) -> None:
        """Add the memory events of a piece; `threads` has the code of each one's thread."""
        nothing = [None] * len(batch.memory)
        sizes, places, devices, kinds, allocated, reserved = (
            each or nothing for each in batch.told(batch.memory, _KEYS)
        )
        on_host = arguments.wholes(kinds) == _HOST
        part: dict[str, NDArray[Any]] = {
            "at_ns": of_anything(list(map(batch.get["ts"], batch.memory))),
            "thread": threads,
            "device": np.where(on_host, -1, arguments.fitting(arguments.wholes(devices), np.dtype(np.int16))),
            "bytes": arguments.amounts(sizes),
            "address": arguments.addresses(places),
            "allocated_bytes": arguments.addresses(allocated),
            "reserved_bytes": arguments.addresses(reserved),
        }
        for name, values in part.items():
            self._parts[name].append(values)

    def rows(self, zero_ns: int, threads: NDArray[np.int32], losses: Losses) -> Rows:
        """All rows in order of time; `threads` has the final code of each thread."""
        if not self._parts["at_ns"]:
            return MEMORY.empty()
        columns: dict[str, NDArray[Any]] = {name: np.concatenate(parts) for name, parts in self._parts.items()}
        self._parts.clear()
        at: Ints = columns["at_ns"]
        losses.add(NO_TIME, int((at == MISSING).sum()))
        order = np.argsort(at, kind="stable")
        order = order[at[order] != MISSING]
        columns = {name: values[order] for name, values in columns.items()}
        return MEMORY.rows(columns | {"at_ns": columns["at_ns"] - zero_ns, "thread": threads[columns["thread"]]})
