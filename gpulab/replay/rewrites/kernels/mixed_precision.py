"""Mixed precision: matrix kernels sped up as this GPU's tensor cores allow, plus the cost of autocast."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily, float32_mask, half_precision_share
from gpulab.hardware.architectures import has_bfloat16
from gpulab.hardware.precision import Precision, precision_speedup
from gpulab.hardware.vendor import is_amd
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run, mark_applied
from gpulab.replay.rewrites.engine.graph_work import (
    call_cost_ns,
    call_roles,
    classified_ops,
    gpu_of,
    gpu_spec_of,
    is_host_device_copy,
    is_training,
    scale_kernels,
)
from gpulab.replay.rewrites.engine.lower_bounds import minimum_time_frac, ops_of_same_operators, shrink_ops
from gpulab.replay.rewrites.machine.other_gpu import target_gpu
from gpulab.wording import percent

# Speed-up reached, as exponents of the ratio of peaks. A V100's ratio of 8 gave 3.3x for a whole ResNet-50, which
# is 6x for its products (NVIDIA's DeepLearningExamples); small and misaligned products gain half of that or less.
BEST_POWER, WORST_POWER = 0.85, 0.30
EFFICIENCY = (0.65, 0.25)  # share of peak that half-precision products reach, if their sizes are known
MEMORY_FRAC = 0.7  # share of peak memory bandwidth that products reach
STREAM_BEST, STREAM_WORST, STREAM_MIXED = 0.5, 0.65, 0.85  # remaining time of passes over activations of half the size
CASTS = (0.7, 1.6)  # per matrix operator; counted: 117 for 161 in ResNet-50, 274 for 171 in GPT-2
CAST_COST = (0.2, 0.6)  # of the host cost of a kernel in this run: 2.4 ms of 10.4 ms in a ResNet-50
CAST_NS = (1_500.0, 4_000.0)  # device time
CAST_TRAFFIC = (0.0, 0.06)  # of the time of the product that reads the result
CHECK_NS = (15_000.0, 40_000.0)  # float16: from the end of the overflow check until the host has its result
SCALER_NS = (50_000.0, 200_000.0)  # host time per step
UNSCALE_FRAC = (0.1, 0.4)  # of the optimizer's kernels: one more pass over the gradients
MAX_HALF_FRAC = 0.5  # of matrix kernel time: if more is in half precision already, little is left to gain
MIN_SPEEDUP = 1.2
# Autocast keeps the inputs and outputs of these kernels in float32.
_IN_FLOAT32 = re.compile(r"layer_?norm|gammabeta|group_?norm|rowwisemoments")
MAX_UNKNOWN_FRAC = 0.5


def amp(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Automatic mixed precision: `torch.autocast` around the forward pass, in bfloat16 or float16.

    Models: matrix kernels in float32 and TF32 move to tensor cores in half precision. If their input sizes were
    recorded, each takes its arithmetic or traffic at 25 to 65 % of this GPU's peak; otherwise it speeds up by the ratio
    of the peaks to the power 0.3 to 0.85. Passes over activations take 0.5 to 0.65 of their time, up to 0.85 if layer
    norms keep part of the activations in float32. Softmax, norms, losses and other reductions do not change, nor does
    the optimizer. Casts are added with their calls, 0.7 to 1.6 per matrix operator, and for float16 the gradient
    scaler: one host wait for the GPU per step.

    Priced from: this GPU's peaks as its maker states them (gpulab.hardware.gpus); the number of casts counted in
    ResNet-50 and GPT-2; NVIDIA's published ResNet-50 on V100, 3.26x when GPU-bound.

    Cannot know: whether your sizes are multiples of 8, as tensor cores need; which kernels cuDNN then chooses; whether
    the loss still converges.
    """
    dtype = _dtype(graph, value)
    products, activations = _products(graph), _activations(graph)
    factor = np.where(products, _matrix_factor(graph, draw), 1.0)
    factor[activations] = draw.between("amp_stream", STREAM_BEST, _stream_worst(graph))
    casts = _casts_per_kernel(graph, draw)
    dur = scale_kernels(graph.device.dur_ns, factor)
    traffic = draw.between("amp_cast_traffic", *CAST_TRAFFIC)
    dur = dur + products * (casts * draw.between("amp_cast", *CAST_NS) + traffic * graph.device.dur_ns * factor)
    cast = mark_applied(_add_casts(graph.with_device(dur_ns=dur), casts, draw), "amp")
    return _add_scaler(cast, draw) if dtype == "fp16" and is_training(graph) else cast


