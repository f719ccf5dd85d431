"""Read an export of Nsight Systems: one run for each process that used the GPU."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from gpulab.errors import TraceError
from gpulab.run import Gap, Run
from gpulab.run_facts import NOT_RECORDED, NSIGHT_SYSTEMS, OPERATORS
from gpulab.tables import EventKind
from gpulab.trace.assembly import assemble_run
from gpulab.trace.columns.event_arrays import EventArrays, build_tables
from gpulab.trace.columns.vocabulary import Vocabulary
from gpulab.trace.nsight.database import CALLS, GRAPHS, NVTX, Database, opened
from gpulab.trace.nsight.device_work import DEVICE_TABLES, device_parts
from gpulab.trace.nsight.global_ids import process_expression, process_id
from gpulab.trace.nsight.host_events import OVERHEAD, Threads, nvtx_ranges, overheads, runtime_calls
from gpulab.trace.nsight.target import driver, nsys_version, process_name, target_header
from gpulab.trace.reading.limits import Losses

_HOST_TABLES = (CALLS, NVTX, OVERHEAD)
_NO_OPERATORS = Gap(
    what="the operators of PyTorch",
    why="Nsight Systems records them only as NVTX ranges, and there are none",
    fix="run the loop inside `with torch.autograd.profiler.emit_nvtx():`, and record with --trace=cuda,nvtx",
)
_NO_CALLS = Gap(
    what="calls of the CUDA runtime",
    why="the export has none",
    fix="record with: nsys profile --trace=cuda,nvtx",
)
_NO_GRAPH_KERNELS = Gap(
    what="the kernels inside CUDA graphs",
    why="nsys recorded each launch of a graph as one piece of work",
    fix="record with: nsys profile --cuda-graph-trace=node",
)


def read_export(path: Path, *, name: str | None = None) -> tuple[Run, ...]:
    """The runs of an export, one for each process that used the GPU, by GPU and process id.

    If none did, the run of the process with the most events. Raises TraceError if the file is no export of Nsight
    Systems, or is damaged.
    """
    stem = name or path.name.removesuffix(path.suffix) or path.name
    with opened(path) as database:
        processes = _processes(database)
        runs = [_run(stem, database, process, alone=len(processes) == 1) for process in processes]
    if not any(len(run.event_rows) for run in runs):
        raise TraceError(
            f"{path} contains no CUDA or NVTX events.",
            why="its tables have no rows with usable times",
            fix="record with: nsys profile --trace=cuda,nvtx --export=sqlite python train.py",
        )
    return tuple(sorted(runs, key=_first_device))


def _first_device(run: Run) -> int:
    device = run.event_rows["device"]
    return int(device[device >= 0].min(initial=np.iinfo(np.int16).max))


def _processes(database: Database) -> list[int | None]:
    """The processes that used the GPU, else the one with the most events; [None] if the export names no process."""
    with_gpu = _counts(database, DEVICE_TABLES, "globalPid")
    if with_gpu:
        return [*sorted(with_gpu)]
    if any(database.has(table) and not database.has(table, "globalPid") for table in DEVICE_TABLES):
        return [None]
    others = _counts(database, _HOST_TABLES, "globalTid")
    return [max(others, key=lambda process: others[process])] if others else [None]


def _counts(database: Database, tables: tuple[str, ...], column: str) -> Counter[int]:
    counts: Counter[int] = Counter()
    for table in tables:
        if database.has(table, column):
            counts.update(database.row_counts(table, process_expression(column), f"{column} IS NOT NULL"))
    return counts


def _run(stem: str, database: Database, process: int | None, *, alone: bool) -> Run:
    losses = Losses()
    names, threads = Vocabulary(), Threads()
    condition = _selections(database, process)
    parts = [
        *device_parts(database, condition, names),
        runtime_calls(database, condition[CALLS], names, threads),
        nvtx_ranges(database, condition[NVTX], names, threads),
        overheads(database, condition[OVERHEAD], names, threads),
    ]
    tables = build_tables(parts, names, threads.names(_thread_labels(database)), losses)
    name = stem if alone or process is None else f"{stem}, process {process_id(process)}"
    run = assemble_run(name, tables, target_header(database, process), losses)
    gaps = (*run.recording.left_out, *_gaps(database, condition, parts))
    without_operators = {OPERATORS: NOT_RECORDED} if _NO_OPERATORS in gaps else {}
    return replace(
        run,
        recording=replace(run.recording, left_out=gaps),
        machine=replace(run.machine, driver=driver(database)),
        facts={**run.facts, **_facts(database, process), **without_operators},
    )


def _selections(database: Database, process: int | None) -> Mapping[str, str]:
    """For each table, the condition that selects the rows of this process."""
    columns = {**dict.fromkeys(DEVICE_TABLES, "globalPid"), **dict.fromkeys(_HOST_TABLES, "globalTid")}
    return {
        table: f"{process_expression(column)} = {process}"
        if process is not None and database.has(table, column)
        else "1"
        for table, column in columns.items()
    }


def _thread_labels(database: Database) -> dict[int, str]:
    if not database.has("ThreadNames", "globalTid", "nameId"):
        return {}
    ids = database.integers("ThreadNames", {"thread": "globalTid", "name": "nameId"})
    texts = database.strings(ids["name"])
    pairs = zip(ids["thread"].tolist(), ids["name"].tolist(), strict=True)
    return {thread: texts[name].strip() for thread, name in pairs if name in texts}


def _gaps(database: Database, condition: Mapping[str, str], parts: list[EventArrays]) -> list[Gap]:
    kinds = {kind for part in parts for kind in np.unique(part.columns["kind"]).tolist()}
    gaps = [] if EventKind.OP.value in kinds else [_NO_OPERATORS]
    if not database.has(CALLS):
        gaps.append(_NO_CALLS)
    if len(database.integers(GRAPHS, {"start": "start"}, condition[GRAPHS])["start"]):
        gaps.append(_NO_GRAPH_KERNELS)
    return gaps


def _facts(database: Database, process: int | None) -> dict[str, str]:
    version = nsys_version(database)
    entries = {
        "profiler": f"{NSIGHT_SYSTEMS} {version}" if version else NSIGHT_SYSTEMS,
        "process": str(process_id(process)) if process is not None else None,
        "program": process_name(database, process) if process is not None else None,
    }
    return {key: value[:200] for key, value in entries.items() if value}
