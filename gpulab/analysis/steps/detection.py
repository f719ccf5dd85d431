"""Where the steps of a run are, and which of them are evidence."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.data.prefetch_bias import capacity, queued_ns
from gpulab.analysis.steps.repetition import repeated_starts
from gpulab.analysis.steps.run_ahead import done_ns, filling, paced
from gpulab.intervals import Ints, Spans, covered_ns, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, STEPS, Kind, MarkKind

Mask = NDArray[np.bool_]
WARM_UP = 2  # the first steps of a loop pay for lazy initialisation; they are not plain steps
SURELY_FRAC = 0.8  # without the profiler the GPU's work takes as long; a step shorter than this was not waited for
FEW = 3  # fewer interior steps than this lower every confidence


@dataclass(frozen=True, eq=False)
class Steps:
    """The iterations of the loop: step i runs from `start_ns[i]` to `end_ns[i]`.

    `recorded` steps lie wholly inside a window in which events were recorded; `interior` ones of these are not at
    the edge of that window, and only they are evidence. `plain` steps ran without the profiler and are warm: their
    median is the real step time. On a virtual GPU there is no profiler, and the interior steps are both. Steps that
    took batches which queued up while the profiler stopped are not plain either: `queued` counts them.

    Where the host runs ahead of the GPU, the steps are the GPU's, and `by_host` are those of the loop's Python code.
    """

    start_ns: Ints
    end_ns: Ints
    recorded: Mask
    interior: Mask
    plain: Mask
    found_by: str  # "DataLoader", "optimizer", "gpulab.step()", "ProfilerStep", "repetition of X" or "whole run"
    burst: int = 1  # steps come in groups of this size: so many workers finish together
    host: Steps | None = None  # where the host ran ahead: its own steps
    queued: int = 0  # steps without the profiler that are not plain, as workers had made their batches in a pause

    def __len__(self) -> int:
        return len(self.start_ns)

    @property
    def by_host(self) -> Steps:
        """The steps as the host went through them, for what is asked about calls."""
        return self.host or self

    @property
    def dur_ns(self) -> Ints:
        """How long each step took."""
        return self.end_ns - self.start_ns

    @property
    def interior_bounds_ns(self) -> tuple[Ints, Ints]:
        """Start and end of each interior step."""
        return self.start_ns[self.interior], self.end_ns[self.interior]

    @property
    def interior_spans(self) -> Spans:
        """The time of the interior steps."""
        return union(*self.interior_bounds_ns)

    def in_interior(self, at_ns: Ints) -> Mask:
        """Which of these times lie in an interior step."""
        start, end = self.interior_bounds_ns
        if not len(start):
            return np.zeros(len(at_ns), bool)
        index = np.searchsorted(start, at_ns, side="right") - 1
        inside: Mask = (index >= 0) & (at_ns < end[np.maximum(index, 0)])
        return inside

    def typical_covered_ns(self, spans: Spans) -> int:
        """How much of these spans lies in a typical interior step."""
        return typical_ns(covered_ns(spans, *self.interior_bounds_ns), self.burst)

    @property
    def traced_ns(self) -> int | None:
        """Median interior step, profiler on; None without one."""
        return typical_ns(self.dur_ns[self.interior], self.burst) if self.interior.any() else None

    @property
    def plain_ns(self) -> int | None:
        """Median step without the profiler; None where too few were seen."""
        plain = self.dur_ns[self.plain]
        return typical_ns(plain, self.burst) if len(plain) >= max(FEW, 2 * self.burst) else None

    @property
    def step_ns(self) -> int | None:
        """The step time to quote: un-profiled where measured, else traced."""
        return self.plain_ns or self.traced_ns

    @property
    def inflation(self) -> float | None:
        """Traced over un-profiled step time: what recording cost; None where either is missing."""
        if self.traced_ns is None or self.plain_ns is None:
            return None
        return self.traced_ns / self.plain_ns

    @property
    def few(self) -> bool:
        """Too few interior steps to speak of a median with confidence."""
        return int(self.interior.sum()) < FEW

    def rows(self) -> Rows:
        """The steps as rows of the table STEPS, for reading and for keeping."""
        return STEPS.rows({column.name: getattr(self, column.name) for column in STEPS.columns})


def typical_ns(values_ns: Ints, burst: int = 1) -> int:
    """The median, of means over groups of `burst` where steps come in bursts.

    Four workers that finish together give one long step and three short ones: the median of these is not what a
    step costs, the median of fours is.
    """
    return int(np.median(grouped(values_ns, burst)))


def grouped(values_ns: Ints, burst: int) -> Ints:
    """The means of successive groups of `burst`; an incomplete last group is left out, unless it is all there is."""
    whole = len(values_ns) // burst * burst
    if not whole:
        return values_ns.mean(keepdims=True).astype(np.int64) if len(values_ns) else values_ns
    means: Ints = values_ns[:whole].reshape(-1, burst).mean(axis=1).astype(np.int64)
    return means


def steps(run: Run) -> Steps:
    """The steps of a run, by the best evidence there is for where they begin."""
    found = _from_marks(run) if len(run.mark_rows) else None
    return _as_the_gpu_did(run, found or _from_events(run))


def _as_the_gpu_did(run: Run, found: Steps) -> Steps:
    """The same steps where the GPU had them, if the host ran ahead of it."""
    recorded = np.flatnonzero(found.recorded)
    if found.found_by == "whole run" or not len(recorded) or (np.diff(recorded) > 1).any():
        return found
    start, end = found.start_ns[recorded], found.end_ns[recorded]
    done = done_ns(run, start, end)
    if done is None:
        return found
    gpu = paced(done, start, end, computed=run.source.how == "virtual")
    if gpu is None:
        return _once_filled(run, found, recorded[: filling(done, start, end)])
    earlier, later = np.arange(len(found)) < recorded[0], found.start_ns >= gpu.end_ns[-1]
    pieces = [(found.start_ns[earlier], found.end_ns[earlier]), gpu, (found.start_ns[later], found.end_ns[later])]
    start, end = (np.concatenate(each) for each in zip(*pieces, strict=True))
    mine = np.zeros(len(start), bool)
    mine[earlier.sum() : earlier.sum() + len(gpu.start_ns)] = True
    plain = np.concatenate([found.plain[earlier], np.zeros(len(gpu.start_ns), bool), found.plain[later]])
    interior = _without_edges(mine)
    if run.source.how == "virtual":
        plain = interior
    elif plain.any() and np.median((end - start)[plain]) < np.median((end - start)[interior]) * SURELY_FRAC:
        plain = np.zeros(len(start), bool)  # marks of a host that runs ahead: no GPU is done so soon
    return Steps(start, end, mine, interior, plain, found.found_by, found.burst, host=found, queued=found.queued)


def _once_filled(run: Run, found: Steps, filling_: Ints) -> Steps:
    """The same, where these only filled the queue of launches: they are no evidence, if others are left.

    Few among many do not move a median, and stay.
    """
    steady = found.interior.copy()
    steady[filling_] = False
    if 2 * steady.sum() > found.interior.sum() or not steady.any():
        return found
    return replace(found, interior=steady, plain=steady if run.source.how == "virtual" else found.plain)


def step_table(run: Run) -> Rows:
    """One row for each step of a run."""
    return steps(run).rows()


def _from_marks(run: Run) -> Steps | None:
    starts, ends, found_by = marked_steps(run)
    if len(starts) < 2 and not run.recording.windows_ns:
        return _judged(run, starts, ends, found_by)
    return _judged(run, starts, ends, found_by) if len(starts) >= 2 else None


def marked_steps(run: Run) -> tuple[Ints, Ints, str]:
    """Start and end of each step by the marks: the user's, else the DataLoader's, else the optimizer's."""
    marks = run.mark_rows
    for kind, found_by in ((MarkKind.USER, "gpulab.step()"), (MarkKind.NEXT, "DataLoader"), (MarkKind.OPTIMIZER, "")):
        rows = marks.of_kind(kind)
        if not len(rows):
            continue
        if kind is MarkKind.NEXT:
            return *_loader_steps(run), found_by
        at = rows["end_ns"]
        return at[:-1], at[1:], found_by or "optimizer"
    none = np.empty(0, np.int64)
    return none, none, "whole run"


