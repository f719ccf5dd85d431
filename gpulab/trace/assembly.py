"""Assemble a Run from the rows and metadata of a trace: device, loop thread, loaders, facts."""

from __future__ import annotations

import numpy as np

from gpulab.rows import Rows
from gpulab.run import Gap, Loader, Machine, Recording, Run, Source
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, EventKind
from gpulab.trace import metadata
from gpulab.trace.columns.builder import TraceTables
from gpulab.trace.columns.categories import loader_has_workers
from gpulab.trace.reading.chunk_events import Header
from gpulab.trace.reading.limits import ENDS_EARLY, Losses

# Kinds of events that identify the thread of the training loop, best first.
_LOOP_KINDS = (
    EventKind.STEP,
    EventKind.LOADER,
    EventKind.LAUNCH,
    EventKind.OP,
    EventKind.PYTHON,
    EventKind.ANNOTATION,
    EventKind.RUNTIME,
)


def assemble_run(name: str, tables: TraceTables, header: Header, losses: Losses) -> Run:
    """The run recorded in a trace."""
    rows = tables.rows
    began_ns = metadata.began_ns(header, tables.zero_ns)
    machine = metadata.machine(header)
    loaders, loader_fact = _loaders(rows)
    facts = metadata.facts(header) | loader_fact
    if losses.repairs:
        facts["repairs"] = ", ".join(sorted(losses.repairs))
    recording = Recording(
        windows_ns=((0, _complete_until_ns(rows, tables.span_ns, losses)),) if len(rows) else (),
        activities=_activities(rows),
        options=metadata.options(header),
        left_out=_gaps(tables),
        lost=dict(losses.lost),
    )
    return Run(
        name=name,
        source=Source(how="recorded", device=_device(rows, machine), date=metadata.date(began_ns)),
        machine=machine,
        span_ns=tables.span_ns,
        began_ns=began_ns,
        rank=metadata.rank(header),
        recording=recording,
        loaders=loaders,
        threads=tables.threads,
        main_thread=_main_thread(rows),
        facts=facts,
        event_rows=rows,
        grid_rows=tables.grids,
        shape_rows=tables.shapes,
        collective_rows=tables.collectives,
        wait_rows=tables.waits,
        memory_rows=tables.memory,
    )


def _complete_until_ns(rows: Rows, span_ns: int, losses: Losses) -> int:
    """End of the window in which the trace is complete.

    Kineto writes host events first, then GPU events. If the end of a file is lost, host events without their GPU work
    remain; they would look like idle time.
    """
    work = rows.of_kind(*DEVICE_KINDS)
    if not len(work) or not ENDS_EARLY & set(losses.lost):
        return span_ns
    return int((work["start_ns"] + work["dur_ns"]).max())


def _device(rows: Rows, machine: Machine) -> str:
    """Name of the GPU with the most work, or "CPU"."""
    device = rows.of_kind(*DEVICE_KINDS)["device"]
    if not len(device):
        return machine.gpus[0].name if machine.gpus else "CPU"
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    busiest = int(np.bincount(device[device >= 0].astype(np.int64), minlength=1).argmax())
    # CUDA_VISIBLE_DEVICES renumbers the GPUs; if all are of the same model, the name is certain anyway.
    return names.get(busiest) or (machine.gpus[0].name if len(set(names.values())) == 1 else "unknown GPU")


def _activities(rows: Rows) -> tuple[str, ...]:
    """Recorded activities in torch.profiler's terms; "cuda" also stands for AMD GPUs."""
    kinds = set(np.unique(rows["kind"]).tolist())
    cpu = kinds & {EventKind.OP, EventKind.ANNOTATION, EventKind.STEP, EventKind.LOADER, EventKind.PYTHON}
    cuda = kinds & {*DEVICE_KINDS, *RUNTIME_KINDS, EventKind.SYNC_RECORD}
    return tuple(activity for activity, events in (("cpu", cpu), ("cuda", cuda)) if events)


def _main_thread(rows: Rows) -> int:
    """The thread that runs the training loop.

    This is the thread where steps and batches begin. Launches identify it only in the absence of these: in training,
    most launches come from the autograd thread.
    """
    kinds, threads = rows["kind"], rows["thread"]
    counts = {kind: np.bincount(threads[(kinds == int(kind)) & (threads >= 0)], minlength=1) for kind in _LOOP_KINDS}
    # A range carried over from another thread is not proof that this thread does any work.
    size = max(map(len, counts.values()))
    padded = {kind: np.pad(count, (0, size - len(count))) for kind, count in counts.items()}
    is_working = (padded[EventKind.OP] + padded[EventKind.LAUNCH]) > 0
    for kind in _LOOP_KINDS:
        event_counts = padded[kind] * is_working if is_working.any() else padded[kind]
        if event_counts.any():
            return int(event_counts.argmax())
    return 0


def _loaders(rows: Rows) -> tuple[tuple[Loader, ...], dict[str, str]]:
    """The DataLoaders of a trace, which shows only whether they have workers."""
    names = rows.of_kind(EventKind.LOADER).text("name")
    codes = dict.fromkeys(names.codes.tolist())
    kinds = {loader_has_workers(names.vocabulary[code]) for code in codes}
    loaders = tuple(Loader(workers=0 if has_workers is False else None) for has_workers in kinds)
    labels = {False: "single-process", True: "multi-process", None: "unknown"}
    return loaders, {"loader": ", ".join(sorted(labels[kind] for kind in kinds))} if kinds else {}


def _gaps(tables: TraceTables) -> tuple[Gap, ...]:
    return tuple(
        Gap(what=f"{count:,} events of category {category!r}", why="gpulab does not know this category", fix="")
        for category, count in sorted(tables.unknown.items())
    )