def amp_best_case(graph: Graph, value: Value) -> Graph:
    """Matrix products at peak rate, memory passes at half the bytes, no casts; other affected work in no time.

    A ratio of peaks would be no bound, because half-precision products may come closer to their peak than float32
    products do. If sizes were recorded, a product takes its arithmetic over the peak, and a pass takes one read or
    write of its largest tensor at half the width, except for what the cache may hold. All other work that autocast may
    narrow takes no time.
    """
    spec = target_gpu(graph) or gpu_spec_of(graph)
    share = minimum_time_frac(graph, spec.half_flops_per_s if spec else None, width=0.5)
    return mark_applied(shrink_ops(graph, _affected_work(graph), share), "amp")


@cached_per_run
def _affected_work(graph: Graph) -> Mask:
    """Mask of work that may become narrower or use another kernel: all but float32-only work and the optimizer."""
    kernels = classified_ops(graph)
    is_float32_only = graph.run.event_rows.matching(lambda word: _IN_FLOAT32.search(word.lower()))[graph.device.event]
    is_product = kernels.family_mask(KernelFamily.MATRIX)
    unaffected = (
        kernels.family_mask(KernelFamily.COLLECTIVE, KernelFamily.OPTIMIZER)
        | kernels.in_optimizer
        | is_host_device_copy(graph)
        | is_float32_only
    )
    return np.asarray(
        ops_of_same_operators(graph, _products(graph)) | ~(is_product | unaffected | kernels.is_narrow), bool
    )


def _dtype(graph: Graph, value: Value) -> str:
    if isinstance(value, str):
        return value
    return "bf16" if _has_bfloat16(graph) else "fp16"


def _has_bfloat16(graph: Graph) -> bool:
    spec = target_gpu(graph) or gpu_spec_of(graph)
    return has_bfloat16(gpu_of(graph)) if spec is None else spec.bfloat16_flops_per_s is not None


@cached_per_run
def _products(graph: Graph) -> Mask:
    kernels = classified_ops(graph)
    return float32_mask(kernels, Precision.FLOAT32) | float32_mask(kernels, Precision.TF32)


@cached_per_run
def _activations(graph: Graph) -> Mask:
    """Mask of passes over activations, except those kept in float32 by autocast and those already narrow."""
    kernels = classified_ops(graph)
    return (
        kernels.family_mask(KernelFamily.STREAM, KernelFamily.COMPILED)
        & ~kernels.is_reduction
        & ~kernels.is_narrow
        & ~kernels.in_optimizer
    )


def _ratios(graph: Graph) -> Floats:
    """Return the maximum speed-up of half precision per device op; 1 if it is not a float32 or TF32 product."""
    target = target_gpu(graph)
    if target is None:
        return _own_ratios(graph)
    kernels = classified_ops(graph)
    in_tf32 = kernels.is_convolution | (kernels.precision == Precision.TF32)
    float32 = np.where(in_tf32, target.fastest_float32_flops_per_s, target.float32_flops_per_s)
    ratio = target.half_flops_per_s / float32
    return np.where(_products(graph), np.maximum(ratio, 1.0), 1.0)


