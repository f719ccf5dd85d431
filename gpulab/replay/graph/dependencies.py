"""Who waits for whom: what synchronising calls, streams and a full launch queue waited for.

PyTorch records it for synchronisations where it is asked to (`cuda_sync` events); where it was not, a call that ends
just after device work did is taken to have waited for that.
"""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import streams
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, Floats, Stop
from gpulab.replay.graph.host_track import Track
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind

RETURN_NS = 60_000  # a call returns within this time of the work it waited for
CLOCKS_NS = 1_000  # host and device clocks agree to about a microsecond
SHORT_NS = 2_000  # a call as short as this waited for nothing
QUEUE = 1022  # launches that a CUDA context takes before a launch call waits
QUEUE_FACT = "launch_queue"  # the name of the fact that tells of another number
FULL = 1000  # a trace with more outstanding launches than this shows its own limit
AFTER_NS = 15_000  # work of one stream that begins so soon after work of another may have waited for it
EARLY_NS = 25_000  # if it was called for so long before
LOOKED_AT = 64  # candidates that were called for too late, passed over at most


def host_waits(run: Run, track: Track) -> tuple[Ints, Floats]:
    """For each stop the device work it waited for, -1 for none, and how long after that it returned."""
    end = track.work.end_ns
    wait = np.full(len(track.stop), NONE, np.int64)
    asks = np.isin(track.stop, (Stop.COPY_CALL, Stop.SYNC, Stop.ALLOC))
    own = track.first[1:] > track.first[:-1]
    copies = np.flatnonzero(asks & own)
    last = track.first[1:][copies] - 1
    waited = track.end_ns[copies] >= end[last] - CLOCKS_NS
    wait[copies[waited]] = last[waited]
    bare = np.flatnonzero(asks & ~own & (track.dur_ns > SHORT_NS))
    wait[bare] = _ended_within(track, bare)
    for stop, target in _recorded(run, track, "Sync"):
        wait[stop] = target
    delay = np.where(wait >= 0, track.end_ns - end[np.maximum(wait, 0)] if len(end) else 0, 0)
    return wait, np.maximum(delay, 0).astype(float)


def _ended_within(track: Track, stops: Ints) -> Ints:
    """For calls without work of their own: the last work called for before that ended while they lasted."""
    end, start = track.work.end_ns, track.at_ns[stops]
    found = np.full(len(stops), NONE, np.int64)
    if not len(end) or not len(stops):
        return found
    called = np.where(track.call >= 0, track.at_ns[np.maximum(track.call, 0)], np.iinfo(np.int64).min)
    order = np.argsort(end, kind="stable")
    place = np.searchsorted(end[order], track.end_ns[stops] + CLOCKS_NS, side="right") - 1
    left = np.flatnonzero(place >= 0)
    for _ in range(LOOKED_AT):
        candidate = order[place[left]]
        known = called[candidate] <= start[left]
        fits = known & (end[candidate] > start[left]) & (track.end_ns[stops[left]] - end[candidate] < RETURN_NS)
        found[left[fits]] = candidate[fits]
        place[left] -= 1
        left = left[~known & (place[left] >= 0)]
        if not len(left):
            break
    return found


def stream_waits(run: Run, track: Track, before: Ints, latency_ns: float) -> tuple[Ints, bool]:
    """For each piece of work the work of another stream it waited for, and whether the run says so itself."""
    stream = streams(track.work)
    after = np.full(len(stream), NONE, np.int64)
    if len(np.unique(stream)) < 2:
        return after, True
    if _tells_waits(run):
        for waiter, target in _recorded(run, track, "Stream Wait Event"):
            after[waiter] = target
        return after, True
    return _inferred(track, stream, before, latency_ns, after), False


