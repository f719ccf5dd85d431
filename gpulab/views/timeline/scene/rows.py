"""The rows of a run: steps, ledger, call stacks of threads, stalls, and the streams, copies and collectives of GPUs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import SMALL_OP_NS, Ledger
from gpulab.intervals import Ints, Spans
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, EventKind, StallKind
from gpulab.views.report.provenance import how_detected
from gpulab.views.timeline.scene.colours import KEY_INDEX, KEY_OF_KIND, UNRECORDED
from gpulab.views.timeline.scene.depths import call_depths
from gpulab.views.timeline.scene.elements import Boxes, Codes, Group, Keys, NameTable, build_boxes
from gpulab.wording import clean, count

MAX_THREADS, MAX_STREAMS, MAX_GPUS = 6, 6, 4
MAX_MAIN_DEPTH, MAX_OTHER_DEPTH = 14, 8  # rows of the main thread, and of any other thread
NO_NAME = "(no name)"
_BACKWARD = re.compile(r"autograd::engine|Backward\d*$")  # names of autograd functions in old and new PyTorch versions


@dataclass(frozen=True, eq=False, kw_only=True)
class RowBuilder:
    """Builds the rows of a run from its events, steps and ledger, and collects notes for the reader."""

    run: Run
    steps: Steps
    side: int
    shift_ns: int  # run time + shift = scene time
    ledger_spans: dict[str, Spans]  # the ledger of all recorded time
    ledger: Ledger | None
    names: NameTable
    first_name_code: int  # the number of the first name of this run's events
    notes: list[str] = field(default_factory=list)

    def row_of_events(self, events: Ints) -> Boxes:
        """Build one row from events."""
        rows = self.run.event_rows
        start = rows["start_ns"][events] + self.shift_ns
        code = rows["name"][events].astype(np.int32)
        unnamed = self.names.code_of(NO_NAME) if (code < 0).any() else 0
        name = np.where(code < 0, unnamed, code + self.first_name_code).astype(np.int32)
        return build_boxes(
            start, start + rows["dur_ns"][events], self.colour_keys(events), name, events.astype(np.int32)
        )

    def colour_keys(self, events: Ints) -> Keys:
        """Return the colour key of each event."""
        rows = self.run.event_rows
        kind = rows["kind"][events]
        key_of_kind = np.array([KEY_INDEX[KEY_OF_KIND.get(each, UNRECORDED)] for each in EventKind], np.uint8)
        key: Keys = key_of_kind[kind]
        names = rows.text("name").select(events)
        if (kind == EventKind.KERNEL.value).any():
            key[(kind == EventKind.KERNEL.value) & names.matching(map(is_matrix, names.vocabulary))] = KEY_INDEX[
                "matmul"
            ]
        if self.ledger is not None and self.ledger.device == "cpu":
            key[(kind == EventKind.OP.value) & (rows["dur_ns"][events] >= SMALL_OP_NS)] = KEY_INDEX["compute"]
        return key

    def row_of_spans(self, spans: dict[tuple[str, str], Spans]) -> Boxes:
        """Build one row from spans, given by colour key and name."""
        starts, ends, keys, names = [], [], [], []
        for (colour, label), segments in spans.items():
            starts.append(segments.start_ns + self.shift_ns)
            ends.append(segments.end_ns + self.shift_ns)
            keys.append(np.full(len(segments.start_ns), KEY_INDEX[colour], np.uint8))
            names.append(np.full(len(segments.start_ns), self.names.code_of(label), np.int32))
        empty = np.empty(0, np.int64)
        start, end = np.concatenate([empty, *starts]), np.concatenate([empty, *ends])
        key = np.concatenate([np.empty(0, np.uint8), *keys])
        name = np.concatenate([np.empty(0, np.int32), *names])
        return build_boxes(start, end, key, name, np.full(len(start), -1, np.int32))


def box_groups(builder: RowBuilder) -> Iterator[Group]:
    """Yield the groups of boxes of a run, from top to bottom."""
    if builder.steps.dur_ns.any():
        yield _steps(builder)
    if builder.ledger is not None:
        yield ledger_group(builder)
    yield from _threads(builder)
    if len(builder.run.stall_rows):
        yield _stalls(builder)
    yield from _gpus(builder)


def step_name(steps: Steps, index: int) -> str:
    """Return the name of a step on screen."""
    return "the whole run" if steps.detected_by == "whole run" else f"step {index + 1}"


def _steps(builder: RowBuilder) -> Group:
    steps = builder.steps
    count = len(steps)
    names = np.array([builder.names.code_of(step_name(steps, index)) for index in range(count)], np.int32)
    key = np.where(steps.recorded, KEY_INDEX["step"], KEY_INDEX["step_unrecorded"]).astype(np.uint8)
    shift = builder.shift_ns
    row = build_boxes(steps.start_ns + shift, steps.end_ns + shift, key, names, np.arange(count, dtype=np.int32))
    about = f"Iterations of the training loop, {how_detected(steps)}."
    if steps.detected_by == "whole run":
        about = "No steps were detected: the whole run counts as one step."
    return Group(id="steps", name="steps", description=clean(about), rows=(row,))


def ledger_group(builder: RowBuilder, name: str = "ledger") -> Group:
    """Return the row of the ledger. Only for a builder that has one."""
    accounts = builder.ledger
    assert accounts is not None
    spans = {(part.key, part.label): builder.ledger_spans[part.key] for part in accounts.parts}
    about = "Every nanosecond of recorded time by cause: GPU work; while the GPU is idle, the activity of the host."
    if accounts.device == "cpu":
        about = "Every nanosecond of recorded time by cause: operators; otherwise, the activity of the main thread."
    return Group(id="ledger", name=name, description=about, rows=(builder.row_of_spans(spans),))


def _threads(builder: RowBuilder) -> Iterator[Group]:
    run, rows = builder.run, builder.run.event_rows
    kind, thread = rows["kind"], rows["thread"]
    hidden = rows.is_kind(EventKind.STEP, EventKind.SYNC_RECORD)
    events = np.flatnonzero((thread >= 0) & (kind < EventKind.KERNEL.value) & ~hidden)
    if not len(events):
        return
    busy = np.bincount(thread[events], weights=rows["dur_ns"][events] + 1.0)
    threads = np.flatnonzero(busy)
    by_work = threads[np.lexsort((threads, -busy[threads], threads != run.main_thread))].tolist()
    for number in by_work[:MAX_THREADS]:
        thread_events = events[thread[events] == number]
        frames = kind[thread_events] == EventKind.PYTHON.value
        yield from _call_stack(builder, number, thread_events[~frames], frames=False)
        if frames.any() and number == run.main_thread:
            yield from _call_stack(builder, number, thread_events[frames], frames=True)
        elif frames.any():
            builder.notes.append(f"the Python frames of {thread_name(run, number)} are not drawn")
    if len(by_work) > MAX_THREADS:
        others = count(len(by_work) - MAX_THREADS, "other thread")
        builder.notes.append(f"only the {MAX_THREADS} busiest threads are drawn, not {others}")


def thread_name(run: Run, thread: int) -> str:
    """Return the name of a thread on screen."""
    if thread == run.main_thread:
        return "main thread"
    name = run.threads[thread] if 0 <= thread < len(run.threads) else ""
    return clean(name, 60) or f"thread {thread}"


def _call_stack(builder: RowBuilder, thread: int, events: Ints, *, frames: bool) -> Iterator[Group]:
    """Yield the calls of a thread as a group with one row per call depth."""
    if not len(events):
        return
    rows = builder.run.event_rows
    start, dur = rows["start_ns"][events], rows["dur_ns"][events]
    if (start[1:] <= start[:-1]).any():
        order = np.lexsort((rows["name"][events], -dur, start))
        events, start, dur = events[order], start[order], dur[order]
    depth = call_depths(start, start + dur)
    main = thread == builder.run.main_thread
    name = thread_name(builder.run, thread)
    if not main and _is_autograd(builder.run, events):
        name = f"autograd ({name})" if "autograd" not in name else name
    most = MAX_MAIN_DEPTH if main else MAX_OTHER_DEPTH
    if depth.max() >= most:
        builder.notes.append(f"{name}: calls nested deeper than {most} levels share the last row")
    depth = np.minimum(depth, most - 1).astype(np.int16)
    order = np.argsort(depth, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(depth)))
    depth_rows = tuple(builder.row_of_events(events[order[a:b]]) for a, b in pairwise(bounds.tolist()))
    about = "Operators and runtime calls, each below its caller."
    if frames:
        name, about = f"{name}: Python", "Python functions, each below its caller."
    yield Group(
        id=f"{'python' if frames else 'thread'}:{thread}",
        name=name,
        description=about,
        rows=depth_rows,
        folded=frames or not main,
        is_events=True,
        is_call_stack=True,
    )


def _is_autograd(run: Run, events: Ints) -> bool:
    """Return whether a thread runs backward functions, as PyTorch's autograd engine does."""
    names = run.event_rows.text("name")
    return bool(names.select(events).matching(_BACKWARD.search(name) is not None for name in names.vocabulary).any())


