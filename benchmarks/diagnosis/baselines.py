"""Three simple advisers to compare with: what they would say of a run, as names of our rules, first things first.

    always batch size     whatever is seen: a larger batch
    TensorBoard plug-in   the seven recommendations of PyTorch's profiler plug-in, by its own thresholds and shares
    four rules            the guide of an article on GPU use: four sentences about four utilisations

They are written anew from what is published of them, on our tables. Where their advice speaks of something for which
we have several rules, they are given the one that fits the run best: "set num_workers" counts as `no_workers` where
there are none and as `too_few_workers` where there are some. Where what they need was not recorded they say nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from gpulab import Run
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.intervals import Spans, clip, intersect, subtract, union, union_of
from gpulab.rows import Rows
from gpulab.tables import DEVICE_KINDS, RUNTIME_KINDS, EventKind

Adviser = Callable[[Run], Sequence[str]]

# The plug-in's thresholds, as published.
LOADER_FRAC = 0.05
COMMUNICATION_FRAC = 0.10
UTILISATION_FRAC = 0.50
MEMORY_FRAC = 0.90
TENSOR_CORES_SINCE = 7  # major compute capability
NCCL_SINCE = 3.5
# It knows a collective by five names of operators only, and a tensor-core kernel by parts of names from before 2021.
_OPERATIONS = ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
_COLLECTIVES = {f"{backend}:{operation}" for backend in ("nccl", "gloo") for operation in _OPERATIONS}
_TENSOR_CORE = (
    *("h884", "s884", "h1688", "s1688", "hmma", "i8816", "16816", "xmma_gemm"),
    *("dgrad_1688", "fprop_1688", "wgrad_1688"),
)
# Operators that automatic mixed precision runs in 16 bits.
_ELIGIBLE = {
    *(f"aten::conv{dims}" for dims in ("1d", "2d", "3d", "_tbc", "olution", "_transpose1d", "_transpose2d")),
    *("aten::conv_transpose3d", "aten::linear", "aten::matmul", "aten::mm", "aten::addmm", "aten::bmm"),
    *("aten::baddbmm", "aten::addbmm", "aten::mv", "aten::addmv", "aten::addr", "aten::prelu", "aten::chain_matmul"),
    *("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell"),
}

# The guide says "low" and "high" and no numbers: a half is the plug-in's "low", four fifths is TraceML's "high".
LOW_FRAC = 0.50
HIGH_FRAC = 0.80


def always_batch_size(run: Run) -> Sequence[str]:
    """Recommend a larger batch, whatever the run."""
    return ["small_batch"]


def tensorboard_plugin(run: Run) -> Sequence[str]:
    """Return all recommendations that apply, in the order in which the plug-in shows them; it does not rank them."""
    run_steps = find_steps(run)
    window = union(
        run_steps.start_ns[run_steps.recorded], run_steps.end_ns[run_steps.recorded]
    )  # edge steps are averaged in
    if not window.total_ns:
        return []
    shares = _exclusive_shares(run, window)
    advice = []
    if shares["loader"] > LOADER_FRAC:
        advice.append(_workers(run))
    advice += _distributed(run, shares["communication"])
    if (busy := _kernel_share(run, window)) is not None and busy < UTILISATION_FRAC:
        advice.append("small_batch")
    if _no_tensor_cores(run):
        advice.append("no_mixed_precision")
    if (peak := _peak_memory(run)) is not None and peak > MEMORY_FRAC:
        advice.append("out_of_memory")
    return advice


def four_rules(run: Run) -> Sequence[str]:
    """Return each of the four rules that applies, in the order of the article."""
    device, cpu = _device_use(run), _mean(run.host_rows, "cpu_frac")
    advice = []
    if device is not None and cpu is not None and device < LOW_FRAC and cpu > HIGH_FRAC:
        advice.append(_workers(run))  # low GPU, high CPU: loading or preprocessing is the limit
    if (memory := _host_memory(run)) is not None and memory < LOW_FRAC:
        advice.append(_workers(run))  # low use of CPU memory: more workers
    if device is not None and cpu is not None and device < LOW_FRAC and cpu < LOW_FRAC:
        advice.append("host_python")  # both low: the code does not use what there is
    if (memory_use := _gpu_memory_use(run)) is not None and memory_use < LOW_FRAC:
        advice.append("small_batch")  # low use of GPU memory: a larger batch
    return list(dict.fromkeys(advice))


ADVISERS: Mapping[str, Adviser] = {
    "always batch size": always_batch_size,
    "TensorBoard plug-in": tensorboard_plugin,
    "four rules": four_rules,
}


def _workers(run: Run) -> str:
    """Return our rule for "set num_workers" in this run."""
    with_workers = any(loader.workers for loader in run.loaders) or run.facts.get("loader") == "multi-process"
    return "too_few_workers" if with_workers else "no_workers"


def _exclusive_shares(run: Run, window: Spans) -> dict[str, float]:
    """Shares of loader and communication, each without the time that the plug-in attributes to a higher category."""
    events = run.event_rows
    names = events.text("name")
    talking = events.select(names.matching(word in _COLLECTIVES for word in names.vocabulary))
    attributed = intersect(events.of_kind(*DEVICE_KINDS).spans(), window)
    shares = {}
    for key, rows in (
        ("communication", talking.of_kind(EventKind.OP, EventKind.ANNOTATION)),
        ("runtime", events.of_kind(*RUNTIME_KINDS)),
        ("loader", events.of_kind(EventKind.LOADER)),
    ):
        exclusive = subtract(intersect(rows.spans(), window), attributed)
        shares[key] = exclusive.total_ns / window.total_ns
        attributed = union_of(attributed, exclusive)
    return shares


def _distributed(run: Run, communication: float) -> list[str]:
    names = run.event_rows.text("name").vocabulary
    advice = []
    if "DataParallel.forward" in names and len(run.machine.gpus) > 1:
        advice.append("data_parallel")
    wrapped = "DistributedDataParallel.forward" in names
    backend = run.facts.get("distributed_backend", "")
    capability = _capability(run)
    if wrapped and capability is not None and capability >= NCCL_SINCE and backend and "nccl" not in backend:
        advice.append("exposed_communication")  # "use the NCCL backend"
    if communication > COMMUNICATION_FRAC:
        advice.append("exposed_communication")
    return list(dict.fromkeys(advice))


def _kernel_share(run: Run, window: Spans) -> float | None:
    """Share of time with a kernel, from the first step to the last, without copies. None without a GPU."""
    kernels = run.event_rows.of_kind(EventKind.KERNEL, EventKind.COLLECTIVE)
    if not len(kernels):
        return None
    first, last = int(window.start_ns[0]), int(window.end_ns[-1])
    return intersect(clip(kernels.spans(), first, last), window).total_ns / (last - first)


def _no_tensor_cores(run: Run) -> bool:
    """Whether tensor cores exist and operators could use them, but no kernel name shows their use."""
    capability = _capability(run)
    if capability is None or capability < TENSOR_CORES_SINCE:
        return False
    kernels = run.event_rows.of_kind(EventKind.KERNEL)
    names = kernels.text("name")
    used = names.matching(any(part in word for part in _TENSOR_CORE) for word in names.vocabulary)
    ops = run.event_rows.of_kind(EventKind.OP).text("name")
    eligible = ops.matching(word in _ELIGIBLE for word in ops.vocabulary)
    return len(kernels) > 0 and not used.any() and bool(eligible.any())


def _capability(run: Run) -> float | None:
    """Compute capability as the plug-in reads it; AMD accelerators report 9, which it takes for NVIDIA's."""
    if not run.machine.gpus:
        return None
    version = run.machine.gpus[0].compute_capability
    if version is None and "AMD" in run.machine.gpus[0].name:
        return 9.0
    try:
        return float(version) if version is not None else None
    except ValueError:
        return None


