"""Runs built by hand: a few events in milliseconds, everything else absent."""

from __future__ import annotations

import numpy as np

from gpulab.run import Loader, Machine, Recording, Run, Source
from gpulab.tables import DEVICE_KINDS, EVENTS, HOST_SAMPLES, MARKS, Kind, MarkKind

MS = 1_000_000


def event(kind, name, start_ms, dur_ms, *, thread=0, device=0, stream=7, correlation=-1, size=-1):
    on_device = kind in DEVICE_KINDS
    return {
        "kind": int(kind),
        "name": name,
        "start_ns": round(start_ms * MS),
        "dur_ns": round(dur_ms * MS),
        "thread": -1 if on_device else thread,
        "device": device if on_device else -1,
        "stream": stream if on_device else -1,
        "correlation": correlation,
        "bytes": size,
    }


def mark(
    start_ms,
    dur_ms,
    *,
    kind=MarkKind.NEXT,
    loader=0,
    epoch=0,
    yielded=True,
    cpu_ms=0.0,
    process_ms=0.0,
    within_ms=0.0,
):
    return {
        "kind": int(kind),
        "start_ns": round(start_ms * MS),
        "end_ns": round((start_ms + dur_ms) * MS),
        "loader": loader if kind is MarkKind.NEXT else -1,
        "epoch": epoch if kind is MarkKind.NEXT else -1,
        "yielded": yielded,
        "thread_cpu_ns": round(cpu_ms * MS),
        "process_cpu_ns": round(process_ms * MS),
        "process_cpu_end_ns": round((process_ms + within_ms) * MS),
    }


def rows(table, dicts):
    return table.rows({column.name: [each[column.name] for each in dicts] for column in table.columns})


def host_sample(at_ms, **told):
    absent = {column.name: np.nan for column in HOST_SAMPLES.columns}
    return {**absent, "at_ns": round(at_ms * MS), "late_ns": 0, "frame": None, **told}


def run_of(events=(), *, marks=(), samples=(), loaders=(), windows=None, pauses=(), cores=8.0, name="made", **more):
    """A run; without `windows` the profiler was on for all of it."""
    ends = [each["start_ns"] + each["dur_ns"] for each in events] + [each["end_ns"] for each in marks]
    span_ns = max(ends, default=0)
    windows = [(0, span_ns)] if windows is None else [(round(a * MS), round(b * MS)) for a, b in windows]
    pauses = [(round(a * MS), round(b * MS)) for a, b in pauses]
    return Run(
        name=name,
        source=Source(how="recorded", device="Made GPU", date="2026-01-01"),
        machine=Machine(cores_allowed=cores),
        span_ns=span_ns,
        recording=Recording(windows_ns=tuple(windows), pauses_ns=tuple(pauses)),
        loaders=tuple(loaders),
        threads=("main", "autograd"),
        event_rows=rows(EVENTS, events),
        mark_rows=rows(MARKS, marks),
        host_rows=rows(HOST_SAMPLES, samples),
        **more,
    )


def stepped(make_step, *, count=6, step_ms=100.0):
    """Events of `count` equal steps with ProfilerStep marks; `make_step(start_ms)` gives the events of one."""
    events = []
    for number in range(count):
        start_ms = number * step_ms
        events.append(event(Kind.STEP, f"ProfilerStep#{number}", start_ms, step_ms))
        events.extend(make_step(start_ms))
    return events


def loader_call(start_ms, dur_ms, workers=0):
    side = "Single" if workers == 0 else "Multi"
    name = f"enumerate(DataLoader)#_{side}ProcessingDataLoaderIter.__next__"
    return event(Kind.LOADER, name.replace("SingleProcessing", "SingleProcess"), start_ms, dur_ms)


NO_WORKERS = Loader(workers=0, batch_size=32)
