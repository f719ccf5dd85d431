"""Merge the traces of one cell, each read as a run of its own, on the cell's clock."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.capture.job_rank import rank_facts
from gpulab.capture.protection.cuda_check import is_cuda_available
from gpulab.deferred_signals import DeferredSignals
from gpulab.rows import Rows, concat
from gpulab.run import TRACE_TABLES, Gap, Machine, Run
from gpulab.run_facts import NETWORK_SPEED
from gpulab.sensors.network import network_bytes_per_s
from gpulab.tables import DEVICE_KINDS, EventKind


def merge_traces(cell: Run, traces: Sequence[Run]) -> Run:
    """Return `cell` with the events of all traces, shifted from the start of each trace to the start of the cell."""
    if not traces:
        return cell
    threads: dict[str, int] = {}
    parts: dict[str, list[Rows]] = {field: [] for field in TRACE_TABLES}
    event_count = 0  # events of the traces before this one
    for trace in traces:
        for field, rows in _on_cell_clock(trace, cell, threads, event_count).items():
            parts[field].append(rows)
        event_count += len(trace.event_rows)
    largest = max(traces, key=lambda trace: len(trace.event_rows))
    main_thread = largest.threads[largest.main_thread] if largest.threads else None
    joined: dict[str, Any] = {field: concat(table, parts[field]) for field, table in TRACE_TABLES.items()}
    return replace(
        cell,
        **joined,
        threads=tuple(threads),
        main_thread=threads[main_thread] if main_thread is not None else 0,
        machine=_with_multiprocessors(cell.machine, largest.machine),
    )


def missing_gpu_work(run: Run, activities: Sequence[str]) -> Gap | None:
    """Report GPU calls without GPU activity: CUPTI delivered nothing. None if nothing is missing."""
    events = run.event_rows
    started = events.is_kind(EventKind.LAUNCH, EventKind.COPY_CALL).any()
    if "cuda" not in activities or not started or events.is_kind(*DEVICE_KINDS).any():
        return None
    return Gap(
        what="kernels and copies on the GPU",
        why="the trace has CUDA calls but no GPU activity from CUPTI: another profiler or DCGM may be using CUPTI, or "
        "GPU profiling may be restricted to administrators on this machine",
        fix="close other GPU profilers and restart the kernel; or ask an administrator to set "
        "NVreg_RestrictProfilingToAdminUsers=0",
    )


def _on_cell_clock(trace: Run, cell: Run, threads: dict[str, int], event_count: int) -> dict[str, Rows]:
    """The trace's tables on the cell's clock, with the cell's numbers of threads and events."""
    codes = [threads.setdefault(name, len(threads)) for name in trace.threads]
    assert trace.began_ns is not None, "traces exported by this session have a start time"
    assert cell.began_ns is not None
    offset_ns = trace.began_ns - cell.began_ns
    thread_numbers = np.array([*codes, -1], np.int32)
    tables = {}
    for field, table in TRACE_TABLES.items():
        columns = dict(getattr(trace, field).columns)
        for name, values in columns.items():
            if name in ("start_ns", "at_ns"):
                columns[name] = values + offset_ns
            elif name == "thread":
                columns[name] = thread_numbers[values]
            elif name == "event":
                columns[name] = values + event_count
        tables[field] = table.rows(columns)
    return tables


def _with_multiprocessors(machine: Machine, traced: Machine) -> Machine:
    """Add the number of multiprocessors, which the trace contains and NVML does not."""
    traced_gpus = {gpu.name: gpu for gpu in traced.gpus}
    gpus = tuple(
        replace(gpu, multiprocessors=gpu.multiprocessors or traced_gpus[gpu.name].multiprocessors)
        if gpu.name in traced_gpus
        else gpu
        for gpu in machine.gpus
    )
    return replace(machine, gpus=gpus or traced.gpus)


def torch_settings() -> dict[str, str]:
    """PyTorch settings that rules need and traces lack; they are read, never changed."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {
        **_job_settings(),
        "threads": str(torch.get_num_threads()),
        "cuda": str(is_cuda_available()),
        "cuda_devices": str(torch.cuda.device_count()),
        "cudnn_benchmark": str(torch.backends.cudnn.benchmark),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "compiler": "found" if _has_compiler() else "none",
        **_cpu_bfloat16(torch),
        **_precisions(torch),
    }


def _job_settings() -> dict[str, str]:
    """Rank, machine and the speed of its network, for a rank of a job."""
    facts = rank_facts()
    speed = network_bytes_per_s(by_rdma=is_cuda_available()) if facts else None
    return facts if speed is None else {**facts, NETWORK_SPEED: f"{speed:.0f}"}


def _has_compiler() -> bool:
    # A missing file is an OSError there, and so is the TimeoutError of a signal handler.
    with DeferredSignals(again=True):
        return any(map(shutil.which, (os.environ.get("CXX", "c++"), "g++", "clang++", "cl")))


def _cpu_bfloat16(torch: Any) -> dict[str, str]:
    """The CPU's widest instructions for bfloat16 products, as PyTorch names them; {} if it cannot tell."""
    get_capabilities = getattr(torch.cpu, "get_capabilities", None)
    if get_capabilities is None:
        return {}
    supported = [name for name, value in get_capabilities().items() if name.endswith("bf16") and value is True]
    return {"cpu_bfloat16": next(iter([name for name in ("amx_bf16", *supported) if name in supported]), "none")}


def _precisions(torch: Any) -> dict[str, str]:
    """float32 precision of matrix products. PyTorch raises an error if the old and the new API are mixed."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    getters: dict[str, Callable[[], Any]] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "matmul_fp32_precision": lambda: cuda.matmul.fp32_precision,  # from PyTorch 2.9 on
        "conv_fp32_precision": lambda: cudnn.conv.fp32_precision,
        "cudnn_allow_tf32": lambda: cudnn.allow_tf32,
    }
    precisions = {}
    for name, getter in getters.items():
        with contextlib.suppress(RuntimeError, AttributeError):
            precisions[name] = str(getter())
    return precisions