def completed(run: Run, found: Steps) -> int:
    """How many steps the run went through to their end.

    Where marks are set at the ends of steps, the first of them has an end and no beginning: it is no step to measure,
    but it was one.
    """
    if found.found_by == "whole run":
        return 1 if len(run.mark_rows.of_kind(MarkKind.USER, MarkKind.OPTIMIZER)) == 1 else 0
    at_ends = {"gpulab.step()": MarkKind.USER, "optimizer": MarkKind.OPTIMIZER}.get(found.found_by)
    marks = len(run.mark_rows.of_kind(at_ends)) if at_ends is not None else 0
    return max(len(found), marks)


def _loader_steps(run: Run) -> tuple[Ints, Ints]:
    """From one call of the leading loader's `__next__` to the next: fetch, then compute.

    The leading loader is the one with most batches; a pass ends with the call that yields nothing.
    """
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    batches = np.bincount(calls["loader"][calls["yielded"]], minlength=1)
    calls = calls.where(calls["loader"] == int(batches.argmax()))
    begins = np.flatnonzero(calls["yielded"])
    start = calls["start_ns"][begins]
    following = np.append(calls["start_ns"], calls["end_ns"].max(initial=0))[begins + 1]
    last_of_run = begins == len(calls) - 1
    return start[~last_of_run], following[~last_of_run]


