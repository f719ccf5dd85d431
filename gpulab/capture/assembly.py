"""Several stretches of one cell, each read as a run of its own, put together on the cell's clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.rows import Rows, concat
from gpulab.run import TRACED, Gap, Machine, Run
from gpulab.tables import DEVICE_KINDS, Kind


def merged(cell: Run, stretches: Sequence[Run]) -> Run:
    """`cell` with the events of all stretches, shifted from each stretch's own start to the cell's."""
    if not stretches:
        return cell
    threads: dict[str, int] = {}
    parts: dict[str, list[Rows]] = {field: [] for field in TRACED}
    before = 0  # so many events come before this stretch's
    for stretch in stretches:
        for field, rows in _moved(stretch, cell, threads, before).items():
            parts[field].append(rows)
        before += len(stretch.event_rows)
    fullest = max(stretches, key=lambda stretch: len(stretch.event_rows))
    main = fullest.threads[fullest.main_thread] if fullest.threads else None
    joined: dict[str, Any] = {field: concat(table, parts[field]) for field, table in TRACED.items()}
    return replace(
        cell,
        **joined,
        threads=tuple(threads),
        main_thread=threads[main] if main is not None else 0,
        machine=_with_multiprocessors(cell.machine, fullest.machine),
    )


def missing_gpu_work(run: Run, activities: Sequence[str]) -> Gap | None:
    """GPU work was started and none came back: CUPTI, which tells of it, kept silent. None: nothing is missing."""
    kinds = run.event_rows["kind"]
    started = np.isin(kinds, (Kind.LAUNCH, Kind.COPY_CALL)).any()
    if "cuda" not in activities or not started or np.isin(kinds, DEVICE_KINDS).any():
        return None
    return Gap(
        what="kernels and copies on the GPU",
        why="calls to the GPU were recorded, but CUPTI told of no work on it: another profiler or DCGM may hold it, or "
        "reading GPU activity may be reserved to administrators here",
        fix="close other GPU profilers and restart the kernel; or have NVreg_RestrictProfilingToAdminUsers=0 set",
    )


def _moved(stretch: Run, cell: Run, threads: dict[str, int], before: int) -> dict[str, Rows]:
    """The stretch's tables on the cell's clock, threads and events numbered as the cell numbers them."""
    codes = [threads.setdefault(name, len(threads)) for name in stretch.threads]
    assert stretch.began_ns is not None, "a trace written here tells its own time"
    assert cell.began_ns is not None
    later_ns = stretch.began_ns - cell.began_ns
    renumbered = np.array([*codes, -1], np.int32)
    moved = {}
    for field, table in TRACED.items():
        columns = dict(getattr(stretch, field).columns)
        for name, values in columns.items():
            if name in ("start_ns", "at_ns"):
                columns[name] = values + later_ns
            elif name == "thread":
                columns[name] = renumbered[values]
            elif name == "event":
                columns[name] = values + before
        moved[field] = table.rows(columns)
    return moved


def _with_multiprocessors(asked: Machine, traced: Machine) -> Machine:
    """NVML does not tell the number of multiprocessors; the trace does."""
    known = {gpu.name: gpu for gpu in traced.gpus}
    gpus = tuple(
        replace(gpu, multiprocessors=gpu.multiprocessors or known[gpu.name].multiprocessors)
        if gpu.name in known
        else gpu
        for gpu in asked.gpus
    )
    return replace(asked, gpus=gpus or traced.gpus)


def torch_facts() -> dict[str, str]:
    """Settings a rule may need and a trace does not tell; read, never changed."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        "threads": str(torch.get_num_threads()),
        "cuda": str(torch.cuda.is_available()),
        "cuda_devices": str(torch.cuda.device_count()),
        "cudnn_benchmark": str(torch.backends.cudnn.benchmark),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "compiler": "found"
        if any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")))
        else "none",
        **_precisions(torch),
    }


def _precisions(torch: Any) -> dict[str, str]:
    """How float32 products may be rounded. There is an old way to set it and a new; who mixes them cannot ask both."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    asked: dict[str, Callable[[], Any]] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "matmul_fp32_precision": lambda: cuda.matmul.fp32_precision,  # from PyTorch 2.9 on
        "conv_fp32_precision": lambda: cudnn.conv.fp32_precision,
        "cudnn_allow_tf32": lambda: cudnn.allow_tf32,
    }
    told = {}
    for name, ask in asked.items():
        with contextlib.suppress(RuntimeError, AttributeError):
            told[name] = str(ask())
    return told
