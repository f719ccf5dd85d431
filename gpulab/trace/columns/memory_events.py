"""Convert the profiler's memory events to the memory table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.tables import MEMORY
from gpulab.trace.columns import arguments
from gpulab.trace.columns.growing_array import GrowingArray
from gpulab.trace.columns.side_tables import MEMORY_ARGUMENTS
from gpulab.trace.columns.times import MISSING
from gpulab.trace.reading.limits import NO_TIME, Losses

_HOST = 0  # PyTorch's number of the device type


class MemoryEvents:
    """Memory events so far."""

    def __init__(self) -> None:
        self._columns = {column.name: GrowingArray(np.dtype(column.dtype)) for column in MEMORY.columns}

    def add(self, values: Sequence[arguments.Values], at_ns: Ints, threads: NDArray[np.int32]) -> None:
        """Add the memory events of a chunk, whose `threads` are thread codes; `values` as MEMORY_ARGUMENTS has them."""
        part = {
            name: reading.read(argument_values)
            for (name, reading), argument_values in zip(MEMORY_ARGUMENTS.readings.items(), values, strict=True)
            if reading.read is not None
        }
        on_host = part.pop("device_type") == _HOST
        part["device"] = np.where(on_host, -1, arguments.cast_to_column(part["device"], np.dtype(np.int16)))
        part |= {"at_ns": at_ns, "thread": threads}
        for name, column in self._columns.items():
            column.append(part[name])

    def rows(self, zero_ns: int, threads: NDArray[np.int32], losses: Losses) -> Rows:
        """All rows in order of time; `threads` maps the codes to final thread codes."""
        columns: dict[str, NDArray[Any]] = {name: column.take_all() for name, column in self._columns.items()}
        at: Ints = columns["at_ns"]
        losses.add(NO_TIME, int((at == MISSING).sum()))
        order = np.argsort(at, kind="stable")
        order = order[at[order] != MISSING]
        columns = {name: values[order] for name, values in columns.items()}
        return MEMORY.rows(columns | {"at_ns": columns["at_ns"] - zero_ns, "thread": threads[columns["thread"]]})