def _stalls(builder: RowBuilder) -> Group:
    rows = builder.run.stall_rows
    details = rows.text("what").to_list()
    start = rows["start_ns"] + builder.shift_ns
    is_gc = rows.is_kind(StallKind.GC)
    key = np.where(is_gc, KEY_INDEX["gc"], KEY_INDEX["compile"]).astype(np.uint8)
    labels = [
        f"{'garbage collection' if gc else 'compilation'}{f': {detail}' if detail else ''}"
        for gc, detail in zip(is_gc.tolist(), details, strict=True)
    ]
    names = np.array([builder.names.code_of(label) for label in labels], np.int32)
    row = build_boxes(start, start + rows["dur_ns"], key, names, np.full(len(rows), -1, np.int32))
    about = "Garbage collection and compilation, which block the main thread."
    return Group(id="stalls", name="stalls", description=about, rows=(row,))


def _gpus(builder: RowBuilder) -> Iterator[Group]:
    run, rows = builder.run, builder.run.event_rows
    work = np.flatnonzero(rows.is_kind(*DEVICE_KINDS))
    devices = rows["device"][work]
    numbers, counts = np.unique(devices, return_counts=True)
    by_work = numbers[np.argsort(-counts, kind="stable")].tolist()
    if len(by_work) > MAX_GPUS:
        others = count(len(by_work) - MAX_GPUS, "other GPU")
        builder.notes.append(f"only the {MAX_GPUS} GPUs with most device work are drawn, not {others}")
    several = len(by_work) > 1 or len(run.machine.gpus) > 1
    for device in sorted(by_work[:MAX_GPUS]):
        yield from _device(builder, device, work[devices == device], gpu_name(device, several=several))


