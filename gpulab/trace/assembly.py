"""Assemble a Run from the rows and metadata of a trace: device, loop thread, loaders, facts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.rows import Rows
from gpulab.run import Gap, Loader, Machine, Recording, Run, Source
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, EventKind
from gpulab.trace import metadata
from gpulab.trace.columns.builder import TraceTables
from gpulab.trace.columns.categories import loader_has_workers
from gpulab.trace.reading.chunk_events import Header
from gpulab.trace.reading.limits import ENDS_EARLY, Losses
from gpulab.wording import count

_UPDATE = "Optimizer.step#"
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

    This is the thread where steps and batches begin, or else where the optimizer steps. Launches identify it only in
    the absence of these: in training, the autograd thread launches as many kernels as the loop, or more.
    """
    masks = {kind: rows.is_kind(kind) for kind in _LOOP_KINDS}
    updates = rows.matching(lambda name: name.startswith(_UPDATE)) & rows.is_kind(EventKind.ANNOTATION)
    size = max(1, int(rows["thread"].max(initial=0)) + 1)
    is_working = _counts(rows, masks[EventKind.OP] | masks[EventKind.LAUNCH], size) > 0
    for mask in (masks[EventKind.STEP], masks[EventKind.LOADER], updates, *masks.values()):
        event_counts = _counts(rows, mask, size)
        # A range carried over from another thread is not proof that this thread does any work.
        event_counts = event_counts * is_working if is_working.any() else event_counts
        if event_counts.any():
            return int(event_counts.argmax())
    return 0


def _counts(rows: Rows, mask: NDArray[np.bool_], size: int) -> NDArray[np.int64]:
    """Return the number of these events on each thread."""
    threads = rows["thread"][mask]
    return np.bincount(threads[threads >= 0], minlength=size)


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
        Gap(what=f"{count(events, 'event')} of category {category!r}", why="gpulab does not know this category", fix="")
        for category, events in sorted(tables.unknown.items())
    )