def _peak_memory(run: Run) -> float | None:
    """Peak memory allocated by PyTorch as a share of the GPU's memory; None if not recorded."""
    sizes = {gpu.index: gpu.memory_bytes for gpu in run.machine.gpus if gpu.memory_bytes}
    shares = []
    for rows, column in ((run.allocator_rows, "peak_reserved_bytes"), (run.memory_rows, "reserved_bytes")):
        for device, size in sizes.items():
            allocated = rows[column][(rows["device"] == device) & (rows[column] >= 0)]
            shares += [float(allocated.max()) / size] if len(allocated) else []
    return max(shares, default=None)


def _device_use(run: Run) -> float | None:
    """GPU utilisation by the driver, else by the trace; without a GPU, the time in operators stands for it."""
    if (sampled := _mean(run.gpu_rows, "util_frac")) is not None:
        return sampled
    run_steps = find_steps(run)
    window = union(run_steps.start_ns[run_steps.recorded], run_steps.end_ns[run_steps.recorded])
    if not window.total_ns or not len(run.event_rows):
        return None
    by_kernels = _kernel_share(run, window)
    return by_kernels if by_kernels is not None else _operator_share(run, run_steps, window)


def _operator_share(run: Run, run_steps: Steps, window: Spans) -> float:
    events = run.event_rows
    working = subtract(events.of_kind(EventKind.OP).spans(), events.of_kind(EventKind.LOADER).spans())
    return intersect(working, window).total_ns / int(run_steps.dur_ns[run_steps.recorded].sum())


def _host_memory(run: Run) -> float | None:
    free, total = _mean(run.host_rows, "memory_available_bytes"), run.machine.memory_bytes
    return 1 - free / total if free is not None and total else None


def _gpu_memory_use(run: Run) -> float | None:
    """How busy the memory controller is, which is what the article calls memory utilisation; else how full it is."""
    if (busy := _mean(run.gpu_rows, "memory_util_frac")) is not None:
        return busy
    used, total = (
        _mean(run.gpu_rows, "memory_used_bytes"),
        next((gpu.memory_bytes for gpu in run.machine.gpus if gpu.memory_bytes), None),
    )
    return used / total if used is not None and total else None


def _mean(rows: Rows, column: str) -> float | None:
    values = rows[column][~np.isnan(rows[column])]
    return float(values.mean()) if len(values) else None
