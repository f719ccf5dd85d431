"""Runs built by hand: a few events in milliseconds, everything else absent."""

from __future__ import annotations

import json

import numpy as np

from gpulab.run import Gpu, Loader, Machine, Recording, Run, Source
from gpulab.tables import (
    COLLECTIVES,
    DEVICE_KINDS,
    EVENTS,
    GPU_SAMPLES,
    GRIDS,
    HOST_SAMPLES,
    MARKS,
    SHAPES,
    EventKind,
    MarkKind,
    StallKind,
)

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
        "optimizer": 0 if kind is MarkKind.OPTIMIZER else -1,
    }


def rows(table, dicts):
    return table.rows({column.name: [each[column.name] for each in dicts] for column in table.columns})


def host_sample(at_ms, **readings):
    absent = {column.name: np.nan for column in HOST_SAMPLES.columns}
    texts = {"frame": None, "called": None, "library_path": None, "evaluation": None, "others_frame": None}
    return {**absent, "at_ns": round(at_ms * MS), "late_ns": 0, **texts, **readings}


def run_of(events=(), *, marks=(), samples=(), loaders=(), windows=None, pauses=(), cores=8.0, name="made", **more):
    """A run; without `windows` the profiler was on all the time."""
    ends = [each["start_ns"] + each["dur_ns"] for each in events] + [each["end_ns"] for each in marks]
    span_ns = max(ends, default=0)
    windows = [(0, span_ns)] if windows is None else [(round(a * MS), round(b * MS)) for a, b in windows]
    pauses = [(round(a * MS), round(b * MS)) for a, b in pauses]
    return Run(
        name=name,
        source=Source(how="recorded", device="Made GPU", date="2026-01-01"),
        machine=more.pop("machine", Machine(cores_allowed=cores)),
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
        events.append(event(EventKind.STEP, f"ProfilerStep#{number}", start_ms, step_ms))
        events.extend(make_step(start_ms))
    return events


def awaited(name, start_ms, dur_ms, *, number):
    """A kernel, the call that launched it, and the host's wait for its end."""
    return [
        event(EventKind.LAUNCH, "cudaLaunchKernel", start_ms, 0.0, correlation=number),
        event(EventKind.KERNEL, name, start_ms, dur_ms, correlation=number),
        event(EventKind.SYNC, "cudaStreamSynchronize", start_ms, dur_ms),
    ]


def loader_call(start_ms, dur_ms, workers=0):
    side = "Single" if workers == 0 else "Multi"
    name = f"enumerate(DataLoader)#_{side}ProcessingDataLoaderIter.__next__"
    return event(EventKind.LOADER, name.replace("SingleProcessing", "SingleProcess"), start_ms, dur_ms)


NO_WORKERS = Loader(workers=0, batch_size=32)


def collective(name, start_ms, dur_ms, *, moves=None, stream=21, **more):
    """A collective on the GPU; `moves` holds its columns of the collectives table."""
    return {**event(EventKind.COLLECTIVE, name, start_ms, dur_ms, stream=stream, **more), "moves": moves}


def collective_columns(
    elements, *, collective="allreduce", dtype="Float", group="0", size=8, sequence=-1, description=None
):
    columns = {"collective": collective, "dtype": dtype, "group": group, "group_size": size, "sequence": sequence}
    columns["group_description"] = description
    return {**columns, "elements_in": elements, "elements_out": elements}


def rank_of(events, rank=None, *, ranks=8, **more):
    """The run of one rank; the `moves` of its events fill the collectives table."""
    collective_rows = [{"event": index, **each["moves"]} for index, each in enumerate(events) if each.get("moves")]
    facts = {"world_size": str(ranks)}
    return run_of(events, rank=rank, facts=facts, collective_rows=rows(COLLECTIVES, collective_rows), **more)


def gpu_samples(*gpus, count=20):
    """Samples of several GPUs, each given by its readings."""
    absent = {column.name: np.nan for column in GPU_SAMPLES.columns}
    return rows(
        GPU_SAMPLES,
        [
            {**absent, "at_ns": 25 * MS * number, "late_ns": 0, "device": device, **readings}
            for number in range(count)
            for device, readings in enumerate(gpus)
        ],
    )


def stall(start_ms, dur_ms, details="generation 2", kind=StallKind.GC):
    """A garbage collection or a compilation."""
    return {"kind": int(kind), "start_ns": round(start_ms * MS), "dur_ns": round(dur_ms * MS), "what": details}


def host_samples(until_ms, *, main=1.0, others=0.0, every_ms=50, **readings):
    """Samples in which the recorded thread and other threads use these shares of a core."""
    return [
        host_sample(at, main_cpu_s=main * at / 1e3, others_cpu_s=others * at / 1e3, **readings)
        for at in range(0, until_ms + 1, every_ms)
    ]


def gpu_series(readings, *, count=24, every_ms=25):
    """Samples of one GPU; `readings(number)` returns the readings of each sample."""
    absent = {column.name: np.nan for column in GPU_SAMPLES.columns}
    times = [{"at_ns": every_ms * MS * number, "late_ns": 0, "device": 0} for number in range(count)]
    return rows(GPU_SAMPLES, [{**absent, **time, **readings(number)} for number, time in enumerate(times)])


GPUS = {
    "V100": Gpu(index=0, name="Tesla V100-SXM2-32GB", compute_capability="7.0", multiprocessors=80),
    "A100": Gpu(index=0, name="NVIDIA A100-SXM4-80GB", compute_capability="8.0", multiprocessors=108),
    "H100": Gpu(index=0, name="NVIDIA H100 80GB HBM3", compute_capability="9.0", multiprocessors=132),
    "3090": Gpu(index=0, name="NVIDIA GeForce RTX 3090", compute_capability="8.6", multiprocessors=82),
    "MI300": Gpu(index=0, name="AMD Instinct MI300X", multiprocessors=304),
}


def launched_kernel(
    name, start_ms, dur_ms, *, number, op=None, grid=-1, called_ms=None, shapes=None, dtypes=None, stream=7
):
    """A kernel, its launch call and the enclosing operator, with their values for side tables."""
    at = start_ms if called_ms is None else called_ms
    call = event(EventKind.LAUNCH, "cudaLaunchKernel", at + 0.001, 0.002, correlation=number)
    kernel = event(EventKind.KERNEL, name, start_ms, dur_ms, correlation=number, stream=stream)
    sizes = {"shapes": json.dumps(shapes), "dtypes": json.dumps(dtypes)} if shapes else None
    around = [{**event(EventKind.OP, op, at, 0.004), "sizes": sizes}] if op else []
    return [*around, call, {**kernel, "grid": grid}]


def on_gpu(events, gpu="H100", **more):
    """A run on one of GPUS; `grid` and `sizes` of an event go to the side tables."""
    events = sorted(events, key=lambda each: (each["start_ns"], -each["dur_ns"]))
    defaults = {"block": 128, "registers": -1, "shared_bytes": -1, "occupancy_frac": np.nan}
    grids = [{"event": row, "grid": each["grid"], **defaults} for row, each in enumerate(events) if "grid" in each]
    sizes = [{"event": row, **each["sizes"]} for row, each in enumerate(events) if each.get("sizes")]
    machine = more.pop("machine", Machine(gpus=(GPUS[gpu],), cores_allowed=8.0))
    return run_of(events, machine=machine, grid_rows=rows(GRIDS, grids), shape_rows=rows(SHAPES, sizes), **more)
