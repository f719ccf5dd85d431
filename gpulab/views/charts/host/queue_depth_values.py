"""Depth of the launch queue of the busiest GPU over time, and when it was empty while the GPU idled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.host.launch_delays import LaunchDelays
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Coverage, Ints, Spans, subtract, union, union_of
from gpulab.run import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class QueueDepth:
    """From `at_ns[i]` to `at_ns[i + 1]`, `depth[i]` kernels and copies are launched and unfinished."""

    at_ns: Ints
    depth: Ints
    window: Spans  # the interior steps
    empty: Spans  # spans with an empty queue and an idle GPU

    @cached_property
    def empty_frac(self) -> float:
        """Fraction of the interior steps with an empty queue and an idle GPU."""
        return self.empty.total_ns / max(1, self.window.total_ns)

    @cached_property
    def median(self) -> int:
        """The time-weighted median depth in the interior steps."""
        time = Coverage.of(self.window).covered_ns(self.at_ns[:-1], self.at_ns[1:])
        order = np.argsort(self.depth[:-1], kind="stable")
        until = np.cumsum(time[order])
        return int(self.depth[:-1][order][np.searchsorted(until, until[-1] / 2)]) if until[-1] else 0

    def mean(self, start_ns: Ints, end_ns: Ints) -> Floats:
        """Return the mean depth in each window."""
        area = np.append(0.0, np.cumsum(self.depth[:-1] * np.diff(self.at_ns).astype(np.float64)))
        done = np.interp(np.append(start_ns, end_ns), self.at_ns, area)
        means: Floats = (done[len(start_ns) :] - done[: len(start_ns)]) / np.maximum(end_ns - start_ns, 1)
        return means

    def deepest(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """Return the maximum depth in each window."""
        first = np.maximum(np.searchsorted(self.at_ns, start_ns, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(self.at_ns, end_ns, side="left"), first + 1)
        padded = np.append(self.depth, 0)
        cuts = np.ravel(np.column_stack([first, last]))
        return np.asarray(np.maximum.reduceat(padded, cuts)[::2], np.int64)


def queue_depths(run: Run, run_steps: Steps, delays: LaunchDelays, device: int) -> QueueDepth:
    """Compute the queue depth; work counts from the start of its launch call to its end."""
    events, rows = run.event_rows, delays.rows
    start = events["start_ns"][rows["event"]]
    end = start + events["dur_ns"][rows["event"]]
    launch = np.minimum(events["start_ns"][rows["call"]], start)  # a launch after the start is a clock error
    window = run_steps.interior_spans
    at_ns = np.concatenate([launch, end])
    change = np.repeat(np.array([1, -1]), len(launch))
    order = np.lexsort((-change, at_ns))
    at_ns, depth = at_ns[order], np.cumsum(change[order])
    last = np.append(at_ns[1:] != at_ns[:-1], True)  # the depth after all changes at the same time
    at_ns, depth = at_ns[last], depth[last]
    lowest, highest = int(window.start_ns[0]), int(window.end_ns[-1])
    edge_low, edge_high = min(lowest, int(at_ns[0])) - 1, max(highest, int(at_ns[-1])) + 1
    occupied = union_of(union(launch, end), device_work(run, device).spans())
    return QueueDepth(
        at_ns=np.concatenate([[edge_low], at_ns, [edge_high]]).astype(np.int64),
        depth=np.concatenate([[0], depth, [0]]).astype(np.int64),
        window=window,
        empty=subtract(window, occupied),
    )
