"""Which rows a run has: its steps, its ledger, its threads with what they called, its GPUs with what they did."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.steps.detection import Mask, Steps
from gpulab.analysis.steps.ledger import SMALL_OP_NS, Ledger
from gpulab.intervals import Ints, Spans
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, Kind, StallKind
from gpulab.views.timeline.scene.colours import INDEX, OF_KIND, UNRECORDED
from gpulab.views.timeline.scene.depths import depths
from gpulab.views.timeline.scene.groups import Boxes, Codes, Group, Keys, Names, boxes
from gpulab.wording import clean, count

MOST_THREADS, MOST_STREAMS, MOST_GPUS = 6, 6, 4
MOST_DEPTHS, MOST_DEPTHS_BESIDE = 14, 8  # of the main thread, and of the others
UNNAMED = "(no name)"
_BACKWARD = re.compile(r"autograd::engine|Backward\d*$")  # how old and new versions name what the engine runs


@dataclass(frozen=True, eq=False, kw_only=True)
class Drawn:
    """A run that is being drawn: what all its rows are made from."""

    run: Run
    steps: Steps
    side: int
    shift_ns: int  # from the run's time to the scene's
    whole: dict[str, Spans]  # the ledger of all that was recorded
    accounts: Ledger | None
    names: Names
    first_name: int  # the number of the first name of this run's events
    notes: list[str] = field(default_factory=list)

    def row(self, events: Ints) -> Boxes:
        """These events as one row."""
        rows = self.run.event_rows
        start = rows["start_ns"][events] + self.shift_ns
        code = rows["name"][events].astype(np.int32)
        unnamed = self.names.of(UNNAMED) if (code < 0).any() else 0
        name = np.where(code < 0, unnamed, code + self.first_name).astype(np.int32)
        return boxes(start, start + rows["dur_ns"][events], self.keys(events), name, events.astype(np.int32))

    def keys(self, events: Ints) -> Keys:
        """The colour of each of these events."""
        rows = self.run.event_rows
        kind = rows["kind"][events]
        of_kind = np.array([INDEX[OF_KIND.get(each, UNRECORDED)] for each in Kind], np.uint8)
        key: Keys = of_kind[kind]
        words = rows.words("name").where(events)
        if (kind == Kind.KERNEL).any():
            key[(kind == Kind.KERNEL) & words.matching(map(is_matrix, words.vocabulary))] = INDEX["matmul"]
        if self.accounts is not None and self.accounts.device == "cpu":
            key[(kind == Kind.OP) & (rows["dur_ns"][events] >= SMALL_OP_NS)] = INDEX["compute"]
        return key

    def segments(self, spans: dict[tuple[str, str], Spans]) -> Boxes:
        """Stretches of time of a key and a name as one row."""
        starts, ends, keys, names = [], [], [], []
        for (colour, label), each in spans.items():
            starts.append(each.start_ns + self.shift_ns)
            ends.append(each.end_ns + self.shift_ns)
            keys.append(np.full(len(each.start_ns), INDEX[colour], np.uint8))
            names.append(np.full(len(each.start_ns), self.names.of(label), np.int32))
        none = np.empty(0, np.int64)
        start, end = np.concatenate([none, *starts]), np.concatenate([none, *ends])
        key = np.concatenate([np.empty(0, np.uint8), *keys])
        name = np.concatenate([np.empty(0, np.int32), *names])
        return boxes(start, end, key, name, np.full(len(start), -1, np.int32))


def groups(drawn: Drawn) -> Iterator[Group]:
    """The groups of boxes of a run, in the order in which they stand."""
    if drawn.steps.dur_ns.any():
        yield _steps(drawn)
    if drawn.accounts is not None:
        yield _ledger(drawn)
    yield from _threads(drawn)
    if len(drawn.run.stall_rows):
        yield _stalls(drawn)
    yield from _gpus(drawn)


def step_name(steps: Steps, index: int) -> str:
    """What a step is called on screen."""
    return "the whole run" if steps.found_by == "whole run" else f"step {index + 1}"


def _steps(drawn: Drawn) -> Group:
    steps = drawn.steps
    count = len(steps)
    names = np.array([drawn.names.of(step_name(steps, index)) for index in range(count)], np.int32)
    key = np.where(steps.recorded, INDEX["step"], INDEX["step_unrecorded"]).astype(np.uint8)
    shift = drawn.shift_ns
    row = boxes(steps.start_ns + shift, steps.end_ns + shift, key, names, np.arange(count, dtype=np.int32))
    about = f"The iterations of the loop, found by {steps.found_by}."
    if steps.found_by == "whole run":
        about = "No steps were found: the whole run counts as one."
    return Group(id="steps", name="steps", about=clean(about), rows=(row,))


def _ledger(drawn: Drawn) -> Group:
    accounts = drawn.accounts
    assert accounts is not None
    spans = {(part.key, part.label): drawn.whole[part.key] for part in accounts.parts}
    what = "the GPU's work first, and where it was idle, what the host did"
    if accounts.device == "cpu":
        what = "the operators' work first, and what else the main thread did"
    about = f"Where each moment went: {what}. Its parts sum to the time recorded."
    return Group(id="ledger", name="ledger", about=about, rows=(drawn.segments(spans),))


def _threads(drawn: Drawn) -> Iterator[Group]:
    run, rows = drawn.run, drawn.run.event_rows
    kind, thread = rows["kind"], rows["thread"]
    host = (thread >= 0) & (kind < Kind.KERNEL) & (kind != Kind.STEP) & (kind != Kind.SYNC_RECORD)
    events = np.flatnonzero(host)
    if not len(events):
        return
    busy = np.bincount(thread[events], weights=rows["dur_ns"][events] + 1.0)
    found = np.flatnonzero(busy)
    by_work = found[np.lexsort((found, -busy[found], found != run.main_thread))].tolist()
    for each in by_work[:MOST_THREADS]:
        mine = events[thread[events] == each]
        frames = kind[mine] == Kind.PYTHON
        yield from _nested(drawn, each, mine[~frames], frames=False)
        if frames.any() and each == run.main_thread:
            yield from _nested(drawn, each, mine[frames], frames=True)
        elif frames.any():
            drawn.notes.append(f"the Python frames of {thread_name(run, each)} are not drawn")
    if len(by_work) > MOST_THREADS:
        left = by_work[MOST_THREADS:]
        drawn.notes.append(f"{count(len(left), 'other thread')} with less in them are not drawn")


def thread_name(run: Run, thread: int) -> str:
    """A thread on screen."""
    if thread == run.main_thread:
        return "main thread"
    name = run.threads[thread] if 0 <= thread < len(run.threads) else ""
    return clean(name, 60) or f"thread {thread}"


def _nested(drawn: Drawn, thread: int, events: Ints, *, frames: bool) -> Iterator[Group]:
    """A thread's calls, each in the row of its depth."""
    if not len(events):
        return
    rows = drawn.run.event_rows
    start, dur = rows["start_ns"][events], rows["dur_ns"][events]
    if (start[1:] <= start[:-1]).any():
        order = np.lexsort((rows["name"][events], -dur, start))
        events, start, dur = events[order], start[order], dur[order]
    depth = depths(start, start + dur)
    main = thread == drawn.run.main_thread
    name = thread_name(drawn.run, thread)
    if not main and _of_autograd(drawn.run, events):
        name = f"autograd ({name})" if "autograd" not in name else name
    most = MOST_DEPTHS if main else MOST_DEPTHS_BESIDE
    if depth.max() >= most:
        drawn.notes.append(f"{name}: calls nested deeper than {most} are drawn in its last row")
    depth = np.minimum(depth, most - 1).astype(np.int16)
    order = np.argsort(depth, kind="stable")
    bounds = np.append(0, np.cumsum(np.bincount(depth)))
    made = tuple(drawn.row(events[order[a:b]]) for a, b in pairwise(bounds.tolist()))
    about = "Operators and calls, each under the one that called it."
    if frames:
        name, about = f"{name}: Python", "Python functions, each under the one that called it."
    yield Group(
        id=f"{'python' if frames else 'thread'}:{thread}",
        name=name,
        about=about,
        rows=made,
        folded=frames or not main,
        events=True,
        nested=True,
    )


