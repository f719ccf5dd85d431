"""The kernels of the busiest GPU in the interior steps: names, times, operators, and cost per step."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import DeviceWork, Mask
from gpulab.analysis.events.enclosing_operators import enclosing_operators
from gpulab.analysis.events.per_run import cached_by_ledger
from gpulab.analysis.host.launch_delays import launch_calls
from gpulab.analysis.steps.detection import Steps, typical_ns
from gpulab.analysis.steps.ledger import Ledger, main_device
from gpulab.intervals import Ints, Spans, clip, covered_ns, intersect, subtract, union
from gpulab.rows import Array
from gpulab.run import Gpu, Run
from gpulab.tables import EventKind


@dataclass(frozen=True, eq=False)
class InteriorKernels:
    """Kernels that run in interior steps, in order of their start, without collectives.

    A kernel that started in the step before is included, because part of its time is in these steps. Spans are clipped
    to the window, so their total agrees with the ledger. It is counted in the step in which it started: see `begun`.
    """

    run: Run
    steps: Steps
    gpu: Gpu | None  # the GPU they ran on; None if unknown
    event_rows: Ints  # row of each in the events table

    def __len__(self) -> int:
        return len(self.event_rows)

    def __getitem__(self, column: str) -> Array:
        return self.run.event_rows[column][self.event_rows]

    @cached_property
    def start_ns(self) -> Ints:
        """Start of each kernel."""
        return np.asarray(self["start_ns"], np.int64)

    @cached_property
    def end_ns(self) -> Ints:
        """End of each kernel."""
        return self.start_ns + self["dur_ns"]

    @cached_property
    def started_inside(self) -> Mask:
        """Mask of the kernels that started in these steps. Use it for counts: each kernel counts in one step."""
        starts, ends = self.steps.interior_bounds_ns
        return np.asarray((self.start_ns >= starts.min()) & (self.start_ns < ends.max()), bool)

    def per_step(self, mask: Mask) -> float:
        """Return how many of these kernels start per step, on average."""
        return int((mask & self.started_inside).sum()) / max(1, self.step_count)

    @cached_property
    def code(self) -> NDArray[np.int32]:
        """Name of each kernel, as a code of the run's vocabulary."""
        return np.asarray(self["name"], np.int32)

    @cached_property
    def codes(self) -> Ints:
        """The distinct name codes."""
        distinct = np.unique(self.code)
        return np.asarray(distinct[distinct >= 0], np.int64)

    def name(self, code: int) -> str:
        """Return the name of a code."""
        return self.run.event_rows.text("name").vocabulary[code]

    def map_names(self, function: Callable[[str], int | None]) -> Ints:
        """Apply a function to the name of each kernel; -1 for None and for unnamed kernels."""
        names, codes = self.run.event_rows.text("name").vocabulary, self.codes
        values = map(function, [names[code] for code in codes.tolist()])
        by_code = np.full(len(names) + 1, -1, np.int64)
        by_code[codes] = [-1 if value is None else int(value) for value in values]
        return by_code[self.code]

    def mask_names(self, predicate: Callable[[str], bool]) -> Mask:
        """Return a mask of the kernels whose name satisfies the predicate."""
        return np.asarray(self.map_names(predicate) == 1, bool)

    @cached_property
    def window(self) -> Spans:
        """The time of the interior steps."""
        return self.steps.interior_spans

    def spans(self, mask: Mask) -> Spans:
        """Return the time in which at least one of these kernels ran, within the interior steps."""
        return self._clip(union(self.start_ns[mask], self.end_ns[mask]))

    def exposed(self, mask: Mask) -> Spans:
        """Return the time in which only these kernels ran: removing them would save this time."""
        return self._clip(subtract(union(self.start_ns[mask], self.end_ns[mask]), self.spans(~mask)))

    def _clip(self, spans: Spans) -> Spans:
        window = self.window
        if len(window.start_ns) == 1:
            return clip(spans, int(window.start_ns[0]), int(window.end_ns[0]))
        return intersect(spans, window)

    def typical_ns(self, spans: Spans) -> int:
        """Return how much of these spans is in a typical step."""
        start, end = self.steps.interior_bounds_ns
        non_empty = end > start
        return typical_ns(covered_ns(spans, start[non_empty], end[non_empty]), self.steps.burst)

    def cost_ns(self, mask: Mask) -> int:
        """Return the exposed time of these kernels in a typical step."""
        return self.typical_ns(self.exposed(mask))

    @cached_property
    def call(self) -> Ints:
        """Event row of the call that launched each kernel; -1 if it is not in the trace."""
        return launch_calls(DeviceWork(self.run.event_rows, self.event_rows))

    @cached_property
    def op(self) -> Ints:
        """Event row of the innermost operator that launched each kernel; -1 if none or unknown."""
        return enclosing_operators(self.run.event_rows, self.call)

    @property
    def step_count(self) -> int:
        """Number of interior steps."""
        return int(self.steps.interior.sum())

    def longest_name(self, mask: Mask) -> tuple[str, int] | None:
        """Return the name with most time among these kernels and its ns per step; None if there are none."""
        if not mask.any():
            return None
        mask = mask & self.started_inside if (mask & self.started_inside).any() else mask
        total = np.bincount(self.code[mask] + 1, weights=self["dur_ns"][mask])
        code = int(total.argmax()) - 1
        name = self.name(code) if code >= 0 else "unnamed kernel"
        return name, round(float(total.max()) / max(1, self.step_count))


@cached_by_ledger
def interior_kernels(run: Run, steps: Steps, ledger: Ledger) -> InteriorKernels | None:
    """Return the kernels of the interior steps; None if there are none."""
    if ledger.device != "gpu":
        return None
    events = run.event_rows
    device = main_device(run)
    kernel = np.flatnonzero(events.is_kind(EventKind.KERNEL))
    kernel = kernel[np.maximum(events["device"][kernel], 0) == device]
    start = events["start_ns"][kernel]
    starts, ends = steps.interior_bounds_ns
    if not len(starts):
        return None
    # Interior steps are adjacent, so a kernel that overlaps their extent overlaps one of them.
    overlaps = (start < ends.max()) & (start + events["dur_ns"][kernel] > starts.min())
    kernel, start = kernel[overlaps], start[overlaps]
    if (start[1:] < start[:-1]).any():
        kernel = kernel[np.argsort(start, kind="stable")]
    gpu = next((each for each in run.machine.gpus if each.index == device), None)
    return InteriorKernels(run, steps, gpu, kernel) if len(kernel) else None


def short_kernel_name(name: str) -> str:
    """Shorten a kernel name for display: drop templates, arguments and namespaces."""
    short_name = name.removeprefix("void ").replace("(anonymous namespace)::", "")
    short_name = short_name.partition("Kernel2<")[2] or short_name.partition("::Kernel<")[2] or short_name
    short_name = re.split(r"[<>(]", short_name, maxsplit=1)[0]
    return short_name.rpartition("::")[2].strip() or name[:60]