@cached_per_run
def _own_ratios(graph: Graph) -> Floats:
    kernels, gpu = classified_ops(graph), gpu_of(graph)
    ratio = np.ones(len(kernels))
    for precision in (Precision.FLOAT32, Precision.TF32):
        ratio[float32_mask(kernels, precision)] = precision_speedup(gpu, Precision.HALF, precision) or 1.0
    return np.maximum(ratio, 1.0)


def _matrix_factor(graph: Graph, draw: Draw) -> Floats:
    """Return the remaining share of each product, by its sizes if known, otherwise by the ratio of peaks."""
    ratio, kernels, spec = _ratios(graph), classified_ops(graph), gpu_spec_of(graph)
    factor = ratio ** -draw.between("amp_matrix", BEST_POWER, WORST_POWER)
    if spec is None or target_gpu(graph) is not None:
        return factor
    arithmetic_ns = kernels.op_flops / (spec.half_flops_per_s * draw.between("amp_efficiency", *EFFICIENCY)) * 1e9
    traffic_ns = kernels.op_bytes / 2 / (spec.memory_bytes_per_s * MEMORY_FRAC) * 1e9
    has_sizes = np.isfinite(kernels.op_flops) & (kernels.op_ns > 0)
    remaining = np.fmax(arithmetic_ns, traffic_ns)[has_sizes] / kernels.op_ns[has_sizes]
    factor[has_sizes] = np.clip(remaining, 1 / ratio[has_sizes], 1.0)
    return factor


@cached_per_run
def _stream_worst(graph: Graph) -> float:
    """Layer norms return float32, and sums with it stay float32: half of the passes then keep their size."""
    names = graph.run.event_rows.text("name").vocabulary
    return STREAM_MIXED if any("layer_norm" in name or "LayerNorm" in name for name in names) else STREAM_WORST


def _casts_per_kernel(graph: Graph, draw: Draw) -> float:
    """Return the number of casts per matrix kernel."""
    return draw.between("amp_casts", *CASTS) * _operators_per_kernel(graph)


@cached_per_run
def _operators_per_kernel(graph: Graph) -> float:
    """Return the number of operators per matrix kernel: one operator may launch several. 1 if unknown."""
    kernels = classified_ops(graph)
    op = kernels.op[_products(graph)]
    return len(np.unique(op)) / len(op) if len(op) and (op >= 0).all() else 1.0


def _add_casts(graph: Graph, casts: float, draw: Draw) -> Graph:
    """Add the calls of casts before the calls of the products that read their results."""
    roles = call_roles(graph)
    model_launches = roles.model & roles.single_launches
    mean_call_ns = float(call_cost_ns(graph)[model_launches].mean()) if model_launches.any() else 0.0
    added = _product_launches(graph) * casts * mean_call_ns * draw.between("amp_cast_call", *CAST_COST)
    return graph.with_more_before("dispatch", added)


@cached_per_run
def _product_launches(graph: Graph) -> Mask:
    """Mask of the nodes that launch a single kernel, a matrix product."""
    matrix = np.append(_products(graph), False)
    return np.asarray(call_roles(graph).single_launches & matrix[graph.host.first_op[:-1]], bool)


def _add_scaler(graph: Graph, draw: Draw) -> Graph:
    """Add the gradient scaler: unscaling before the optimizer step, and a host wait for the overflow check."""
    first_nodes = call_roles(graph).update_starts
    last = graph.host.first_op[first_nodes] - 1
    first_nodes, last = first_nodes[last >= 0], last[last >= 0]
    wait, wait_ns = graph.host.awaited_op.copy(), graph.host.return_delay_ns.copy()
    wait[first_nodes] = np.maximum(wait[first_nodes], last)
    wait_ns[first_nodes] = np.maximum(wait_ns[first_nodes], draw.between("amp_check", *CHECK_NS))
    added = np.zeros(len(graph.host))
    added[first_nodes] = draw.between("amp_scaler", *SCALER_NS)
    dur = graph.device.dur_ns.copy()
    optimizer_ns = float(dur[classified_ops(graph).family_mask(KernelFamily.OPTIMIZER)].sum()) / max(
        1, len(first_nodes)
    )
    np.add.at(dur, last, optimizer_ns * draw.between("amp_unscale", *UNSCALE_FRAC))
    return (
        graph.with_device(dur_ns=dur)
        .with_host(awaited_op=wait, return_delay_ns=wait_ns)
        .with_more_before("dispatch", added)
    )