def _of_autograd(run: Run, events: Ints) -> bool:
    """Whether a thread runs backward functions, as PyTorch's autograd engine does."""
    words = run.event_rows.words("name")
    return bool(words.where(events).matching(_BACKWARD.search(word) is not None for word in words.vocabulary).any())


def _stalls(drawn: Drawn) -> Group:
    rows = drawn.run.stall_rows
    whats = rows.words("what").to_list()
    start = rows["start_ns"] + drawn.shift_ns
    collects = rows["kind"] == StallKind.GC
    key = np.where(collects, INDEX["gc"], INDEX["compile"]).astype(np.uint8)
    labels = [
        f"{'garbage collection' if gc else 'compilation'}{f': {what}' if what else ''}"
        for gc, what in zip(collects.tolist(), whats, strict=True)
    ]
    names = np.array([drawn.names.of(label) for label in labels], np.int32)
    row = boxes(start, start + rows["dur_ns"], key, names, np.full(len(rows), -1, np.int32))
    about = "When collecting garbage or compiling held the main thread up."
    return Group(id="stalls", name="stalls", about=about, rows=(row,))


def _gpus(drawn: Drawn) -> Iterator[Group]:
    run, rows = drawn.run, drawn.run.event_rows
    work = np.flatnonzero(np.isin(rows["kind"], DEVICE_KINDS))
    devices = rows["device"][work]
    found, counts = np.unique(devices, return_counts=True)
    by_work = found[np.argsort(-counts, kind="stable")].tolist()
    if len(by_work) > MOST_GPUS:
        drawn.notes.append(f"{count(len(by_work) - MOST_GPUS, 'other GPU')} with less work are not drawn")
    several = len(by_work) > 1 or len(run.machine.gpus) > 1
    for device in sorted(by_work[:MOST_GPUS]):
        yield from _device(drawn, device, work[devices == device], gpu_name(device, several=several))


