"""Device work of a run in order of time: what every figure about a device begins with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Array, Rows
from gpulab.run import Run
from gpulab.tables import Kind

Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Work:
    """Kernels, copies and fills, in order of their beginning; those without a launch in the trace are among them."""

    events: Rows  # all events of the run
    event: Ints  # which of them each piece of work is

    def __len__(self) -> int:
        return len(self.event)

    def __getitem__(self, column: str) -> Array:
        return self.events[column][self.event]

    @property
    def start_ns(self) -> Ints:
        """When each began."""
        return self["start_ns"]

    @property
    def end_ns(self) -> Ints:
        """When each ended."""
        return self["start_ns"] + self["dur_ns"]

    def where(self, mask: Mask) -> Work:
        """The part of it that a mask picks."""
        return Work(self.events, self.event[np.flatnonzero(mask)])

    def is_kind(self, *kinds: Kind) -> Mask:
        """Which of it is of one of these kinds."""
        kind = self["kind"]
        mask: Mask = kind == kinds[0]
        for other in kinds[1:]:
            mask = mask | (kind == other)
        return mask

    def of_kind(self, *kinds: Kind) -> Work:
        """The part of it that is of one of these kinds."""
        return self.where(self.is_kind(*kinds))

    def spans(self) -> Spans:
        """When at least one piece of it ran."""
        start = self.start_ns
        return union(start, start + self["dur_ns"])


def device_work(run: Run, device: int | None = None) -> Work:
    """The work of one device, or of all."""
    events = run.event_rows
    picked = events["kind"] >= Kind.KERNEL
    if device is not None:
        picked = picked & (events["device"] == device)
    index = np.flatnonzero(picked)
    start = events["start_ns"][index]
    if (start[1:] < start[:-1]).any():
        index = index[np.argsort(start, kind="stable")]
    return Work(events, index)


def streams(work: Work) -> Ints:
    """The stream of each piece of work, as one number for device and stream together."""
    keys: Ints = work["device"].astype(np.int64) << 32 | (work["stream"] & 0xFFFFFFFF)
    return keys


def missing_work(run: Run) -> str | None:
    """Why there was device work that the run does not hold; None where it holds some, or there is no sign of any."""
    kinds = run.event_rows["kind"]
    if (kinds >= Kind.KERNEL).any():
        return None
    if (kinds == Kind.LAUNCH).any():
        return "calls to the GPU were recorded, and nothing of what it did"
    if run.machine.gpus and run.recording.lost:
        return "of the GPU's work nothing is left in the damaged trace"
    return None


def devices(run: Run) -> tuple[int, ...]:
    """The devices that worked in this run, by their index; -1 stands for work whose device the trace does not tell."""
    return tuple(np.unique(device_work(run)["device"]).tolist())
