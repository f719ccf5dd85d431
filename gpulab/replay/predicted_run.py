"""The run that a replay predicts: the recorded events at their predicted times, for every view that shows a run.

Host events keep their order. A moment inside a call lies in the same proportion of the predicted call; a moment
between two calls is as late after the first as the host work until then takes now, part by part of the ledger. Device
work begins and ends as the replay says; what a change takes away is not there. Sensors and memory are not predicted,
so a predicted run has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Coverage, Ints
from gpulab.replay.critical_path import device_paces
from gpulab.replay.graph.graph import Floats, Stop
from gpulab.replay.sweep import NEVER, Timed
from gpulab.rows import Rows
from gpulab.run import TRACED, Recording, Run, Source
from gpulab.tables import EVENTS, MARKS, SIDE_TABLES, STALLS, MarkKind


def emitted(timed: Timed, between_ns: tuple[float, float] | None = None) -> Run:
    """The run as these times have it; `between_ns`: only the events that reach into this stretch of it."""
    run = timed.graph.run
    moved = _clock(timed)
    events, kept = _events(timed, moved, _reaching(timed, between_ns))
    marks = _device_marks(timed) if device_paces(timed) else _marks(run, moved)
    until_ns = int((events["start_ns"] + events["dur_ns"]).max(initial=0))
    beside = _beside(run, kept)
    return Run(
        name=f"{run.name} predicted",
        source=Source(how="predicted", device=run.source.device, date=run.source.date, of=run.source.how),
        machine=run.machine,
        span_ns=max(until_ns, int(marks["end_ns"].max(initial=0))),
        rank=run.rank,
        recording=_recording(run.recording, moved, until_ns),
        loaders=run.loaders,
        models=run.models,
        optimizers=run.optimizers,
        threads=run.threads,
        main_thread=run.main_thread,
        facts=run.facts,
        event_rows=events,
        grid_rows=beside["grid_rows"],
        shape_rows=beside["shape_rows"],
        collective_rows=beside["collective_rows"],
        wait_rows=beside["wait_rows"],
        mark_rows=marks,
        stall_rows=_stalls(run, moved),
    )


Clock = Callable[[Ints], Ints]


@dataclass(frozen=True, eq=False)
class _Track:
    """The host's track in both times."""

    at: Floats  # where each stop began in the recording
    until: Floats  # and ended
    begins: Floats  # where it begins now
    ends: Floats
    # When the host was in a part, and how much longer that takes now; not of parts that take as long as they did.
    parts: tuple[tuple[Coverage, Floats], ...]

    def told(self, moments: Floats) -> Floats:
        """Where these moments of the recording, in order of time, lie now."""
        last = len(self.at) - 1
        place = np.searchsorted(self.at, moments, side="right") - 1
        stop = np.maximum(place, 0)
        dur = self.until[stop] - self.at[stop]
        inside = moments < self.until[stop]
        share = np.divide(moments - self.at[stop], dur, out=np.zeros(len(moments)), where=dur > 0)
        within = self.begins[stop] + share * (self.ends[stop] - self.begins[stop])
        following = np.minimum(stop + 1, last)
        since = moments - self.until[stop]
        for coverage, longer in self.parts:
            done = coverage.until(self.until.astype(np.int64))[stop]
            since += longer[following] * np.maximum(coverage.until(moments.astype(np.int64)) - done, 0)
        between = np.minimum(self.ends[stop] + since, np.where(stop < last, self.begins[following], np.inf))
        after = np.where(stop < last, between, self.ends[last] + moments - self.until[last])
        now = np.where(inside, within, after)
        now = np.where(place < 0, moments + self.begins[0] - self.at[0], now)
        return np.maximum.accumulate(now) if len(now) else now


def _clock(timed: Timed) -> Clock:
    """From a moment of the recording to the same moment now."""
    graph, host = timed.graph, timed.graph.host
    last = int(host.event[-1])
    ended = host.at_ns[-1] + (float(graph.run.event_rows["dur_ns"][last]) if last >= 0 else 0.0)
    until = np.append(host.from_ns[1:], ended)
    parts = []
    for part, spans in graph.part_spans.items():
        coverage = Coverage.of(spans)
        was = coverage.within(host.from_ns.astype(np.int64), host.at_ns.astype(np.int64)).astype(float)
        longer = np.divide(host.before_ns[part], was, out=np.ones(len(was)), where=was > 0) - 1
        if longer.any():
            parts.append((coverage, longer))
    track = _Track(host.at_ns, until, timed.begins_ns, timed.ends_ns, tuple(parts))

    def moved(moments: Ints) -> Ints:
        each, place = np.unique(np.asarray(moments, np.int64), return_inverse=True)
        now: Ints = np.maximum(np.rint(track.told(each.astype(float))), 0).astype(np.int64)
        return now[place]

    return moved


def _reaching(timed: Timed, between_ns: tuple[float, float] | None) -> Mask:
    """The recorded events that reach into a stretch of the predicted time."""
    host, device, rows = timed.graph.host, timed.graph.device, timed.graph.run.event_rows
    if between_ns is None:
        return np.ones(len(rows), bool)
    begin, end = between_ns
    first = max(0, int(np.searchsorted(np.maximum.accumulate(timed.ends_ns), begin)) - 1)
    last = int(np.searchsorted(np.maximum.accumulate(timed.begins_ns), end, side="right"))
    until = host.at_ns[last] if last < len(host) else np.inf
    kept: Mask = (rows["start_ns"] <= until) & (rows["start_ns"] + rows["dur_ns"] >= host.from_ns[first])
    kept[device.event] = (timed.device_start_ns <= end) & (timed.device_end_ns >= begin)
    return kept