def _inferred(track: Track, stream: Ints, before: Ints, latency_ns: float, after: Ints) -> Ints:
    """Work that began late on an idle stream, just after work of another stream had ended, waited for that."""
    start, end = track.work.start_ns, track.work.end_ns
    called = np.where(track.call >= 0, track.at_ns[np.maximum(track.call, 0)], start)
    free = np.where(before >= 0, end[np.maximum(before, 0)], np.iinfo(np.int64).min // 2)
    late = start > np.maximum(called + max(3 * latency_ns, EARLY_NS), free + 10_000)
    order = np.argsort(end, kind="stable")
    left = np.flatnonzero(late)
    place = np.searchsorted(end[order], start[left] + CLOCKS_NS // 2, side="right") - 1
    for _ in range(6):
        candidate = order[np.maximum(place, 0)]
        fits = (place >= 0) & (stream[candidate] != stream[left]) & (start[left] - end[candidate] < AFTER_NS)
        after[left[fits]] = candidate[fits]
        left, place = left[~fits & (place > 0)], place[~fits & (place > 0)] - 1
    return after


def _tells_waits(run: Run) -> bool:
    """Whether waits between streams were recorded: then a stream without any waited for none."""
    if len(run.wait_rows):
        return True
    return any("sync" in option for option in run.recording.options)


def _recorded(run: Run, track: Track, named: str) -> list[tuple[int, int]]:
    """Pairs (who waits, for which work) that the run tells: a stop for synchronisations, work for streams."""
    rows = run.wait_rows
    if not len(rows):
        return []
    events = run.event_rows
    records = events.where(rows["event"])
    picked = np.flatnonzero(records.matching(lambda word: word.endswith(named)))
    calls = _by_correlation(events)
    stop_of = {int(event): place for place, event in enumerate(track.event.tolist()) if event >= 0}
    told = []
    for row in picked.tolist():
        call = calls.get(int(records["correlation"][row]))
        if call is None:
            continue
        recorded = calls.get(int(rows["wait_on_correlation"][row]), call)
        target = _last_before(track, int(records["device"][row]), int(rows["wait_on_stream"][row]), events, recorded)
        if target is None:
            continue
        if named == "Sync" and call in stop_of:
            told.append((stop_of[call], target))
        waiter = _next_after(track, int(records["device"][row]), int(records["stream"][row]), events, call)
        if named != "Sync" and waiter is not None and waiter != target:
            told.append((waiter, target))
    return told


def _by_correlation(events: Rows) -> dict[int, int]:
    """The row of the runtime call that bears a correlation."""
    kind = events["kind"]
    rows = np.flatnonzero((kind >= Kind.LAUNCH) & (kind <= Kind.RUNTIME) & (events["correlation"] >= 0))
    return dict(zip(events["correlation"][rows].tolist(), rows.tolist(), strict=True))


def _last_before(track: Track, device: int, stream: int, events: Rows, call: int) -> int | None:
    """The last work of a stream (-1: of any) that was called for before a call began."""
    mine = _of_stream(track, device, stream)
    at = track.at_ns[track.call[mine]]
    place = int(np.searchsorted(at, int(events["start_ns"][call]))) - 1
    return int(mine[place]) if place >= 0 else None


def _next_after(track: Track, device: int, stream: int, events: Rows, call: int) -> int | None:
    mine = _of_stream(track, device, stream)
    at = track.at_ns[track.call[mine]]
    place = int(np.searchsorted(at, int(events["start_ns"][call])))
    return int(mine[place]) if place < len(mine) else None


def _of_stream(track: Track, device: int, stream: int) -> Ints:
    mine = (track.call >= 0) & ((track.work["stream"] == stream) | (stream < 0))
    if device >= 0:
        mine &= track.work["device"] == device
    return np.flatnonzero(mine)


def queue_of(run: Run) -> int | None:
    """How many launches a virtual GPU's queue took; None for a run that does not tell."""
    told = run.facts.get(QUEUE_FACT)
    return int(told) if told else None


def room(track: Track, queue: int | None = None) -> tuple[Ints, Floats, Floats]:
    """For each stop the device work that had to end before the launch queue took its own; when after it; what is left.

    A launch waits while 1022 others are outstanding; without this, work on a busy GPU seems to be limited by the host.
    `queue`: how many it was in this run, where that is known.
    """
    count = len(track.stop)
    target, delay, own = np.full(count, NONE, np.int64), np.zeros(count), track.dur_ns.astype(float)
    calls = np.flatnonzero(track.first[1:] > track.first[:-1])
    if not len(calls):
        return target, delay, own
    last = track.first[1:][calls] - 1
    ends = track.work.end_ns[last]
    at = track.at_ns[calls]
    outstanding = np.arange(1, len(calls) + 1) - np.searchsorted(np.sort(ends), at, side="right")
    most = int(outstanding.max())
    size = queue or (most - 1 if most >= FULL else QUEUE)
    if len(calls) <= size:
        return target, delay, own
    held = calls[size:]
    target[held] = last[:-size]
    freed = track.work.end_ns[target[held]]
    full = freed > track.at_ns[held]
    usual = float(np.median(np.append(track.dur_ns[calls[:size]], track.dur_ns[held[~full]])))
    blocked = full & (track.dur_ns[held] > 3 * usual)
    slack = (track.end_ns[held] - freed).astype(float)
    delay[held] = np.where(blocked, slack, np.minimum(slack, 0.0))
    own[held[blocked]] = usual
    return target, delay, own
