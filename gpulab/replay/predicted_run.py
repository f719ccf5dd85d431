"""Build the run that a replay predicts: the recorded events at their predicted times, for every view of a run.

Host events keep their order. A time inside a call maps to the same fraction of the predicted call. A time between two
calls keeps its distance from the first, scaled with the host work of each ledger part. Device work starts and ends as
replayed; removed work is absent. A predicted run has no sensor and memory readings, because these are not predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Coverage, Ints
from gpulab.replay.critical_path import is_device_bound
from gpulab.replay.graph.graph import Floats, NodeKind
from gpulab.replay.selected_events import side_rows, with_side_rows
from gpulab.replay.sweep import NEVER, Schedule
from gpulab.rows import Rows
from gpulab.run import Recording, Run, Source
from gpulab.tables import EVENTS, MARKS, STALLS, MarkKind


def predicted_run(schedule: Schedule, between_ns: tuple[float, float] | None = None) -> Run:
    """Return the predicted run; `between_ns` keeps only the events that overlap this interval of predicted time."""
    run = schedule.graph.run
    to_predicted = _clock(schedule)
    events, remaining = _events(schedule, to_predicted, _events_in_interval(schedule, between_ns))
    marks = _device_marks(schedule) if is_device_bound(schedule) else _marks(run, to_predicted)
    until_ns = int((events["start_ns"] + events["dur_ns"]).max(initial=0))
    predicted = Run(
        name=f"{run.name} predicted",
        source=Source(how="predicted", device=run.source.device, date=run.source.date, of=run.source.how),
        machine=run.machine,
        span_ns=max(until_ns, int(marks["end_ns"].max(initial=0))),
        rank=run.rank,
        recording=_recording(run.recording, to_predicted, until_ns),
        loaders=run.loaders,
        models=run.models,
        optimizers=run.optimizers,
        frozen_models=run.frozen_models,
        repeated_inputs=run.repeated_inputs,
        repeated_in_evaluations=run.repeated_in_evaluations,
        evaluated_modules=run.evaluated_modules,
        growing_inputs=run.growing_inputs,
        discarded_gradients=run.discarded_gradients,
        sparse_operands=run.sparse_operands,
        separate_modules=run.separate_modules,
        layer_times=run.layer_times,
        dropout_times=run.dropout_times,
        threads=run.threads,
        main_thread=run.main_thread,
        facts=run.facts,
        event_rows=events,
        mark_rows=marks,
        stall_rows=_stalls(run, to_predicted),
    )
    return with_side_rows(predicted, side_rows(run, remaining))


Clock = Callable[[Ints], Ints]


@dataclass(frozen=True, eq=False)
class _HostTimes:
    """The host track in recorded and in predicted time."""

    at: Floats  # recorded start of each host node
    until: Floats  # recorded end
    begins: Floats  # predicted start
    ends: Floats
    # For each part whose duration changes: when the host was in it, and the relative change before each node.
    parts: tuple[tuple[Coverage, Floats], ...]

    def predicted_times(self, times: Floats) -> Floats:
        """Map these recorded times, in ascending order, to predicted times."""
        last = len(self.at) - 1
        position = np.searchsorted(self.at, times, side="right") - 1
        node = np.maximum(position, 0)
        dur = self.until[node] - self.at[node]
        inside_call = times < self.until[node]
        fraction = np.divide(times - self.at[node], dur, out=np.zeros(len(times)), where=dur > 0)
        time_in_call = self.begins[node] + fraction * (self.ends[node] - self.begins[node])
        following = np.minimum(node + 1, last)
        elapsed = times - self.until[node]
        for coverage, longer in self.parts:
            elapsed_before = coverage.covered_before_ns(self.until.astype(np.int64))[node]
            elapsed += longer[following] * np.maximum(
                coverage.covered_before_ns(times.astype(np.int64)) - elapsed_before, 0
            )
        time_between = np.minimum(self.ends[node] + elapsed, np.where(node < last, self.begins[following], np.inf))
        time_after = np.where(node < last, time_between, self.ends[last] + times - self.until[last])
        predicted = np.where(inside_call, time_in_call, time_after)
        predicted = np.where(position < 0, times + self.begins[0] - self.at[0], predicted)
        return np.maximum.accumulate(predicted) if len(predicted) else predicted


def _clock(timed: Schedule) -> Clock:
    """Return the function that maps recorded times to predicted times."""
    graph, host = timed.graph, timed.graph.host
    last = int(host.event[-1])
    last_end = host.start_ns[-1] + (float(graph.run.event_rows["dur_ns"][last]) if last >= 0 else 0.0)
    ends = np.append(host.previous_end_ns[1:], last_end)
    parts = []
    for part, spans in graph.part_spans.items():
        coverage = Coverage.of(spans)
        recorded_ns = coverage.covered_ns(host.previous_end_ns.astype(np.int64), host.start_ns.astype(np.int64)).astype(
            float
        )
        longer = np.divide(host.before_ns[part], recorded_ns, out=np.ones(len(recorded_ns)), where=recorded_ns > 0) - 1
        if longer.any():
            parts.append((coverage, longer))
    track = _HostTimes(host.start_ns, ends, timed.node_start_ns, timed.node_end_ns, tuple(parts))

    def to_predicted(times: Ints) -> Ints:
        unique_times, inverse = np.unique(np.asarray(times, np.int64), return_inverse=True)
        predicted: Ints = np.maximum(np.rint(track.predicted_times(unique_times.astype(float))), 0).astype(np.int64)
        return predicted[inverse]

    return to_predicted


def _events_in_interval(timed: Schedule, between_ns: tuple[float, float] | None) -> Mask:
    """Mask of the recorded events that overlap an interval of predicted time."""
    host, device, rows = timed.graph.host, timed.graph.device, timed.graph.run.event_rows
    if between_ns is None:
        return np.ones(len(rows), bool)
    start, end = between_ns
    first = max(0, int(np.searchsorted(np.maximum.accumulate(timed.node_end_ns), start)) - 1)
    last = int(np.searchsorted(np.maximum.accumulate(timed.node_start_ns), end, side="right"))
    until = host.start_ns[last] if last < len(host) else np.inf
    remaining: Mask = (rows["start_ns"] <= until) & (rows["start_ns"] + rows["dur_ns"] >= host.previous_end_ns[first])
    remaining[device.event] = (timed.device_start_ns <= end) & (timed.device_end_ns >= start)
    return remaining


def _events(timed: Schedule, to_predicted: Clock, remaining: Mask) -> tuple[Rows, Mask]:
    """Return the remaining events at their predicted times, in recorded order, and the mask of those that remain."""
    device, rows = timed.graph.device, timed.graph.run.event_rows
    remaining = remaining.copy()
    removed = (device.dur_ns <= 0) & (rows["dur_ns"][device.event] > 0)
    if (device.dur_ns > 0).any():  # otherwise no device work takes time, and all of it remains
        remaining[device.event[removed]] = False
    remaining[_removed_calls(timed, remaining)] = False
    rows_left = np.flatnonzero(remaining)
    start = rows["start_ns"][rows_left]
    times = to_predicted(np.concatenate([start, start + rows["dur_ns"][rows_left]]))
    starts, ends = times[: len(start)], times[len(start) :]
    new_row = np.cumsum(remaining) - 1
    remaining_ops = remaining[device.event]
    starts[new_row[device.event[remaining_ops]]] = np.maximum(np.rint(timed.device_start_ns[remaining_ops]), 0)
    ends[new_row[device.event[remaining_ops]]] = np.maximum(np.rint(timed.device_end_ns[remaining_ops]), 0)
    columns: dict[str, Any] = {**rows.select(rows_left).columns}
    columns |= {"start_ns": starts, "dur_ns": np.maximum(ends - starts, 0)}
    return EVENTS.rows(columns), remaining


def _removed_calls(timed: Schedule, remaining: Mask) -> Ints:
    """Events of calls that waited, copied or allocated, but now cost nothing and launch nothing."""
    graph, host = timed.graph, timed.graph.host
    calls = np.isin(host.kind, (NodeKind.SYNC, NodeKind.COPY_CALL, NodeKind.ALLOC)) & (host.event >= 0)
    calls &= (timed.node_end_ns - timed.node_start_ns < 1.0) & (host.call_ns <= 0)
    busy = np.zeros(len(host) + 1, bool)
    busy[graph.device.call[remaining[graph.device.event]]] = True
    calls &= ~busy[:-1]
    calls &= graph.run.event_rows["dur_ns"][np.maximum(host.event, 0)] > 0
    return host.event[calls]


def _marks(run: Run, to_predicted: Clock) -> Rows:
    """Marks of the recorded part, and the next mark of each kind, which ends its last step; later ones are unknown."""
    rows = run.mark_rows
    selected = np.zeros(len(rows), bool)
    kinds = rows["kind"].astype(np.int64) * (1 << 20) + rows["loader"]
    for kind in np.unique(kinds):
        of_kind = np.flatnonzero(kinds == kind)
        for start, end in run.recording.windows_ns:
            first, last = np.searchsorted(rows["start_ns"][of_kind], (start, end + 1))
            selected[of_kind[first : last + 1]] = True
    rows_left = rows.select(np.flatnonzero(selected))
    return MARKS.rows(
        {
            **rows_left.columns,
            "start_ns": to_predicted(rows_left["start_ns"]),
            "end_ns": to_predicted(rows_left["end_ns"]),
        }
    )


def _device_marks(timed: Schedule) -> Rows:
    """Step marks for a device-bound run: a step ends when the device work launched in it ends."""
    graph = timed.graph
    marks = np.flatnonzero(graph.host.kind == NodeKind.MARK)
    latest_end = np.maximum.accumulate(np.where(graph.device.call >= 0, timed.device_end_ns, NEVER))
    first_op = graph.host.first_op[marks]
    at = np.where(first_op > 0, latest_end[np.maximum(first_op - 1, 0)], NEVER)
    at = np.unique(np.rint(np.where(at > NEVER / 2, at, timed.node_start_ns[marks])).astype(np.int64))
    columns: Mapping[str, Any] = {column.name: np.full(len(at), -1) for column in MARKS.columns}
    kinds = np.full(len(at), int(MarkKind.USER))
    return MARKS.rows({**columns, "kind": kinds, "start_ns": at, "end_ns": at, "yielded": np.zeros(len(at), bool)})


def _stalls(run: Run, to_predicted: Clock) -> Rows:
    rows = run.stall_rows
    start, end = to_predicted(rows["start_ns"]), to_predicted(rows["start_ns"] + rows["dur_ns"])
    return STALLS.rows({**rows.columns, "start_ns": start, "dur_ns": end - start})


def _recording(recording: Recording, to_predicted: Clock, until_ns: int) -> Recording:
    def map_spans(spans: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
        predicted = to_predicted(np.array(spans, np.int64).reshape(-1)).reshape(-1, 2).tolist()
        return tuple((start, end) for start, end in predicted)

    windows = map_spans(recording.windows_ns)
    if windows:  # device work may end after the host's part of the recording
        windows = (*windows[:-1], (windows[-1][0], max(windows[-1][1], until_ns)))
    return replace(recording, windows_ns=windows, pauses_ns=map_spans(recording.pauses_ns), left_out=(), lost={})
