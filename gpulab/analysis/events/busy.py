"""Busy time of a device in any window, by kind of work, in whole nanoseconds.

The device is busy while at least one kernel, copy or memset runs. Busy time is split without counting any time twice:

    busy = kernels + exposed communication + exposed copies

Exposed communication is not overlapped by a kernel. Exposed copies (and memsets) are not overlapped by a kernel or by
communication.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Mask, Steps, find_steps
from gpulab.columns import Column
from gpulab.intervals import Coverage, Spans, gaps, subtract, union_of
from gpulab.rows import Rows, Table
from gpulab.run import Run
from gpulab.tables import EventKind

BUSY = Table(
    "busy",
    (
        Column("start_ns", "int64", "when the window starts, from the start of the run"),
        Column("end_ns", "int64", "when it ends"),
        Column("busy_ns", "int64", "time in which the device worked; -1 if the window was not recorded"),
        Column("idle_ns", "int64", "the rest of the window"),
        Column("busy_frac", "float64", "busy_ns as a share of the window, 0-1; NaN if not recorded or of no length"),
        Column("kernels_ns", "int64", "time in which a kernel ran, collectives excluded"),
        Column("communication_ns", "int64", "time in which a collective ran"),
        Column("copies_ns", "int64", "time in which a copy ran"),
        Column("fills_ns", "int64", "time in which a memset ran"),
        Column("exposed_communication_ns", "int64", "communication not overlapped by a kernel"),
        Column("exposed_copies_ns", "int64", "copies and memsets not overlapped by a kernel or by communication"),
    ),
)
_PARTS = ("kernels", "communication", "copies", "fills", "exposed_communication", "exposed_copies")


@dataclass(frozen=True, eq=False)
class Busy:
    """When a device, or at least one of all devices, worked. Merged once; then any window can be queried."""

    device: int | None  # None: all devices together
    window_ns: tuple[int, int]  # from the start of the first work to the end of the last
    work: Coverage
    kernels: Coverage
    communication: Coverage
    copies: Coverage
    fills: Coverage
    exposed_communication: Coverage
    exposed_copies: Coverage

    @property
    def busy_ns(self) -> int:
        """Total busy time."""
        return self.work.total_ns

    @property
    def idle_ns(self) -> int:
        """Idle time between the start of the first work and the end of the last."""
        return self.window_ns[1] - self.window_ns[0] - self.work.total_ns

    def in_windows(self, start_ns: ArrayLike, end_ns: ArrayLike) -> Rows:
        """Return one row of the table BUSY per window. Valid only for windows in which events were recorded."""
        start = np.atleast_1d(np.asarray(start_ns, np.int64))
        end = np.maximum(np.atleast_1d(np.asarray(end_ns, np.int64)), start)
        busy = self.work.covered_ns(start, end)
        length = end - start
        share = np.divide(busy, length, out=np.full(len(start), np.nan), where=length > 0)
        parts = {f"{part}_ns": getattr(self, part).covered_ns(start, end) for part in _PARTS}
        totals = {"start_ns": start, "end_ns": end, "busy_ns": busy, "idle_ns": length - busy, "busy_frac": share}
        return BUSY.rows({**totals, **parts})

    def gaps(self, start_ns: int | None = None, end_ns: int | None = None) -> Spans:
        """Return the idle time between the first work and the last, or in the given window."""
        first, last = self.window_ns
        return gaps(self.work.spans, first if start_ns is None else start_ns, last if end_ns is None else end_ns)


def busy_time(run: Run, device: int | None = None) -> Busy | None:
    """Compute when a device, or any device, worked. None if the run has no work of it: unknown, not zero."""
    work = device_work(run, device)
    if not len(work):
        return None
    kernels, communication = work.of_kind(EventKind.KERNEL).spans(), work.of_kind(EventKind.COLLECTIVE).spans()
    copies, fills = work.of_kind(EventKind.MEMCPY).spans(), work.of_kind(EventKind.MEMSET).spans()
    transfers = union_of(copies, fills)
    return Busy(
        device=device,
        window_ns=(int(work.start_ns[0]), int(work.end_ns.max())),
        work=Coverage.of(union_of(kernels, communication, transfers)),
        kernels=Coverage.of(kernels),
        communication=Coverage.of(communication),
        copies=Coverage.of(copies),
        fills=Coverage.of(fills),
        exposed_communication=Coverage.of(subtract(communication, kernels)),
        exposed_copies=Coverage.of(subtract(subtract(transfers, kernels), communication)),
    )


def busy_table(
    run: Run, windows: Literal["work", "recorded", "steps"] | Steps = "work", device: int | None = None
) -> Rows | None:
    """Return busy and idle time per window; None if the run has no device work.

    Windows: "work", one window from the start of the first work to the end of the last; "recorded", the windows in
    which events were recorded; "steps", or a `Steps`, one row for each step, with -1 and NaN for steps that were not
    recorded.
    """
    device_busy = busy_time(run, device)
    if device_busy is None:
        return None
    if windows == "work":
        return device_busy.in_windows(*device_busy.window_ns)
    if windows == "recorded":
        bounds = np.array(run.recording.windows_ns, np.int64).reshape(-1, 2)
        return device_busy.in_windows(bounds[:, 0], bounds[:, 1])
    all_steps = windows if isinstance(windows, Steps) else find_steps(run)
    return _recorded_only(device_busy.in_windows(all_steps.start_ns, all_steps.end_ns), all_steps.recorded)


def _recorded_only(rows: Rows, recorded: Mask) -> Rows:
    """Set the values of steps that were not recorded to -1 or NaN."""
    columns = {}
    for column in rows.table.columns:
        values = rows[column.name]
        absent = np.nan if column.dtype == "float64" else -1
        is_bound = column.name in ("start_ns", "end_ns")
        columns[column.name] = values if is_bound else np.where(recorded, values, absent)
    return rows.table.rows(columns)