def _from_events(run: Run) -> Steps:
    events = run.event_rows
    for kind, found_by in ((Kind.STEP, "ProfilerStep"), (Kind.LOADER, "DataLoader"), (None, "optimizer")):
        rows = events.of_kind(kind) if kind is not None else _optimizer_ranges(run)
        if len(rows) < 2:
            continue
        start = np.sort(rows["start_ns"])
        if kind is Kind.STEP:
            # Steps follow one another; the last is as long as its own range.
            order = np.argsort(rows["start_ns"], kind="stable")
            end = np.append(start[1:], start[-1] + rows["dur_ns"][order][-1])
            return _judged(run, start, end, found_by)
        return _judged(run, start[:-1], start[1:], found_by)
    if len(run.host_rows) and not len(run.mark_rows):
        # Recorded by gpulab: a cell, most likely a loop. In a foreign trace the repetition may be a model's layers; and
        # so it may be where a loop with an optimizer or a DataLoader ended in its second step.
        name, start = repeated_starts(events, run.main_thread)
        if len(start):
            return _judged(run, start[:-1], start[1:], f"repetition of {name}")
    return _judged(run, *_whole(run), "whole run")


def _whole(run: Run) -> tuple[Ints, Ints]:
    """One window for all: from the first event to the end of the last work; what follows is the profiler stopping."""
    events = run.event_rows
    work = events.of_kind(Kind.OP, Kind.LOADER, Kind.LAUNCH, Kind.COPY_CALL, *DEVICE_KINDS)
    if not len(work):
        return np.array([0], np.int64), np.array([run.span_ns], np.int64)
    return events["start_ns"].min(keepdims=True), (work["start_ns"] + work["dur_ns"]).max(keepdims=True)


def _optimizer_ranges(run: Run) -> Rows:
    events = run.event_rows
    return events.where(events.matching(lambda word: word.startswith("Optimizer.step#")))


def _judged(run: Run, start: Ints, end: Ints, found_by: str) -> Steps:
    """Say of each step whether it was recorded, is interior, is plain."""
    windows = run.recording.windows_ns
    pauses = run.recording.pauses_ns
    # What gpulab itself did in the main thread belongs to no step: a step ends where that begins.
    for pause_start, pause_end in pauses:
        end = np.where((start < pause_start) & (end > pause_start), pause_start, end)
        start = np.where((start >= pause_start) & (start < pause_end), pause_end, start)
    end = np.maximum(start, end)
    lasted = end > start  # one that took no time is no iteration of anything
    recorded = np.zeros(len(start), bool)
    touched = np.zeros(len(start), bool)
    best: Mask = recorded
    for window_start, window_end in windows:
        inside = (start >= window_start) & (end <= window_end) & lasted
        recorded |= inside
        touched |= (end > window_start) & (start < window_end)
        best = inside if inside.sum() >= best.sum() else best
    cut = np.zeros(len(start), bool)
    for pause_start, pause_end in pauses:
        cut |= (end >= pause_start) & (start <= pause_end)
    burst = _burst(run, found_by)
    # Workers build `prefetch_factor` batches each before the first step: those come free.
    made_before = max(map(capacity, run.loaders), default=0) if burst > 1 else 0
    settled = np.arange(len(start)) >= WARM_UP + made_before
    interior = _without_edges(best)
    # Nothing was recorded of a virtual run, it was worked out: no profiler lengthened its steps.
    if run.source.how == "virtual":
        return Steps(start, end, recorded, interior, interior, found_by, burst)
    plain = ~touched & ~cut & settled & lasted
    taken_ns = queued_ns(run)
    free = np.searchsorted(taken_ns, end) > np.searchsorted(taken_ns, start)
    return Steps(start, end, recorded, interior, plain & ~free, found_by, burst, queued=int((plain & free).sum()))


def _burst(run: Run, found_by: str) -> int:
    workers = max((loader.workers or 0 for loader in run.loaders), default=0)
    return max(1, workers) if found_by == "DataLoader" else 1


def _without_edges(recorded: Mask) -> Mask:
    """The recorded steps less the first (it waits for earlier work) and the last (it meets the profiler's stop).

    With four or fewer, what can be spared is: the first, then none; the caller sees that they are few.
    """
    index = np.flatnonzero(recorded)
    interior = np.zeros(len(recorded), bool)
    if len(index) >= 3:
        interior[index[1:-1]] = True
    elif len(index) == 2:
        interior[index[1]] = True
    else:
        interior[index] = True
    return interior
