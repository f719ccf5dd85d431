"""A run of as many events as one likes, built with numpy in a moment: a loop on a GPU that waits for its data."""

from __future__ import annotations

import numpy as np

from gpulab.run import Gpu, Loader, Machine, Recording, Run, Source
from gpulab.tables import EVENTS, GPU_SAMPLES, GRIDS, MARKS, MEMORY, SHAPES, EventKind, MarkKind

US = 1_000
KERNELS = ("ampere_sgemm_128x64_tn", "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor>")
KERNELS += ("volta_convolve_sgn_128", "void cudnn::bn_fw_tr_1C11_kernel_NCHW", "softmax_warp_forward")
OPS = ("aten::linear", "aten::add_", "aten::conv2d", "aten::batch_norm", "aten::softmax")
RARE = "a_rare_kernel_for_the_search"
HOSTILE = '</script><img src=x onerror=alert(1)>"&\u202e' + "x" * 9_000
LAUNCHES = 975  # of them in a step; each is an operator, one nested in it, a call and a kernel
WAIT_US, EVERY_US, AFTER_US = 3_000, 40, 15


def large_run(events=1_000_000, *, name="large", rare=True):
    """Steps of 3 ms of waiting for data and 39 ms of small kernels, until there are so many events."""
    steps = max(6, -(-events // (4 * LAUNCHES + 2)))
    columns = _joined([_step(number, rare=rare and number == steps // 2) for number in range(steps)])
    order = np.lexsort((-columns["dur_ns"], columns["start_ns"]))
    columns = {key: values[order] for key, values in columns.items()}
    rows = EVENTS.rows({**columns, "name": _text_column(columns["name"])})
    span_ns = int((rows["start_ns"] + rows["dur_ns"]).max()) + 1
    kernels = np.flatnonzero(rows["kind"] == EventKind.KERNEL)
    return Run(
        name=name,
        source=Source(how="recorded", device="Made GPU", date="2026-01-01"),
        machine=Machine(gpus=(Gpu(index=0, name="Made GPU", memory_bytes=2**35),), cores_allowed=8.0),
        span_ns=span_ns,
        recording=Recording(windows_ns=((0, span_ns),)),
        loaders=(Loader(workers=0, batch_size=32),),
        threads=("main", "autograd"),
        event_rows=rows,
        grid_rows=_grids(kernels),
        shape_rows=_shapes(np.flatnonzero(rows["kind"] == EventKind.OP)),
        mark_rows=_marks(steps),
        gpu_rows=_samples(span_ns),
        memory_rows=_memory(span_ns),
    )


def diagnosis_of(run):
    """What a diagnosis says of it, without asking every rule: that takes longer than a test can wait."""
    from gpulab.analysis.steps.detection import find_steps
    from gpulab.analysis.steps.ledger import build_ledger
    from gpulab.rules import Diagnosis, Finding

    run_steps = find_steps(run)
    run_ledger = build_ledger(run, run_steps)
    claim = "GPU idle 7 % of each step: the main process builds the batches."
    waits = Finding(
        rule="no_workers", claim=claim, evidence=(), ledger_parts=("loader",), spans=run_ledger.spans["loader"]
    )
    return Diagnosis(
        run=run, steps=run_steps, ledger=run_ledger, findings=(waits,), unjudged=(), verdict=claim, next_limit=None
    )


STEP_US = WAIT_US + EVERY_US * LAUNCHES
NAMES = (*KERNELS, *OPS, "aten::_inner", "cudaLaunchKernel", RARE, HOSTILE)
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def _text_column(codes):
    from gpulab.rows import TextColumn

    return TextColumn(codes.astype(np.int32), (*NAMES, LOADER, "Memcpy HtoD (Pageable -> Device)"))


def _step(number, *, rare):
    at = np.arange(LAUNCHES)
    begin = (number * STEP_US + WAIT_US + EVERY_US * at) * US
    long = 1 + (at * 7 + number) % 5
    kernel = at % len(KERNELS)
    if rare:
        kernel = np.where(at == LAUNCHES // 2, NAMES.index(RARE), kernel)
        kernel = np.where(at == LAUNCHES // 3, NAMES.index(HOSTILE), kernel)
    correlation = number * 10_000 + at
    none = np.full(LAUNCHES, -1)
    inner = np.full(LAUNCHES, NAMES.index("aten::_inner"))
    launch = np.full(LAUNCHES, NAMES.index("cudaLaunchKernel"))
    parts = [
        _rows(EventKind.OP, at % len(OPS) + len(KERNELS), begin, 30 * US, 0, none),
        _rows(EventKind.OP, inner, begin + 3 * US, 20 * US, 0, none),
        _rows(EventKind.LAUNCH, launch, begin + 6 * US, 5 * US, 0, correlation),
        _rows(EventKind.KERNEL, kernel, begin + AFTER_US * US, 6 * US * long, -1, correlation),
    ]
    wait = np.array([number * STEP_US * US])
    parts.append(_rows(EventKind.LOADER, np.array([len(NAMES)]), wait, WAIT_US * US - 1, 0, np.array([-1])))
    copy = _rows(EventKind.MEMCPY, np.array([len(NAMES) + 1]), wait + 2_900 * US, 90 * US, -1, np.array([-1]))
    parts.append({**copy, "bytes": np.array([2**20]), "stream": np.array([9])})
    return _joined(parts)


def _rows(kind, name, start, dur, thread, correlation):
    count = len(start)
    on_device = kind in (EventKind.KERNEL, EventKind.MEMCPY)
    return {
        "kind": np.full(count, int(kind)),
        "name": np.asarray(name),
        "start_ns": start,
        "dur_ns": np.broadcast_to(np.asarray(dur), (count,)),
        "thread": np.full(count, thread),
        "device": np.full(count, 0 if on_device else -1),
        "stream": np.full(count, 7 if on_device else -1),
        "correlation": correlation,
        "bytes": np.full(count, -1),
    }


def _joined(parts):
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def _grids(kernels):
    count = len(kernels)
    columns = {"grid": 512, "block": 128, "registers": 32, "shared_bytes": 0, "occupancy_frac": 0.5}
    return GRIDS.rows({"event": kernels, **{key: np.full(count, value) for key, value in columns.items()}})


def _shapes(ops):
    from gpulab.rows import TextColumn

    same = TextColumn(np.zeros(len(ops), np.int32), ("[[64, 3, 224, 224], [64]]",))
    types = TextColumn(np.zeros(len(ops), np.int32), ('["float", "float"]',))
    return SHAPES.rows({"event": ops, "shapes": same, "dtypes": types})


def _marks(steps):
    at = np.arange(steps) * STEP_US * US
    zero = np.zeros(steps, np.int64)
    columns = {"kind": np.full(steps, int(MarkKind.NEXT)), "start_ns": at, "end_ns": at + WAIT_US * US - 1}
    more = {"loader": zero, "epoch": zero, "yielded": np.ones(steps, bool), "thread_cpu_ns": zero}
    return MARKS.rows({**columns, **more, "process_cpu_ns": zero, "process_cpu_end_ns": zero, "optimizer": zero - 1})


def _samples(span_ns):
    at = np.arange(0, span_ns, 100_000 * US)
    absent = {column.name: np.full(len(at), np.nan) for column in GPU_SAMPLES.columns}
    waves = 0.5 + 0.4 * np.sin(at / 1e9)
    columns = {"at_ns": at, "late_ns": np.zeros(len(at), np.int64), "device": np.zeros(len(at), np.int16)}
    return GPU_SAMPLES.rows({**absent, **columns, "util_frac": waves, "power_w": 100 + 200 * waves})


def _memory(span_ns):
    at = np.arange(0, span_ns, 10_000 * US)
    sizes = np.where(np.arange(len(at)) % 2 == 0, 2**20, -(2**20))
    zero, none = np.zeros(len(at), np.int64), np.full(len(at), -1)
    total = 2**30 + np.cumsum(sizes)
    columns = {"at_ns": at, "thread": zero, "device": zero, "bytes": sizes, "address": none}
    return MEMORY.rows({**columns, "allocated_bytes": total, "reserved_bytes": np.full(len(at), 2**31)})
