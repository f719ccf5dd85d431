"""What ran when, as lanes: in each lane every instant belongs to one part of the ledger, or to none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, device_layers, host_layers, host_threads, main_device
from gpulab.intervals import Spans, intersect, merged, nothing, subtract
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS

MOST_STREAMS = 4  # lanes for the busiest streams; what the others do is in one lane more
FEW_STEPS = 3  # what a picture shows: enough to see that a pattern repeats, few enough to see into it


@dataclass(frozen=True, eq=False)
class Lane:
    """One row of the timeline: its name, and for each part the time it covers; the parts do not overlap."""

    name: str
    parts: tuple[tuple[str, Spans], ...]


@dataclass(frozen=True)
class Window:
    """The part of a run that a timeline shows, and the steps in it, by index."""

    start_ns: int
    end_ns: int
    steps: tuple[int, ...]


def window(steps: Steps) -> Window | None:
    """A few steps around the middle of the interior ones; None where there is none."""
    interior = np.flatnonzero(steps.interior & (steps.end_ns > steps.start_ns))
    if not len(interior):
        return None
    first = max(0, (len(interior) - FEW_STEPS) // 2)
    shown = interior[first : first + FEW_STEPS]
    return Window(int(steps.start_ns[shown[0]]), int(steps.end_ns[shown[-1]]), tuple(shown.tolist()))


def lanes(run: Run, ledger: Ledger, shown: Window) -> tuple[Lane, ...]:
    """The lanes of a run within a window: the main thread, then each stream of the GPU."""
    if ledger.device == "cpu":
        # One thread does both; in two lanes the one's gaps are seen to be the other's doing.
        return tuple(
            Lane(name, tuple((part.key, ledger.spans[part.key]) for part in ledger.parts if part.busy is busy))
            for name, busy in (("not computing", False), ("computing", True))
        )
    events = _events_in(run, shown)
    return (_host_lane(run, events, shown), *_device_lanes(events, main_device(run)))


def host_and_device(run: Run, ledger: Ledger, shown: Window) -> tuple[Lane, ...]:
    """The same in few lanes: the host and all streams of the GPU, or, without a GPU, one for all."""
    if ledger.device == "cpu":
        return (Lane("CPU", tuple((part.key, shading(ledger.spans[part.key], shown)) for part in ledger.parts)),)
    events = _events_in(run, shown)
    work = events.of_kind(*DEVICE_KINDS)
    work = work.where(work["device"] == main_device(run))
    return Lane("host", _host_lane(run, events, shown).parts), Lane("GPU", disjoint(device_layers(work)))


def _events_in(run: Run, shown: Window) -> Rows:
    events = run.event_rows
    end = events["start_ns"] + events["dur_ns"]
    return events.where((events["start_ns"] < shown.end_ns) & (end > shown.start_ns))


def _host_lane(run: Run, events: Rows, shown: Window) -> Lane:
    threads = host_threads(run)
    host = events.where(np.isin(events["thread"], threads))
    window = Spans(np.array([shown.start_ns]), np.array([shown.end_ns]))
    layers = [*host_layers(host, window), ("python", window)]
    return Lane("host threads" if len(threads) > 1 else "main thread", disjoint(layers))


def _device_lanes(events: Rows, device: int) -> tuple[Lane, ...]:
    work = events.of_kind(*DEVICE_KINDS)
    work = work.where(work["device"] == device)
    streams, which = np.unique(work["stream"], return_inverse=True)
    by_work = np.argsort(-np.bincount(which, weights=work["dur_ns"], minlength=len(streams)), kind="stable")
    several = len(streams) > 1
    chosen = sorted(by_work[:MOST_STREAMS].tolist())
    names = [f"stream {streams[n]}" if several and streams[n] >= 0 else "GPU" for n in chosen]
    found = [Lane(name, disjoint(device_layers(work.where(which == n)))) for name, n in zip(names, chosen, strict=True)]
    others = by_work[MOST_STREAMS:]
    if len(others):
        rest = work.where(np.isin(which, others))
        found.append(Lane(f"{len(others)} other streams", disjoint(device_layers(rest))))
    return tuple(found) or (Lane("GPU", ()),)


def disjoint(layers: Iterable[tuple[str, Spans]]) -> tuple[tuple[str, Spans], ...]:
    """Each instant to the first layer that covers it; layers that are left with nothing are dropped."""
    taken, parts = nothing(), []
    for key, spans in layers:
        left = subtract(spans, taken)
        if len(left.start_ns):
            parts.append((key, left))
            taken = merged(taken, left)
    return tuple(parts)


def shading(spans: Spans, shown: Window) -> Spans:
    """The part of some spans that the window shows."""
    return intersect(spans, Spans(np.array([shown.start_ns]), np.array([shown.end_ns])))
