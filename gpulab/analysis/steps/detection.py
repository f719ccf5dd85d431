"""Find the steps of a run, and select those used as evidence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.data.prefetch_bias import prefetch_capacity, prefetched_call_ns
from gpulab.analysis.events.per_run import cached_by_run
from gpulab.analysis.steps.interior import WARM_UP_STEPS, interior_of_parts, is_edge, recorded_parts
from gpulab.analysis.steps.marked_steps import marked_steps
from gpulab.analysis.steps.repetition import repeated_starts
from gpulab.analysis.steps.run_ahead import GpuSteps, count_queue_filling_steps, find_gpu_steps, work_end_ns
from gpulab.intervals import Ints, Spans, covered_ns, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, STEPS, EventKind

Mask = NDArray[np.bool_]
MIN_UNPROFILED_FRAC = 0.8  # GPU work takes as long without the profiler; a shorter step did not wait for the GPU
BOUNDARY_NS = 1_000_000  # between a step mark and a pause at that step boundary
MIN_STEPS = 3  # fewer interior steps lower every confidence


@dataclass(frozen=True, eq=False)
class Steps:
    """The iterations of the training loop: step i runs from `start_ns[i]` to `end_ns[i]`.

    `recorded` steps are completely inside a window in which events were recorded. `interior` steps are recorded steps
    away from the edges of these windows; only they are used as evidence. `plain` steps are warm and ran without the
    profiler: their median is the real step time. A virtual GPU has no profiler, so its interior steps are also its
    plain steps. Steps served from batches that queued up while the profiler paused the loop are not plain
    (`prefetch_biased` counts them).

    If the host runs ahead of the GPU, the steps are those of the GPU, and `host_steps` has those of the Python loop.
    """

    start_ns: Ints
    end_ns: Ints
    recorded: Mask
    interior: Mask
    unprofiled: Mask
    detected_by: str  # "DataLoader", "optimizer", "gpulab.step()", "ProfilerStep", "ranges named X" (the
    # first of them), "repetition of X" or "whole run"
    burst: int = 1  # steps come in groups of this size: this many workers finish together
    host: Steps | None = None  # the steps of the Python loop, if the host ran ahead of the GPU
    prefetch_biased: int = 0  # unprofiled steps excluded from plain: their batches were prefetched during a pause

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def host_steps(self) -> Steps:
        """The steps of the Python loop; use them for host calls."""
        return self.host or self

    @property
    def dur_ns(self) -> Ints:
        """Duration of each step."""
        return self.end_ns - self.start_ns

    @cached_property
    def interior_bounds_ns(self) -> tuple[Ints, Ints]:
        """Start and end times of the interior steps."""
        return self.start_ns[self.interior], self.end_ns[self.interior]

    @cached_property
    def interior_spans(self) -> Spans:
        """The interior steps as spans."""
        return union(*self.interior_bounds_ns)

    def interior_mask(self, at_ns: Ints) -> Mask:
        """Return a mask of the times that are inside an interior step."""
        start, end = self.interior_bounds_ns
        if not len(start):
            return np.zeros(len(at_ns), bool)
        index = np.searchsorted(start, at_ns, side="right") - 1
        inside: Mask = (index >= 0) & (at_ns < end[np.maximum(index, 0)])
        return inside

    def typical_covered_ns(self, spans: Spans) -> int:
        """Return how much of these spans is in a typical interior step."""
        return typical_ns(covered_ns(spans, *self.interior_bounds_ns), self.burst)

    @cached_property
    def traced_ns(self) -> int | None:
        """Median interior step time, with the profiler; None without interior steps."""
        return typical_ns(self.dur_ns[self.interior], self.burst) if self.interior.any() else None

    @cached_property
    def unprofiled_ns(self) -> int | None:
        """Median step time without the profiler; None if there are too few plain steps."""
        plain_dur_ns = self.dur_ns[self.unprofiled]
        return typical_ns(plain_dur_ns, self.burst) if len(plain_dur_ns) >= max(MIN_STEPS, 2 * self.burst) else None

    @property
    def step_ns(self) -> int | None:
        """The step time to report: without the profiler if measured, else with it."""
        return self.unprofiled_ns or self.traced_ns

    @property
    def profiler_overhead(self) -> float | None:
        """Profiler overhead: traced over unprofiled step time; None if either is missing."""
        if self.traced_ns is None or self.unprofiled_ns is None:
            return None
        return self.traced_ns / self.unprofiled_ns

    @property
    def too_few(self) -> bool:
        """Whether there are too few interior steps for a reliable median; steps at an edge do not count."""
        return int((self.interior & ~is_edge(self.recorded)).sum()) < MIN_STEPS

    def rows(self) -> Rows:
        """Return the steps as rows of the table STEPS."""
        columns = {"start_ns": self.start_ns, "end_ns": self.end_ns, "recorded": self.recorded}
        return STEPS.rows({**columns, "interior": self.interior, "plain": self.unprofiled})


def typical_ns(values_ns: Ints, burst: int = 1) -> int:
    """Return the median; if steps come in bursts, the median of the means over groups of `burst`.

    Four workers that finish together give one long step and three short ones. The median of single steps then
    underestimates the step time; the median of groups of four does not.
    """
    return int(np.median(burst_means(values_ns, burst)))


def burst_means(values_ns: Ints, burst: int) -> Ints:
    """Return the means of successive groups of `burst`. An incomplete last group counts only if it is the only one."""
    length = len(values_ns) // burst * burst
    if not length:
        return values_ns.mean(keepdims=True).astype(values_ns.dtype) if len(values_ns) else values_ns
    means: Ints = values_ns[:length].reshape(-1, burst).mean(axis=1).astype(values_ns.dtype)
    return means


@cached_by_run
def find_steps(run: Run) -> Steps:
    """Find the steps of a run, from step marks if there are any, else from events.

    If the host ran ahead of the GPU, the recorded steps are those of the GPU.
    """
    host = _from_marks(run) if len(run.mark_rows) else None
    return _with_gpu_steps(run, host or _from_events(run))


def _with_gpu_steps(run: Run, host: Steps) -> Steps:
    """Replace the recorded steps by those of the GPU if the host ran ahead of it."""
    if host.detected_by == "whole run" or not host.interior.any():
        return host
    is_computed = run.source.how == "virtual"
    parts = [part for part in recorded_parts(host.recorded) if host.interior[part].any()]
    done = [_work_end_ns(run, host, part) for part in parts]
    longest = max(range(len(parts)), key=lambda index: len(parts[index]))
    if done[longest] is None:
        return host
    gpu_steps = {
        int(part[0]): find_gpu_steps(ends_ns, host.start_ns[part], host.end_ns[part], computed=is_computed)
        for part, ends_ns in zip(parts, done, strict=True)
        if ends_ns is not None
    }
    if gpu_steps[int(parts[longest][0])] is not None:
        return _replaced(host, {first: steps for first, steps in gpu_steps.items() if steps is not None}, is_computed)
    filling = [
        part[: count_queue_filling_steps(ends_ns, host.start_ns[part], host.end_ns[part], computed=is_computed)]
        for part, ends_ns in zip(parts, done, strict=True)
        if ends_ns is not None
    ]
    return _without_queue_filling(run, host, np.concatenate(filling))


def _work_end_ns(run: Run, host: Steps, part: Ints) -> Ints | None:
    """Return `work_end_ns` of adjacent recorded steps, for work launched in the same window."""
    start, end = host.start_ns[part], host.end_ns[part]
    since_ns = max((at for at, _ in run.recording.windows_ns if at <= start[0]), default=0)
    return work_end_ns(run, start, end, since_ns)


def _replaced(host: Steps, gpu_steps: Mapping[int, GpuSteps], is_computed: bool) -> Steps:
    """Replace recorded steps, from the given indices on, by the GPU's; drop steps that begin before these end."""
    starts, ends, on_gpu, without = [], [], [], []
    index = 0
    for first, gpu in sorted(gpu_steps.items()):
        if first < index:
            continue
        count = len(gpu.start_ns)
        starts += [host.start_ns[index:first], gpu.start_ns]
        ends += [host.end_ns[index:first], gpu.end_ns]
        on_gpu += [np.zeros(first - index, bool), np.ones(count, bool)]
        without += [host.unprofiled[index:first], np.zeros(count, bool)]
        index = int(np.searchsorted(host.start_ns, gpu.end_ns[-1]))
    start, end = np.concatenate([*starts, host.start_ns[index:]]), np.concatenate([*ends, host.end_ns[index:]])
    recorded = np.concatenate([*on_gpu, np.zeros(len(host) - index, bool)])
    is_plain = np.concatenate([*without, host.unprofiled[index:]])
    interior = interior_of_parts(recorded)
    if is_computed:
        is_plain = interior
    elif (
        is_plain.any() and np.median((end - start)[is_plain]) < np.median((end - start)[interior]) * MIN_UNPROFILED_FRAC
    ):
        is_plain = np.zeros(len(start), bool)  # the marks of a host that runs ahead: the GPU needs longer than that
    return replace(
        host, start_ns=start, end_ns=end, recorded=recorded, interior=interior, unprofiled=is_plain, host=host
    )


