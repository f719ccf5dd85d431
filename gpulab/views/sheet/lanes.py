"""Timeline lanes: host threads and GPU streams, each instant assigned to at most one part of the ledger."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.interior import longest_part
from gpulab.analysis.steps.ledger import Ledger, device_layers, host_layers, launching_threads, main_device
from gpulab.intervals import Spans, intersect, no_spans, subtract, union_of
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS

MAX_STREAMS = 4  # lanes for the busiest streams; all others share one more lane
FEW_STEPS = 3  # steps in a picture: enough to show that a pattern repeats, few enough for detail


@dataclass(frozen=True, eq=False)
class Lane:
    """One row of the timeline: its name, and the spans of each part; parts do not overlap."""

    name: str
    parts: tuple[tuple[str, Spans], ...]


@dataclass(frozen=True)
class Window:
    """The time window of a run that a timeline shows, and the indices of the steps in it."""

    start_ns: int
    end_ns: int
    steps: tuple[int, ...]


def middle_window(steps: Steps) -> Window | None:
    """Return a window of FEW_STEPS adjacent interior steps, in the middle of the most that there are; None if none."""
    interior = np.flatnonzero(longest_part(steps.interior & (steps.end_ns > steps.start_ns)))
    if not len(interior):
        return None
    first = max(0, (len(interior) - FEW_STEPS) // 2)
    indices = interior[first : first + FEW_STEPS]
    return Window(int(steps.start_ns[indices[0]]), int(steps.end_ns[indices[-1]]), tuple(indices.tolist()))


def timeline_lanes(run: Run, ledger: Ledger, time_window: Window) -> tuple[Lane, ...]:
    """Return the lanes of a run within a window: the main thread, then each GPU stream."""
    if ledger.device == "cpu":
        # One thread does both; two lanes show that it computes whenever it does not wait, and vice versa.
        return tuple(
            Lane(name, tuple((part.key, ledger.spans[part.key]) for part in ledger.parts if part.busy is busy))
            for name, busy in (("other time", False), ("long operators", True))
        )
    events = _events_in(run, time_window)
    return (_host_lane(run, events, time_window), *_device_lanes(events, main_device(run)))


def host_and_gpu_lanes(run: Run, ledger: Ledger, time_window: Window) -> tuple[Lane, ...]:
    """Return one lane for the host and one for all GPU streams; without a GPU, one lane for the CPU."""
    if ledger.device == "cpu":
        return (
            Lane(
                "CPU", tuple((part.key, clip_to_window(ledger.spans[part.key], time_window)) for part in ledger.parts)
            ),
        )
    events = _events_in(run, time_window)
    work = events.of_kind(*DEVICE_KINDS)
    work = work.select(work["device"] == main_device(run))
    return Lane("host", _host_lane(run, events, time_window).parts), Lane("GPU", disjoint_layers(device_layers(work)))


def _events_in(run: Run, time_window: Window) -> Rows:
    events = run.event_rows
    end = events["start_ns"] + events["dur_ns"]
    return events.select((events["start_ns"] < time_window.end_ns) & (end > time_window.start_ns))


def _host_lane(run: Run, events: Rows, time_window: Window) -> Lane:
    threads = launching_threads(run)
    host = events.select(np.isin(events["thread"], threads))
    whole_window = Spans(np.array([time_window.start_ns]), np.array([time_window.end_ns]))
    layers = [*host_layers(run, host, whole_window), ("python", whole_window)]
    return Lane("host threads" if len(threads) > 1 else "main thread", disjoint_layers(layers))


def _device_lanes(events: Rows, device: int) -> tuple[Lane, ...]:
    work = events.of_kind(*DEVICE_KINDS)
    work = work.select(work["device"] == device)
    streams, stream_index = np.unique(work["stream"], return_inverse=True)
    by_work = np.argsort(-np.bincount(stream_index, weights=work["dur_ns"], minlength=len(streams)), kind="stable")
    several = len(streams) > 1
    busiest = sorted(by_work[:MAX_STREAMS].tolist())
    names = [f"stream {streams[n]}" if several and streams[n] >= 0 else "GPU" for n in busiest]
    stream_lanes = [
        Lane(name, disjoint_layers(device_layers(work.select(stream_index == n))))
        for name, n in zip(names, busiest, strict=True)
    ]
    others = by_work[MAX_STREAMS:]
    if len(others):
        rest = work.select(np.isin(stream_index, others))
        stream_lanes.append(Lane(f"{len(others)} other streams", disjoint_layers(device_layers(rest))))
    return tuple(stream_lanes) or (Lane("GPU", ()),)


def disjoint_layers(layers: Iterable[tuple[str, Spans]]) -> tuple[tuple[str, Spans], ...]:
    """Assign each instant to the first layer that covers it; layers left without time are dropped."""
    assigned, parts = no_spans(), []
    for key, spans in layers:
        left = subtract(spans, assigned)
        if len(left.start_ns):
            parts.append((key, left))
            assigned = union_of(assigned, left)
    return tuple(parts)


def clip_to_window(spans: Spans, time_window: Window) -> Spans:
    """Clip spans to the window."""
    return intersect(spans, Spans(np.array([time_window.start_ns]), np.array([time_window.end_ns])))
