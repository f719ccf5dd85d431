"""How full the queue of the busiest GPU was at every instant, and when it held nothing while that GPU idled."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import device_work
from gpulab.analysis.host.launch_delays import LaunchDelays
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Coverage, Ints, Spans, merged, subtract, union
from gpulab.run import Run

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Depths:
    """From `at_ns[i]` to `at_ns[i + 1]`, `depth[i]` pieces of work were called for and not finished."""

    at_ns: Ints
    depth: Ints
    window: Spans  # the interior steps
    dry: Spans  # in these: nothing called for is unfinished, and the GPU does nothing

    @cached_property
    def dry_frac(self) -> float:
        """Share of the interior steps."""
        return self.dry.total_ns / max(1, self.window.total_ns)

    @cached_property
    def median(self) -> int:
        """The depth that half of the time in the interior steps is not above."""
        time = Coverage.of(self.window).within(self.at_ns[:-1], self.at_ns[1:])
        order = np.argsort(self.depth[:-1], kind="stable")
        until = np.cumsum(time[order])
        return int(self.depth[:-1][order][np.searchsorted(until, until[-1] / 2)]) if until[-1] else 0

    def mean(self, start_ns: Ints, end_ns: Ints) -> Floats:
        """The mean depth of each window."""
        area = np.append(0.0, np.cumsum(self.depth[:-1] * np.diff(self.at_ns).astype(np.float64)))
        done = np.interp(np.append(start_ns, end_ns), self.at_ns, area)
        means: Floats = (done[len(start_ns) :] - done[: len(start_ns)]) / np.maximum(end_ns - start_ns, 1)
        return means

    def deepest(self, start_ns: Ints, end_ns: Ints) -> Ints:
        """The fullest the queue was in each window."""
        first = np.maximum(np.searchsorted(self.at_ns, start_ns, side="right") - 1, 0)
        last = np.maximum(np.searchsorted(self.at_ns, end_ns, side="left"), first + 1)
        padded = np.append(self.depth, 0)
        cuts = np.ravel(np.column_stack([first, last]))
        return np.asarray(np.maximum.reduceat(padded, cuts)[::2], np.int64)


def depths(run: Run, found: Steps, delays: LaunchDelays, device: int) -> Depths:
    """Work that is joined to its call counts from the beginning of the call to its own end."""
    events, rows = run.event_rows, delays.rows
    begun = events["start_ns"][rows["event"]]
    ended = begun + events["dur_ns"][rows["event"]]
    called = np.minimum(events["start_ns"][rows["call"]], begun)  # they change places only where clocks disagree
    window = found.interior_spans
    at = np.concatenate([called, ended])
    change = np.repeat(np.array([1, -1]), len(called))
    order = np.lexsort((-change, at))
    at, depth = at[order], np.cumsum(change[order])
    last = np.append(at[1:] != at[:-1], True)  # of several changes at one instant, what they come to
    at, depth = at[last], depth[last]
    lowest, highest = int(window.start_ns[0]), int(window.end_ns[-1])
    edge_low, edge_high = min(lowest, int(at[0])) - 1, max(highest, int(at[-1])) + 1
    held = merged(union(called, ended), device_work(run, device).spans())
    return Depths(
        at_ns=np.concatenate([[edge_low], at, [edge_high]]).astype(np.int64),
        depth=np.concatenate([[0], depth, [0]]).astype(np.int64),
        window=window,
        dry=subtract(window, held),
    )