def _without_queue_filling(run: Run, steps: Steps, filling_steps: Ints) -> Steps:
    """Exclude from the interior the steps that only filled the launch queue, if others remain.

    A minority of such steps does not change a median and is kept.
    """
    steady = steps.interior.copy()
    steady[filling_steps] = False
    if 2 * steady.sum() > steps.interior.sum() or not steady.any():
        return steps
    return replace(steps, interior=steady, unprofiled=steady if run.source.how == "virtual" else steps.unprofiled)


def step_table(run: Run) -> Rows:
    """Return the table STEPS: one row for each step of a run."""
    return find_steps(run).rows()


def _from_marks(run: Run) -> Steps | None:
    starts, ends, found_by = marked_steps(run)
    if len(starts) < 2 and not run.recording.windows_ns:
        return _classify(run, starts, ends, found_by)
    return _classify(run, starts, ends, found_by) if len(starts) >= 2 else None


def _from_events(run: Run) -> Steps:
    events = run.event_rows
    for kind, found_by in ((EventKind.STEP, "ProfilerStep"), (EventKind.LOADER, "DataLoader"), (None, "optimizer")):
        rows = events.of_kind(kind) if kind is not None else _optimizer_ranges(run)
        if len(rows) < 2:
            continue
        start = np.sort(rows["start_ns"])
        if kind is EventKind.STEP:
            # Each step ends where the next starts; the last one ends with its own range.
            order = np.argsort(rows["start_ns"], kind="stable")
            end = np.append(start[1:], start[-1] + rows["dur_ns"][order][-1])
            first = rows.text("name")[int(order[0])] or ""
            return _classify(run, start, end, found_by if first.startswith(found_by) else f"ranges named {first}")
        return _classify(run, start[:-1], start[1:], found_by)
    if len(run.host_rows) and not len(run.mark_rows):
        # Recorded by gpulab, without marks: a cell, most likely a loop. In traces of other tools the layers of a model
        # may repeat; so may they in a loop with an optimizer or a DataLoader that ended in its second step.
        name, start = repeated_starts(events, run.main_thread)
        if len(start):
            return _classify(run, start[:-1], start[1:], f"repetition of {name}")
    return _classify(run, *_all_work(run), "whole run")


