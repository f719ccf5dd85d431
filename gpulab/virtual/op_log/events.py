"""Events of a virtual run: rows are logged while the program runs and become tables of gpulab.tables at the end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.tables import EVENTS, GRIDS, MEMORY, SHAPES, WAITS, EventKind
from gpulab.virtual.cost_model.kernel import Kernel, OpClass
from gpulab.virtual.op_log.ops import TensorInfo

MAIN, AUTOGRAD = 0, 1  # threads
THREADS = ("thread 1 (python)", "thread 2 (pt_autograd_0)")
# The profiler's names of dtypes; other dtypes keep their torch name.
_TYPES = {
    "float32": "float",
    "float64": "double",
    "float16": "c10::Half",
    "bfloat16": "c10::BFloat16",
    "int64": "long int",
}


class EventLog:
    """Events and memory of a virtual run; times are ns of the virtual clock, rounded to integers in `tables`."""

    def __init__(self) -> None:
        self._events: list[tuple[Any, ...]] = []
        self._grids: list[tuple[Any, ...]] = []
        self._shapes: list[tuple[Any, ...]] = []
        self._waits: list[tuple[Any, ...]] = []
        self._memory: list[tuple[Any, ...]] = []
        self.kernel_classes: set[OpClass] = set()  # classes of the kernels logged so far

    def add_host_event(
        self, kind: EventKind, name: str, start_ns: float, end_ns: float, *, thread: int, correlation: int = -1
    ) -> int:
        """Log a call, an operator or a range on the host; return its row."""
        self._events.append((kind, name, start_ns, end_ns, thread, -1, -1, correlation, -1))
        return len(self._events) - 1

    def open_host_event(self, kind: EventKind, name: str, start_ns: float, *, thread: int) -> int:
        """Log the start of a host event, before the events inside it; `close` sets its end."""
        return self.add_host_event(kind, name, start_ns, start_ns, thread=thread)

    def close_host_event(self, row: int, end_ns: float) -> None:
        """Set the end of an event that `open` logged."""
        kind, name, start_ns, _, *rest = self._events[row]
        self._events[row] = (kind, name, start_ns, end_ns, *rest)

    def add_device_event(
        self,
        kind: EventKind,
        name: str,
        start_ns: float,
        end_ns: float,
        *,
        stream: int,
        correlation: int,
        size: int = -1,
    ) -> int:
        """Log work on the GPU; return its row."""
        self._events.append((kind, name, start_ns, end_ns, -1, 0, stream, correlation, size))
        return len(self._events) - 1

    def add_kernel(self, kernel: Kernel, start_ns: float, end_ns: float, *, stream: int, correlation: int) -> None:
        """Log a kernel, or a copy or fill within the GPU."""
        kind = EventKind.MEMCPY if kernel.name.startswith("Memcpy") else EventKind.KERNEL
        kind = EventKind.MEMSET if kernel.name.startswith("Memset") else kind
        row = self.add_device_event(kind, kernel.name, start_ns, end_ns, stream=stream, correlation=correlation)
        self.kernel_classes.add(kernel.op_class)
        if kind is EventKind.KERNEL:
            self._grids.append((row, kernel.grid, kernel.block, kernel.registers, kernel.shared_bytes, float("nan")))

    def add_shapes(self, row: int, inputs: Sequence[TensorInfo]) -> None:
        """Log the input shapes and dtypes of an operator."""
        sizes = [list(each.sizes) for each in inputs]
        types = [_TYPES.get(each.dtype, each.dtype) for each in inputs]
        self._shapes.append((row, json.dumps(sizes), json.dumps(types)))

    def add_stream_wait(
        self, at_ns: float, *, stream: int, correlation: int, on_stream: int, on_correlation: int
    ) -> None:
        """Log that a stream waits for an event of another stream."""
        row = self.add_device_event(
            EventKind.SYNC_RECORD, "Stream Wait Event", at_ns, at_ns, stream=stream, correlation=correlation
        )
        self._waits.append((row, on_stream, on_correlation))

    def add_memory(self, at_ns: float, size: int, key: int, allocated: int, reserved: int) -> None:
        """Log an allocation (or a free, with a negative size) and the totals after it."""
        self._memory.append((at_ns, MAIN, 0, size, key, allocated, reserved))

    def tables(self, began_ns: float) -> dict[str, Any]:
        """Return the log as tables, by field name of Run, with times relative to `began_ns`."""
        start = np.array([round(event[2] - began_ns) for event in self._events], np.int64)
        dur = np.array([round(event[3] - began_ns) for event in self._events], np.int64) - start
        # By start; of events with the same start, parents before their children.
        order = np.lexsort((np.arange(len(start)), -dur, start))
        new_rows = np.empty(len(order), np.int64)
        new_rows[order] = np.arange(len(order))
        rows = [(kind, name, 0, 0, *rest) for kind, name, _, _, *rest in self._events]
        events = EVENTS.rows({**EVENTS.of(rows).columns, "start_ns": start, "dur_ns": dur}).select(order)
        row_logs = {
            "grid_rows": (GRIDS, self._grids),
            "shape_rows": (SHAPES, self._shapes),
            "wait_rows": (WAITS, self._waits),
        }
        tables = {
            name: table.of(sorted((int(new_rows[row]), *rest) for row, *rest in rows))
            for name, (table, rows) in row_logs.items()
        }
        memory = MEMORY.of([(round(at - began_ns), *rest) for at, *rest in self._memory])
        return {"event_rows": events, "memory_rows": memory, **tables}