def gpu_name(device: int, *, several: bool) -> str:
    """Return the name of a GPU on screen."""
    return f"GPU {device}" if several and device >= 0 else "GPU"


def _device(builder: RowBuilder, device: int, work: Ints, name: str) -> Iterator[Group]:
    rows = builder.run.event_rows
    kind = rows["kind"][work]
    yield from _streams(builder, device, work[kind == EventKind.KERNEL.value], name)
    transfers: tuple[tuple[str, Mask, str], ...] = (
        (
            "copies",
            (kind == EventKind.MEMCPY.value) | (kind == EventKind.MEMSET.value),
            "Copies to and from GPU memory, and memory fills.",
        ),
        ("communication", kind == EventKind.COLLECTIVE.value, "Collectives between GPUs, such as all-reduce."),
    )
    for label, mask, about in transfers:
        if mask.any():
            rows_ = (builder.row_of_events(work[mask]),)
            yield Group(
                id=f"gpu{device}:{label}", name=f"{name} {label}", description=about, rows=rows_, is_events=True
            )


def _streams(builder: RowBuilder, device: int, kernels: Ints, name: str) -> Iterator[Group]:
    """Yield the busiest streams, and one row for the kernels of all other streams."""
    if not len(kernels):
        return
    rows = builder.run.event_rows
    streams, stream_index = np.unique(rows["stream"][kernels], return_inverse=True)
    by_work = np.argsort(-np.bincount(stream_index, weights=rows["dur_ns"][kernels]), kind="stable")
    several = len(streams) > 1
    for index in sorted(by_work[:MAX_STREAMS].tolist()):
        stream = int(streams[index])
        label = f"{name} stream {stream}" if several and stream >= 0 else f"{name} kernels"
        row = builder.row_of_events(kernels[stream_index == index])
        about = "Kernels of this stream. Gaps: the stream is idle."
        yield Group(id=f"gpu{device}:stream{stream}", name=label, description=about, rows=(row,), is_events=True)
    others = by_work[MAX_STREAMS:]
    if len(others):
        row = builder.row_of_events(kernels[np.isin(stream_index, others)])
        label = f"{name}: {count(len(others), 'other stream')}"
        about = "Kernels of all streams with less work, in one row."
        yield Group(id=f"gpu{device}:others", name=label, description=about, rows=(row,), is_events=True)


def event_row_numbers(groups: list[tuple[Group, int]], count: int) -> Codes:
    """Return the row of each of `count` events, -1 if it is not drawn. `groups` come with their first row."""
    row_numbers = np.full(count, -1, np.int32)
    for group, first in groups:
        if group.is_events:
            for depth, row in enumerate(group.rows):
                row_numbers[row.id] = first + depth
    return row_numbers
