"""Dependencies: what synchronising calls, streams and launches into a full queue waited for.

PyTorch records waits if `cuda_sync` events are turned on. Otherwise, a call that ends just after device work ended is
assumed to have waited for it.
"""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import stream_keys
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import NONE, Floats, NodeKind
from gpulab.replay.graph.host_track import HostTrack
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.run_facts import count_from_fact
from gpulab.tables import RUNTIME_KINDS

RETURN_NS = 60_000  # a call returns within this time of the work it waited for
CLOCKS_NS = 1_000  # host and device clocks agree to about a microsecond
SHORT_NS = 2_000  # a call as short as this waited for nothing
LAUNCH_QUEUE_CAPACITY = 1022  # capacity of a CUDA context's launch queue; the next launch call blocks
QUEUE_FACT = "launch_queue"  # name of the fact that holds another capacity
MIN_OBSERVED_CAPACITY = 1000  # if more launches were outstanding, their maximum shows the capacity
AFTER_NS = 15_000  # an op that starts this soon after an op of another stream may have waited for it
EARLY_NS = 25_000  # provided it was launched at least this long before
MAX_CANDIDATES = 64  # maximum number of candidates to skip because they were launched too late


def awaited_device_ops(run: Run, track: HostTrack) -> tuple[Ints, Floats]:
    """For each host node, the device op it waited for (-1: none), and the delay from that op's end to its return."""
    end = track.work.end_ns
    wait = np.full(len(track.kind), NONE, np.int64)
    may_wait = np.isin(track.kind, (NodeKind.COPY_CALL, NodeKind.SYNC, NodeKind.ALLOC))
    launches = track.first[1:] > track.first[:-1]
    launching = np.flatnonzero(may_wait & launches)
    last = track.first[1:][launching] - 1
    has_waited = track.end_ns[launching] >= end[last] - CLOCKS_NS
    wait[launching[has_waited]] = last[has_waited]
    without_work = np.flatnonzero(may_wait & ~launches & (track.dur_ns > SHORT_NS))
    wait[without_work] = _last_ended_during(track, without_work)
    for stop, target in _recorded(run, track, "Sync"):
        wait[stop] = target
    delay = np.where(wait >= 0, track.end_ns - end[np.maximum(wait, 0)] if len(end) else 0, 0)
    return wait, np.maximum(delay, 0).astype(float)


def _last_ended_during(track: HostTrack, stops: Ints) -> Ints:
    """For calls that launch nothing: the last op launched earlier that ended during the call."""
    end, start = track.work.end_ns, track.at_ns[stops]
    targets = np.full(len(stops), NONE, np.int64)
    if not len(end) or not len(stops):
        return targets
    launched_at = np.where(track.call >= 0, track.at_ns[np.maximum(track.call, 0)], np.iinfo(np.int64).min)
    order = np.argsort(end, kind="stable")
    position = np.searchsorted(end[order], track.end_ns[stops] + CLOCKS_NS, side="right") - 1
    open_calls = np.flatnonzero(position >= 0)
    for _ in range(MAX_CANDIDATES):
        candidate = order[position[open_calls]]
        launched_before = launched_at[candidate] <= start[open_calls]
        fits = (
            launched_before
            & (end[candidate] > start[open_calls])
            & (track.end_ns[stops[open_calls]] - end[candidate] < RETURN_NS)
        )
        targets[open_calls[fits]] = candidate[fits]
        position[open_calls] -= 1
        open_calls = open_calls[~launched_before & (position[open_calls] >= 0)]
        if not len(open_calls):
            break
    return targets


def stream_waits(run: Run, track: HostTrack, before: Ints, latency_ns: float) -> tuple[Ints, bool]:
    """For each device op, the op of another stream it waited for, and whether the run recorded these waits."""
    stream = stream_keys(track.work)
    after = np.full(len(stream), NONE, np.int64)
    if len(np.unique(stream)) < 2:
        return after, True
    if has_stream_waits(run):
        for waiter, target in _recorded(run, track, "Stream Wait Event"):
            after[waiter] = target
        return after, True
    return _inferred(track, stream, before, latency_ns, after), False