def _all_work(run: Run) -> tuple[Ints, Ints]:
    """Return one window from the first event to the end of the last work. After that the profiler stops."""
    events = run.event_rows
    work = events.of_kind(EventKind.OP, EventKind.LOADER, EventKind.LAUNCH, EventKind.COPY_CALL, *DEVICE_KINDS)
    if not len(work):
        return np.array([0], np.int64), np.array([run.span_ns], np.int64)
    return events["start_ns"].min(keepdims=True), (work["start_ns"] + work["dur_ns"]).max(keepdims=True)


def _optimizer_ranges(run: Run) -> Rows:
    events = run.event_rows
    return events.select(events.matching(lambda name: name.startswith("Optimizer.step#")))


def _classify(run: Run, start: Ints, end: Ints, found_by: str) -> Steps:
    """Classify each step: recorded, interior, plain."""
    windows = run.recording.windows_ns
    pauses = run.recording.pauses_ns
    # Work of gpulab itself in the main thread belongs to no step: a step ends where it starts.
    is_cut = np.zeros(len(start), bool)  # by a pause within the step, whose remaining part is not in its time
    for pause_start, pause_end in pauses:
        # Steps may be shorter than the time between a mark and a pause: the longer part is the step.
        at_start = (start <= pause_start) & (pause_start - start < np.minimum(BOUNDARY_NS, end - pause_end))
        start = np.where(at_start, pause_end, start)  # a mark at the end of a step comes just before the pause
        is_cut |= (start < pause_start) & (end > pause_end + BOUNDARY_NS)
        end = np.where((start < pause_start) & (end > pause_start), pause_start, end)
        start = np.where((start >= pause_start) & (start < pause_end), pause_end, start)
    end = np.maximum(start, end)
    non_empty = end > start
    recorded = np.zeros(len(start), bool)
    overlaps_window = np.zeros(len(start), bool)
    for window_start, window_end in windows:
        recorded |= (start >= window_start) & (end <= window_end) & non_empty & ~is_cut
        overlaps_window |= (end > window_start) & (start < window_end)
    overlaps_pause = np.zeros(len(start), bool)
    for pause_start, pause_end in pauses:
        overlaps_pause |= (end >= pause_start) & (start <= pause_end)
    burst = _burst(run, found_by)
    # Each worker loads `prefetch_factor` batches before the first step: the first steps need not wait for data.
    prefetched = max(map(prefetch_capacity, run.loaders), default=0) if burst > 1 else 0
    warm = np.arange(len(start)) >= WARM_UP_STEPS + prefetched
    interior = interior_of_parts(recorded)
    # A virtual run is computed, not recorded: no profiler lengthened its steps.
    if run.source.how == "virtual":
        return Steps(start, end, recorded, interior, interior, found_by, burst)
    is_plain = ~overlaps_window & ~overlaps_pause & warm & non_empty
    prefetched_ns = prefetched_call_ns(run)
    is_biased = np.searchsorted(prefetched_ns, end) > np.searchsorted(prefetched_ns, start)
    return Steps(
        start,
        end,
        recorded,
        interior,
        is_plain & ~is_biased,
        found_by,
        burst,
        prefetch_biased=int((is_plain & is_biased).sum()),
    )


def _burst(run: Run, found_by: str) -> int:
    workers = max((loader.workers or 0 for loader in run.loaders), default=0)
    return max(1, workers) if found_by == "DataLoader" else 1