def amp_refusal(graph: Graph, value: Value) -> str | None:
    """Return why mixed precision cannot be predicted."""
    if (reason := precision_refusal(graph)) is not None:
        return reason
    gpu, kernels = gpu_of(graph), classified_ops(graph)
    name = gpu.name if gpu else "this GPU"
    share = half_precision_share(kernels)
    if share > MAX_HALF_FRAC:
        return f"{percent(share)} of its matrix product time is in half precision already"
    products = _products(graph)
    if not products.any():
        return "none of its matrix products is in float32"
    if precision_speedup(gpu, Precision.HALF, Precision.FLOAT32) is None:
        return f"the half-precision peak of {name} is not in gpulab's table"
    ratio = float(np.average(_ratios(graph)[products], weights=kernels.dur_ns[products] + 1))
    if ratio < MIN_SPEEDUP:
        return f"{name} is no faster in half precision than in the present one"
    if value == "bf16" and not _has_bfloat16(graph):
        return f"{name} does not support bfloat16; use amp=fp16"
    return None


def precision_refusal(graph: Graph) -> str | None:
    """Return why no change of precision can be predicted, for any precision; None if it can."""
    if not graph.on_gpu:
        return "the run contains no GPU work"
    gpu, kernels = gpu_of(graph), classified_ops(graph)
    if gpu is not None and is_amd(gpu.name):
        return "AMD's matrix kernel names do not show their precision"
    is_product = kernels.family_mask(KernelFamily.MATRIX)
    if not kernels.dur_ns[is_product].sum() > 0:
        return "the run contains no matrix products"
    unknown = is_product & (kernels.precision == Precision.UNKNOWN) & ~kernels.is_narrow
    share = kernels.dur_ns[unknown].sum() / kernels.dur_ns[is_product].sum()
    if share > MAX_UNKNOWN_FRAC:
        return f"the precision of {percent(share)} of its matrix kernel time cannot be derived from kernel names"
    return None


def _amp_dtype(typed: str) -> Value:
    dtype = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16"}.get(typed.lower())
    if dtype is None:
        raise ValueError("the precision is bf16 or fp16")
    return dtype


def _amp_code(graph: Graph, value: Value) -> str:
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[_dtype(graph, value)]
    model = next((each.name for each in graph.run.models if each.name), "model")
    code = f'{model}.forward = torch.autocast("cuda", dtype=torch.{dtype})({model}.forward)'
    if dtype == "bfloat16" or not is_training(graph):
        return code
    optimizer = next((each.name for each in graph.run.optimizers if each.name), "optimizer")
    return (
        f'{code}\nscaler = torch.amp.GradScaler("cuda")\n'
        "# instead of loss.backward() and optimizer.step():\n"
        f"scaler.scale(loss).backward()\nscaler.step({optimizer})\nscaler.update()"
    )


PRECISION_REWRITES = (
    Rewrite(
        name="amp",
        edit=amp,
        best_case=amp_best_case,
        grade="C",
        about="mixed precision by torch.autocast",
        bound_label="half precision at peak rate without casts",
        refusal_reason=amp_refusal,
        value_help="bf16 or fp16; by default bf16 if the GPU supports it, otherwise fp16",
        parse=_amp_dtype,
        cost="watch the loss over the first few hundred steps; float16 also needs a gradient scaler",
        code=_amp_code,
    ),
)