def gpu_name(device: int, *, several: bool) -> str:
    """A GPU on screen."""
    return f"GPU {device}" if several and device >= 0 else "GPU"


def _device(drawn: Drawn, device: int, work: Ints, name: str) -> Iterator[Group]:
    rows = drawn.run.event_rows
    kind = rows["kind"][work]
    yield from _streams(drawn, device, work[kind == Kind.KERNEL], name)
    moves: tuple[tuple[str, str, Mask, str], ...] = (
        ("copies", "copies", (kind == Kind.MEMCPY) | (kind == Kind.MEMSET), "Copies and fills of the GPU's memory."),
        ("communication", "communication", kind == Kind.COLLECTIVE, "Collectives between GPUs."),
    )
    for id, label, mask, about in moves:
        if mask.any():
            made = (drawn.row(work[mask]),)
            yield Group(id=f"gpu{device}:{id}", name=f"{name} {label}", about=about, rows=made, events=True)


def _streams(drawn: Drawn, device: int, kernels: Ints, name: str) -> Iterator[Group]:
    """The busiest streams, and the others in one row."""
    if not len(kernels):
        return
    rows = drawn.run.event_rows
    found, which = np.unique(rows["stream"][kernels], return_inverse=True)
    by_work = np.argsort(-np.bincount(which, weights=rows["dur_ns"][kernels]), kind="stable")
    several = len(found) > 1
    for place in sorted(by_work[:MOST_STREAMS].tolist()):
        stream = int(found[place])
        label = f"{name} stream {stream}" if several and stream >= 0 else f"{name} kernels"
        made = (drawn.row(kernels[which == place]),)
        about = "Kernels: what the GPU computes. Where it is empty, this stream is idle."
        yield Group(id=f"gpu{device}:stream{stream}", name=label, about=about, rows=made, events=True)
    others = by_work[MOST_STREAMS:]
    if len(others):
        made = (drawn.row(kernels[np.isin(which, others)]),)
        label = f"{name}: {count(len(others), 'other stream')}"
        about = "Kernels of the streams with less work, together."
        yield Group(id=f"gpu{device}:others", name=label, about=about, rows=made, events=True)


def rows_of_events(groups: list[tuple[Group, int]], count: int) -> Codes:
    """For each of so many events, the row it is drawn in; -1: in none. `groups` come with their first row."""
    found = np.full(count, -1, np.int32)
    for group, first in groups:
        if group.events:
            for depth, row in enumerate(group.rows):
                found[row.id] = first + depth
    return found
