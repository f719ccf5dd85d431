"""When a device worked and on what: busy time in any window, exact, in whole nanoseconds.

Busy is the time in which at least one kernel, copy or fill ran, however many ran beside one another. It is split
without counting an instant twice:

    busy = kernels + exposed communication + exposed copies

Exposed communication has no kernel beside it; exposed copies (fills among them) have neither a kernel nor
communication beside them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.steps.detection import Steps, steps
from gpulab.columns import Column
from gpulab.intervals import Coverage, Spans, gaps, merged, subtract
from gpulab.rows import Rows, Table
from gpulab.run import Run
from gpulab.tables import Kind

BUSY = Table(
    "busy",
    (
        Column("start_ns", "int64", "when the window begins, from the start of the run"),
        Column("end_ns", "int64", "when it ends"),
        Column("busy_ns", "int64", "time in which the device worked; -1 if the window was not recorded"),
        Column("idle_ns", "int64", "the rest of the window"),
        Column("busy_frac", "float64", "busy_ns as a share of the window, 0-1; NaN if not recorded or of no length"),
        Column("kernels_ns", "int64", "time in which a kernel ran that does not communicate"),
        Column("communication_ns", "int64", "time in which a collective ran"),
        Column("copies_ns", "int64", "time in which something was copied"),
        Column("fills_ns", "int64", "time in which memory was set"),
        Column("exposed_communication_ns", "int64", "communication with no kernel beside it"),
        Column("exposed_copies_ns", "int64", "copies and fills with no kernel and no communication beside them"),
    ),
)
_PARTS = ("kernels", "communication", "copies", "fills", "exposed_communication", "exposed_copies")


@dataclass(frozen=True, eq=False)
class Busy:
    """When a device worked, or at least one of several; merged once, then asked of any window."""

    device: int | None  # None: all devices together
    window_ns: tuple[int, int]  # from the beginning of the first piece of work to the end of the last
    work: Coverage
    kernels: Coverage
    communication: Coverage
    copies: Coverage
    fills: Coverage
    exposed_communication: Coverage
    exposed_copies: Coverage

    @property
    def busy_ns(self) -> int:
        """Busy time, all of it."""
        return self.work.total_ns

    @property
    def idle_ns(self) -> int:
        """Idle time between the beginning of the first work and the end of the last."""
        return self.window_ns[1] - self.window_ns[0] - self.work.total_ns

    def within(self, start_ns: ArrayLike, end_ns: ArrayLike) -> Rows:
        """One row of the table BUSY for each window; ask only about time in which events were recorded."""
        start = np.atleast_1d(np.asarray(start_ns, np.int64))
        end = np.maximum(np.atleast_1d(np.asarray(end_ns, np.int64)), start)
        busy = self.work.within(start, end)
        length = end - start
        share = np.divide(busy, length, out=np.full(len(start), np.nan), where=length > 0)
        parts = {f"{part}_ns": getattr(self, part).within(start, end) for part in _PARTS}
        own = {"start_ns": start, "end_ns": end, "busy_ns": busy, "idle_ns": length - busy, "busy_frac": share}
        return BUSY.rows({**own, **parts})

    def gaps(self, start_ns: int | None = None, end_ns: int | None = None) -> Spans:
        """When nothing ran: between the first work and the last, or in the window given."""
        first, last = self.window_ns
        return gaps(self.work.spans, first if start_ns is None else start_ns, last if end_ns is None else end_ns)


def busy(run: Run, device: int | None = None) -> Busy | None:
    """When a device worked, or any of them; None where the run holds no work of it: that is not known, not zero."""
    work = device_work(run, device)
    if not len(work):
        return None
    kernels, communication = work.of_kind(Kind.KERNEL).spans(), work.of_kind(Kind.COLLECTIVE).spans()
    copies, fills = work.of_kind(Kind.MEMCPY).spans(), work.of_kind(Kind.MEMSET).spans()
    moving = merged(copies, fills)
    return Busy(
        device=device,
        window_ns=(int(work.start_ns[0]), int(work.end_ns.max())),
        work=Coverage.of(merged(kernels, communication, moving)),
        kernels=Coverage.of(kernels),
        communication=Coverage.of(communication),
        copies=Coverage.of(copies),
        fills=Coverage.of(fills),
        exposed_communication=Coverage.of(subtract(communication, kernels)),
        exposed_copies=Coverage.of(subtract(subtract(moving, kernels), communication)),
    )


def busy_table(
    run: Run, windows: Literal["work", "recorded", "steps"] | Steps = "work", device: int | None = None
) -> Rows | None:
    """Busy and idle time per window; None where the run holds no device work.

    The windows: "work", one from the beginning of the first piece of work to the end of the last; "recorded", those
    in which events were recorded; "steps", or steps already found: a row for each step, -1 and NaN in one that was
    not recorded.
    """
    seen = busy(run, device)
    if seen is None:
        return None
    if windows == "work":
        return seen.within(*seen.window_ns)
    if windows == "recorded":
        bounds = np.array(run.recording.windows_ns, np.int64).reshape(-1, 2)
        return seen.within(bounds[:, 0], bounds[:, 1])
    found = windows if isinstance(windows, Steps) else steps(run)
    return _known(seen.within(found.start_ns, found.end_ns), found)


def _known(rows: Rows, found: Steps) -> Rows:
    """The same with nothing said of steps that were not recorded."""
    told = {}
    for column in rows.table.columns:
        values = rows[column.name]
        absent = np.nan if column.dtype == "float64" else -1
        bound = column.name in ("start_ns", "end_ns")
        told[column.name] = values if bound else np.where(found.recorded, values, absent)
    return rows.table.rows(told)
