"""Device work of a run in order of time: kernels, copies and memsets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Array, Rows
from gpulab.run import Run
from gpulab.tables import EventKind

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class DeviceWork:
    """Kernels, copies and memsets in order of their start, including those without a launch call in the trace."""

    events: Rows  # all events of the run
    event_rows: Ints  # row of the event of each device op

    def __len__(self) -> int:
        return len(self.event_rows)

    def __getitem__(self, column: str) -> Array:
        return self.events[column][self.event_rows]

    @property
    def start_ns(self) -> Ints:
        """Start of each device op."""
        return self["start_ns"]

    @property
    def end_ns(self) -> Ints:
        """End of each device op."""
        return self["start_ns"] + self["dur_ns"]

    def select(self, mask: Mask) -> DeviceWork:
        """Return the work selected by a mask."""
        return DeviceWork(self.events, self.event_rows[np.flatnonzero(mask)])

    def kind_mask(self, *kinds: EventKind) -> Mask:
        """Return a mask of the work of these kinds."""
        kind = self["kind"]
        mask: Mask = kind == kinds[0].value
        for other in kinds[1:]:
            mask = mask | (kind == other.value)
        return mask

    def of_kind(self, *kinds: EventKind) -> DeviceWork:
        """Return the work of these kinds."""
        return self.select(self.kind_mask(*kinds))

    def spans(self) -> Spans:
        """Return the time in which at least one device op ran."""
        start = self.start_ns
        return union(start, start + self["dur_ns"])


def device_work(run: Run, device: int | None = None) -> DeviceWork:
    """Return the work of one device, or of all devices."""
    events = run.event_rows
    mask = events["kind"] >= EventKind.KERNEL.value
    if device is not None:
        mask = mask & (events["device"] == device)
    index = np.flatnonzero(mask)
    start = events["start_ns"][index]
    if (start[1:] < start[:-1]).any():
        index = index[np.argsort(start, kind="stable")]
    return DeviceWork(events, index)


def stream_keys(work: DeviceWork) -> Ints:
    """Return one integer per device op that identifies its device and stream; on a CPU, its thread."""
    on_cpu = work["device"] < 0
    stream = np.where(on_cpu & (work["stream"] < 0), work["thread"], work["stream"])
    keys: Ints = work["device"].astype(np.int64) << 32 | (stream & 0xFFFFFFFF)
    return keys


def missing_work_reason(run: Run) -> str | None:
    """Say why the run lacks device work although there was some; None if it has work, or there is no sign of any."""
    kinds = run.event_rows["kind"]
    if (kinds >= EventKind.KERNEL.value).any():
        return None
    if (kinds == EventKind.LAUNCH.value).any():
        return "launch calls were recorded, but no work of the GPU"
    if run.machine.gpus and run.recording.lost:
        return "the damaged trace contains no work of the GPU"
    return None


def devices(run: Run) -> tuple[int, ...]:
    """Return the indices of the devices that worked in this run; -1 means work on an unknown device."""
    return tuple(np.unique(device_work(run)["device"]).tolist())