def _inferred(track: HostTrack, stream: Ints, before: Ints, latency_ns: float, after: Ints) -> Ints:
    """An op that started late on an idle stream, just after an op of another stream ended, waited for that one."""
    start, end = track.work.start_ns, track.work.end_ns
    launched_at = np.where(track.call >= 0, track.at_ns[np.maximum(track.call, 0)], start)
    stream_free = np.where(before >= 0, end[np.maximum(before, 0)], np.iinfo(np.int64).min // 2)
    is_late = start > np.maximum(launched_at + max(3 * latency_ns, EARLY_NS), stream_free + 10_000)
    order = np.argsort(end, kind="stable")
    waiters = np.flatnonzero(is_late)
    position = np.searchsorted(end[order], start[waiters] + CLOCKS_NS // 2, side="right") - 1
    for _ in range(6):
        candidate = order[np.maximum(position, 0)]
        fits = (position >= 0) & (stream[candidate] != stream[waiters]) & (start[waiters] - end[candidate] < AFTER_NS)
        after[waiters[fits]] = candidate[fits]
        waiters, position = waiters[~fits & (position > 0)], position[~fits & (position > 0)] - 1
    return after


def has_stream_waits(run: Run) -> bool:
    """Return whether waits between streams were recorded; then a stream without any waited for none."""
    if len(run.wait_rows):
        return True
    return any("sync" in option for option in run.recording.options)


def _recorded(run: Run, track: HostTrack, suffix: str) -> list[tuple[int, int]]:
    """Recorded waits as pairs (waiter, device op): host nodes for synchronisations, device ops for stream waits."""
    rows = run.wait_rows
    if not len(rows):
        return []
    events = run.event_rows
    records = events.select(rows["event"])
    wait_records = np.flatnonzero(records.matching(lambda word: word.endswith(suffix)))
    calls = _by_correlation(events)
    stop_of = {int(event): node for node, event in enumerate(track.event.tolist()) if event >= 0}
    pairs = []
    for row in wait_records.tolist():
        call = calls.get(int(records["correlation"][row]))
        if call is None:
            continue
        recorded = calls.get(int(rows["wait_on_correlation"][row]), call)
        target = _last_before(track, int(records["device"][row]), int(rows["wait_on_stream"][row]), events, recorded)
        if target is None:
            continue
        if suffix == "Sync" and call in stop_of:
            pairs.append((stop_of[call], target))
        waiter = _next_after(track, int(records["device"][row]), int(records["stream"][row]), events, call)
        if suffix != "Sync" and waiter is not None and waiter != target:
            pairs.append((waiter, target))
    return pairs


def _by_correlation(events: Rows) -> dict[int, int]:
    """Map each correlation id to the row of its runtime call."""
    rows = np.flatnonzero(events.is_kind(*RUNTIME_KINDS) & (events["correlation"] >= 0))
    return dict(zip(events["correlation"][rows].tolist(), rows.tolist(), strict=True))


def _last_before(track: HostTrack, device: int, stream: int, events: Rows, call: int) -> int | None:
    """Return the last op of a stream (-1: of any) launched before a call started."""
    candidates = _of_stream(track, device, stream)
    at = track.at_ns[track.call[candidates]]
    position = int(np.searchsorted(at, int(events["start_ns"][call]))) - 1
    return int(candidates[position]) if position >= 0 else None


def _next_after(track: HostTrack, device: int, stream: int, events: Rows, call: int) -> int | None:
    candidates = _of_stream(track, device, stream)
    at = track.at_ns[track.call[candidates]]
    position = int(np.searchsorted(at, int(events["start_ns"][call])))
    return int(candidates[position]) if position < len(candidates) else None


def _of_stream(track: HostTrack, device: int, stream: int) -> Ints:
    mask = (track.call >= 0) & ((track.work["stream"] == stream) | (stream < 0))
    if device >= 0:
        mask &= track.work["device"] == device
    return np.flatnonzero(mask)


def no_queue(count: int) -> Ints:
    """Return, for this many host nodes, that none waits for a free slot in a launch queue."""
    return np.full(count, NONE, np.int64)


def launch_queue_capacity(run: Run) -> int | None:
    """Return the launch queue capacity of a virtual GPU; None if the run does not record one."""
    return count_from_fact(run, QUEUE_FACT) or None


def launch_queue_waits(track: HostTrack, queue: int | None = None) -> tuple[Ints, Floats, Floats]:
    """For each host node: the device op that frees its slot in the launch queue, the delay after that, its own cost.

    A launch blocks while 1022 others are outstanding. Without this, work on a busy GPU would seem to be limited by the
    host. `queue`: the capacity in this run, if known.
    """
    count = len(track.kind)
    target, delay, own_ns = no_queue(count), np.zeros(count), track.dur_ns.astype(float)
    calls = np.flatnonzero(track.first[1:] > track.first[:-1])
    if not len(calls):
        return target, delay, own_ns
    last = track.first[1:][calls] - 1
    ends = track.work.end_ns[last]
    launched_at = track.at_ns[calls]
    outstanding = np.arange(1, len(calls) + 1) - np.searchsorted(np.sort(ends), launched_at, side="right")
    most_outstanding = int(outstanding.max())
    size = queue or (most_outstanding - 1 if most_outstanding >= MIN_OBSERVED_CAPACITY else LAUNCH_QUEUE_CAPACITY)
    if len(calls) <= size:
        return target, delay, own_ns
    queued = calls[size:]
    target[queued] = last[:-size]
    freed = track.work.end_ns[target[queued]]
    full = freed > track.at_ns[queued]
    usual = float(np.median(np.append(track.dur_ns[calls[:size]], track.dur_ns[queued[~full]])))
    blocked = full & (track.dur_ns[queued] > 3 * usual)
    slack = (track.end_ns[queued] - freed).astype(float)
    delay[queued] = np.where(blocked, slack, np.minimum(slack, 0.0))
    own_ns[queued[blocked]] = usual
    return target, delay, own_ns
