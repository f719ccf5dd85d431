"""Rows and metadata of a trace -> a Run: what was recorded where, which thread runs the loop, which loaders it has."""

from __future__ import annotations

import numpy as np

from gpulab.rows import Rows
from gpulab.run import Gap, Loader, Machine, Recording, Run, Source
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, Kind
from gpulab.trace import metadata
from gpulab.trace.columns.categories import loader_has_workers
from gpulab.trace.columns.columns import Found
from gpulab.trace.reading.batches import Header
from gpulab.trace.reading.limits import ENDS_EARLY, Losses

# What tells the thread of the loop, best first.
_TELLING = (Kind.STEP, Kind.LOADER, Kind.LAUNCH, Kind.OP, Kind.PYTHON, Kind.ANNOTATION, Kind.RUNTIME)


def as_run(name: str, found: Found, head: Header, losses: Losses) -> Run:
    """The run that a trace recorded."""
    rows = found.rows
    began = metadata.began_ns(head, found.zero_ns)
    machine = metadata.machine(head)
    loaders, loader_fact = _loaders(rows)
    facts = metadata.facts(head) | loader_fact
    if losses.mended:
        facts["mended"] = ", ".join(sorted(losses.mended))
    recording = Recording(
        windows_ns=((0, _until(rows, found.span_ns, losses)),) if len(rows) else (),
        activities=_activities(rows),
        options=metadata.options(head),
        left_out=_left_out(found),
        lost=dict(losses.lost),
    )
    return Run(
        name=name,
        source=Source(how="recorded", device=_device(rows, machine), date=metadata.date(began)),
        machine=machine,
        span_ns=found.span_ns,
        began_ns=began,
        rank=metadata.rank(head),
        recording=recording,
        loaders=loaders,
        threads=found.threads,
        main_thread=_main_thread(rows),
        facts=facts,
        event_rows=rows,
        grid_rows=found.grids,
        shape_rows=found.shapes,
        collective_rows=found.collectives,
        wait_rows=found.waits,
        memory_rows=found.memory,
    )


def _until(rows: Rows, span_ns: int, losses: Losses) -> int:
    """Until when all was recorded that is missing later.

    Kineto writes what the host did first, then what the GPU did. Where the end of a file is lost, host events without
    their GPU work are left over; they would look like idle time.
    """
    work = rows.of_kind(*DEVICE_KINDS)
    if not len(work) or not ENDS_EARLY & set(losses.lost):
        return span_ns
    return int((work["start_ns"] + work["dur_ns"]).max())


def _device(rows: Rows, machine: Machine) -> str:
    """The name of the GPU that did most of the work, else that it was a CPU."""
    device = rows.of_kind(*DEVICE_KINDS)["device"]
    if not len(device):
        return machine.gpus[0].name if machine.gpus else "CPU"
    names = {gpu.index: gpu.name for gpu in machine.gpus}
    busiest = int(np.bincount(device[device >= 0].astype(np.int64), minlength=1).argmax())
    # CUDA_VISIBLE_DEVICES renumbers; where all are alike the name is certain all the same.
    return names.get(busiest) or (machine.gpus[0].name if len(set(names.values())) == 1 else "unknown GPU")


def _activities(rows: Rows) -> tuple[str, ...]:
    """What was recorded, in torch.profiler's words; "cuda" also stands for AMD's."""
    seen = set(np.unique(rows["kind"]).tolist())
    cpu = seen & {Kind.OP, Kind.ANNOTATION, Kind.STEP, Kind.LOADER, Kind.PYTHON}
    cuda = seen & {*DEVICE_KINDS, *RUNTIME_KINDS, Kind.SYNC_RECORD}
    return tuple(word for word, there in (("cpu", cpu), ("cuda", cuda)) if there)


def _main_thread(rows: Rows) -> int:
    """The thread that runs the loop.

    That is where steps and batches begin. Launches tell it only without these: in training most of them come from
    the autograd thread.
    """
    kinds, threads = rows["kind"], rows["thread"]
    counts = {kind: np.bincount(threads[(kinds == int(kind)) & (threads >= 0)], minlength=1) for kind in _TELLING}
    # A range that was carried over from another thread does not make this one work.
    size = max(map(len, counts.values()))
    padded = {kind: np.pad(count, (0, size - len(count))) for kind, count in counts.items()}
    works = (padded[Kind.OP] + padded[Kind.LAUNCH]) > 0
    for kind in _TELLING:
        telling = padded[kind] * works if works.any() else padded[kind]
        if telling.any():
            return int(telling.argmax())
    return 0


def _loaders(rows: Rows) -> tuple[tuple[Loader, ...], dict[str, str]]:
    """The DataLoaders a trace shows; it tells only whether they have workers."""
    words = rows.of_kind(Kind.LOADER).words("name")
    codes = dict.fromkeys(words.codes.tolist())
    told = {loader_has_workers(words.vocabulary[code]) for code in codes}
    loaders = tuple(Loader(workers=0 if has is False else None) for has in told)
    names = {False: "single-process", True: "multi-process", None: "unknown"}
    return loaders, {"loader": ", ".join(sorted(names[has] for has in told))} if told else {}


def _left_out(found: Found) -> tuple[Gap, ...]:
    return tuple(
        Gap(what=f"{count:,} events of category {category!r}", why="gpulab does not know this category", fix="")
        for category, count in sorted(found.unknown.items())
    )