def _events(timed: Timed, moved: Clock, kept: Mask) -> tuple[Rows, Mask]:
    """Of these events what is left, at their times now, in their order, and which of the recorded ones they are."""
    device, rows = timed.graph.device, timed.graph.run.event_rows
    kept = kept.copy()
    gone = (device.dur_ns <= 0) & (rows["dur_ns"][device.event] > 0)
    if (device.dur_ns > 0).any():  # else the device takes no time for any of it: it is still there
        kept[device.event[gone]] = False
    kept[_calls_not_made(timed, kept)] = False
    picked = np.flatnonzero(kept)
    start = rows["start_ns"][picked]
    both = moved(np.concatenate([start, start + rows["dur_ns"][picked]]))
    opens, closes = both[: len(start)], both[len(start) :]
    place = np.cumsum(kept) - 1
    mine = kept[device.event]
    opens[place[device.event[mine]]] = np.maximum(np.rint(timed.device_start_ns[mine]), 0)
    closes[place[device.event[mine]]] = np.maximum(np.rint(timed.device_end_ns[mine]), 0)
    columns: dict[str, Any] = {**rows.where(picked).columns}
    columns |= {"start_ns": opens, "dur_ns": np.maximum(closes - opens, 0)}
    return EVENTS.rows(columns), kept


def _calls_not_made(timed: Timed, kept: Mask) -> Ints:
    """Calls that waited, copied or allocated, cost nothing any more, and have nothing to do."""
    graph, host = timed.graph, timed.graph.host
    calls = np.isin(host.stop, (Stop.SYNC, Stop.COPY_CALL, Stop.ALLOC)) & (host.event >= 0)
    calls &= (timed.ends_ns - timed.begins_ns < 1.0) & (host.own_ns <= 0)
    busy = np.zeros(len(host) + 1, bool)
    busy[graph.device.call[kept[graph.device.event]]] = True
    calls &= ~busy[:-1]
    calls &= graph.run.event_rows["dur_ns"][np.maximum(host.event, 0)] > 0
    return host.event[calls]


def _beside(run: Run, kept: Mask) -> dict[str, Rows]:
    """What side tables say of the events that are left."""
    place = np.cumsum(kept) - 1
    told = {}
    for name, table in TRACED.items():
        if table not in SIDE_TABLES:
            continue
        rows: Rows = getattr(run, name)
        left = rows.where(np.flatnonzero(kept[rows["event"]]))
        told[name] = table.rows({**left.columns, "event": place[left["event"]]})
    return told


def _marks(run: Run, moved: Clock) -> Rows:
    """Marks of the recorded part, and the next of each kind, which ends its last step; others are not predicted."""
    rows = run.mark_rows
    kept = np.zeros(len(rows), bool)
    kinds = rows["kind"].astype(np.int64) * (1 << 20) + rows["loader"]
    for kind in np.unique(kinds):
        mine = np.flatnonzero(kinds == kind)
        for start, end in run.recording.windows_ns:
            first, last = np.searchsorted(rows["start_ns"][mine], (start, end + 1))
            kept[mine[first : last + 1]] = True
    left = rows.where(np.flatnonzero(kept))
    return MARKS.rows({**left.columns, "start_ns": moved(left["start_ns"]), "end_ns": moved(left["end_ns"])})


def _device_marks(timed: Timed) -> Rows:
    """Where the device sets the pace, a step ends when the work called for in it does, whatever the host has begun."""
    graph = timed.graph
    marks = np.flatnonzero(graph.host.stop == Stop.MARK)
    reach = np.maximum.accumulate(np.where(graph.device.call >= 0, timed.device_end_ns, NEVER))
    called = graph.host.first[marks]
    at = np.where(called > 0, reach[np.maximum(called - 1, 0)], NEVER)
    at = np.unique(np.rint(np.where(at > NEVER / 2, at, timed.begins_ns[marks])).astype(np.int64))
    columns: Mapping[str, Any] = {column.name: np.full(len(at), -1) for column in MARKS.columns}
    kinds = np.full(len(at), int(MarkKind.USER))
    return MARKS.rows({**columns, "kind": kinds, "start_ns": at, "end_ns": at, "yielded": np.zeros(len(at), bool)})


def _stalls(run: Run, moved: Clock) -> Rows:
    rows = run.stall_rows
    start, end = moved(rows["start_ns"]), moved(rows["start_ns"] + rows["dur_ns"])
    return STALLS.rows({**rows.columns, "start_ns": start, "dur_ns": end - start})


def _recording(recording: Recording, moved: Clock, until_ns: int) -> Recording:
    def each(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        now = moved(np.array(spans, np.int64).reshape(-1)).reshape(-1, 2).tolist()
        return tuple((start, end) for start, end in now)

    windows = each(recording.windows_ns)
    if windows:  # work of the device may end after the host's part of the recording
        windows = (*windows[:-1], (windows[-1][0], max(windows[-1][1], until_ns)))
    return replace(recording, windows_ns=windows, pauses_ns=each(recording.pauses_ns), left_out=(), lost={})
