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

from gpulab.analysis.steps import Mask
from gpulab.intervals import Coverage, Ints
from gpulab.replay.critical import device_paces
from gpulab.replay.graph import Floats, Stop
from gpulab.replay.sweep import NEVER, Timed
from gpulab.rows import Rows
from gpulab.run import TRACED, Recording, Run, Source
from gpulab.tables import EVENTS, MARKS, SIDE_TABLES, STALLS, MarkKind


def emitted(timed: Timed, name: str | None = None) -> Run:
    """The run as these times have it."""
    run = timed.graph.run
    moved = _clock(timed)
    events, kept = _events(timed, moved)
    marks = _device_marks(timed) if device_paces(timed) else _marks(run, moved)
    ends = np.concatenate([events["start_ns"] + events["dur_ns"], marks["end_ns"]])
    span_ns = int(ends.max(initial=0))
    beside = _beside(run, kept)
    return Run(
        name=name or f"{run.name} predicted",
        source=Source(how="predicted", device=run.source.device, date=run.source.date, of=run.source.how),
        machine=run.machine,
        span_ns=span_ns,
        rank=run.rank,
        recording=_recording(run.recording, moved, span_ns),
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
    parts: tuple[tuple[Coverage, Floats], ...]  # when the host was in a part, and how much longer that takes now

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
        since = np.zeros(len(moments))
        for coverage, rate in self.parts:
            since += rate[following] * coverage.within(self.until[stop].astype(np.int64), moments.astype(np.int64))
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
        rate = np.divide(host.before_ns[part], was, out=np.ones(len(was)), where=was > 0)
        parts.append((coverage, rate))
    track = _Track(host.at_ns, until, timed.begins_ns, timed.ends_ns, tuple(parts))

    def moved(moments: Ints) -> Ints:
        each, place = np.unique(np.asarray(moments, np.int64), return_inverse=True)
        now: Ints = np.maximum(np.rint(track.told(each.astype(float))), 0).astype(np.int64)
        return now[place]

    return moved


def _events(timed: Timed, moved: Clock) -> tuple[Rows, Mask]:
    """The events now, in order of time within their kinds as they were, and which of the recorded ones they are."""
    device, rows = timed.graph.device, timed.graph.run.event_rows
    start = rows["start_ns"]
    both = moved(np.concatenate([start, start + rows["dur_ns"]]))
    opens, closes = both[: len(start)].copy(), both[len(start) :].copy()
    opens[device.event] = np.maximum(np.rint(timed.device_start_ns), 0)
    closes[device.event] = np.maximum(np.rint(timed.device_end_ns), opens[device.event])
    kept = np.ones(len(rows), bool)
    gone = (device.dur_ns <= 0) & (rows["dur_ns"][device.event] > 0)
    if (device.dur_ns > 0).any():  # else the device takes no time for any of it: it is still there
        kept[device.event[gone]] = False
    kept[_calls_not_made(timed, kept)] = False
    columns: dict[str, Any] = {**rows.where(np.flatnonzero(kept)).columns}
    columns |= {"start_ns": opens[kept], "dur_ns": (closes - opens)[kept]}
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
    """Marks of the recorded part; what was marked outside of it is not predicted."""
    rows = run.mark_rows
    inside = np.zeros(len(rows), bool)
    for start, end in run.recording.windows_ns:
        inside |= (rows["start_ns"] >= start) & (rows["start_ns"] <= end)
    left = rows.where(np.flatnonzero(inside))
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


def _recording(recording: Recording, moved: Clock, span_ns: int) -> Recording:
    def each(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        now = moved(np.array(spans, np.int64).reshape(-1)).reshape(-1, 2).tolist()
        return tuple((start, end) for start, end in now)

    windows = each(recording.windows_ns)
    if windows:  # work of the device may end after the host's part of the recording
        windows = (*windows[:-1], (windows[-1][0], max(windows[-1][1], span_ns)))
    return replace(recording, windows_ns=windows, pauses_ns=each(recording.pauses_ns), left_out=(), lost={})
