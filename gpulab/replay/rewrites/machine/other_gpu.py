"""Another GPU: scale each device op by the ratio of what the two GPUs reach."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily
from gpulab.hardware.architectures import has_float4, has_float8
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.hardware.precision import Precision
from gpulab.hardware.vendor import is_amd
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run, mark_applied
from gpulab.replay.rewrites.engine.graph_work import KERNEL_START_NS, classified_ops, gpu_of, gpu_spec_of
from gpulab.replay.rewrites.kernels.batch_size import is_h2d_copy

# Uncertainty of the ratio of two GPUs: one network differs from the medians over many kernels.
RATIO_SPREAD = (1.25, 0.8)
MEMORY_BOUND = (0.0, 0.4)  # memory-bound share of a product's time
LINK_EXPONENT = (1.0, 0.0)  # exponent of the ratio of links: the host limits copies from pageable memory
CLOCKS = 0.2  # logarithm of the maximum ratio of clocks between generations

TF32_REACHED = 0.45  # share of the TF32 peak that convolutions reach; in half precision it is 0.5 to 0.6 on all GPUs
SHORT_NAMES = tuple(spec.aliases[0] for spec in SPECS)


def move_to_gpu(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The same work on another GPU, with this host.

    Models: matrix products by the ratio of what each GPU reaches in their precision, part of their time by memory
    bandwidth; all other kernels by the ratio of memory bandwidths; kernels with fewer blocks than either GPU has
    multiprocessors by the speed of one multiprocessor; H2D copies by the link. Kernel start times do not change, nor
    does the host: its Python, operators and loading. float32 products outside convolutions stay float32; convolutions
    use TF32 if the GPU has it, as PyTorch does by default.

    Priced from: the makers' figures for both GPUs (gpulab.hardware.gpus), times the share of them that kernels reach:
    medians of some 27,000 kernels measured by NeuSight's authors (MIT licence).

    Cannot know: other kernels for the other GPU, clocks under load (70 W boards reach half of their peak), caches, the
    other machine's CPU. It is a rough estimate for deciding what to rent: try an hour first.
    """
    target = resolve(str(value))
    current = gpu_spec_of(graph)
    assert current is not None  # `gpu_refusal` refuses otherwise
    if target.computes_like(current):
        return graph
    products, streams = (
        np.log(_product_ratio(graph, current, target)),
        float(np.log(_streaming_bandwidth(target) / _streaming_bandwidth(current))),
    )
    spread = float(np.log(draw.ratio("gpu_reached", *RATIO_SPREAD)))
    # Part of a product's time is memory-bound: if memory speeds up by less, so does the product.
    memory_lag = np.minimum(0.0, streams - products) * draw.between("gpu_bound", *MEMORY_BOUND)
    kernels = classified_ops(graph)
    is_product = kernels.family_mask(KernelFamily.MATRIX)
    log_speedup = np.where(is_product, products + memory_lag, streams) + spread
    log_speedup = np.where(
        _too_few_blocks(graph, current, target),
        np.minimum(log_speedup, _multiprocessor_speedup(is_product, products, current, target)),
        log_speedup,
    )
    link_speedup = np.log(target.link_bytes_per_s / current.link_bytes_per_s) * draw.between(
        "gpu_linked", *LINK_EXPONENT
    )
    log_speedup = np.where(is_h2d_copy(graph), link_speedup, log_speedup)
    log_speedup = np.where(kernels.family_mask(KernelFamily.COLLECTIVE), 0.0, log_speedup)
    dur = graph.device.dur_ns
    start_ns = np.minimum(dur, KERNEL_START_NS)
    return mark_applied(
        graph.with_device(dur_ns=start_ns + (dur - start_ns) / np.exp(log_speedup)), f"gpu={target.name}"
    )


def _too_few_blocks(graph: Graph, current: GpuSpec, target: GpuSpec) -> Mask:
    """Mask of ops with fewer blocks than either GPU has multiprocessors: more multiprocessors do not help them."""
    blocks = classified_ops(graph).blocks
    return np.asarray((blocks > 0) & (blocks < min(current.multiprocessors, target.multiprocessors)), bool)


def _multiprocessor_speedup(is_product: Mask, products: Floats, current: GpuSpec, target: GpuSpec) -> Floats:
    """Return the logarithm of the speed-up of one multiprocessor; for memory passes, little more than the clocks."""
    return np.where(
        is_product, np.maximum(0.0, products + np.log(current.multiprocessors / target.multiprocessors)), CLOCKS
    )


def _streaming_bandwidth(spec: GpuSpec) -> float:
    """Return the memory bandwidth that streaming kernels reach, in bytes per second."""
    return spec.memory_bytes_per_s * spec.shares.streaming


def _float32_rate(spec: GpuSpec) -> float:
    """Return the rate that float32 products reach on CUDA cores, in FLOP/s."""
    return spec.float32_flops_per_s * spec.shares.float32_gemm


def _product_ratio(graph: Graph, current: GpuSpec, target: GpuSpec) -> Floats:
    """Return the ratio of matrix product rates per device op, by both GPUs' peaks in its precision."""
    kernels = classified_ops(graph)
    ratio = np.full(len(kernels), _float32_rate(target) / _float32_rate(current))
    # PyTorch uses TF32 for convolutions by default, and for other products only if it is enabled.
    convolutions = kernels.is_convolution & (kernels.precision != Precision.HALF) & ~kernels.is_narrow
    if target.tf32_flops_per_s and not current.tf32_flops_per_s:
        ratio[convolutions] = TF32_REACHED * target.tf32_flops_per_s / _float32_rate(current)
    elif current.tf32_flops_per_s and not target.tf32_flops_per_s:
        ratio[convolutions] = _float32_rate(target) / (TF32_REACHED * current.tf32_flops_per_s)
    tf32 = kernels.precision == Precision.TF32
    target_tf32 = TF32_REACHED * target.tf32_flops_per_s if target.tf32_flops_per_s else _float32_rate(target)
    ratio[tf32] = target_tf32 / (TF32_REACHED * current.fastest_float32_flops_per_s)
    ratio[(kernels.precision == Precision.HALF) | kernels.is_narrow] = (
        target.half_flops_per_s / current.half_flops_per_s
    )
    return ratio


def gpu_best_case(graph: Graph, value: Value) -> Graph:
    """A GPU that takes no time."""
    return graph.with_device(dur_ns=np.zeros(len(graph.device)))


def target_gpu(graph: Graph) -> GpuSpec | None:
    """Return the GPU that the `gpu` rewrite set for this graph; None if it was not applied."""
    return next((each for each in SPECS if f"gpu={each.name}" in graph.applied), None)


@cached_per_run
def _narrow_types(graph: Graph) -> frozenset[str]:
    """Return the narrow types that matrix kernel names contain: "bfloat16", "float8", "float4"."""
    names = graph.run.event_rows.text("name")
    matrix = graph.device.event[classified_ops(graph).family_mask(KernelFamily.MATRIX)]
    codes = np.unique(names.codes[matrix])
    labels = [names.vocabulary[code].lower() for code in codes[codes >= 0].tolist()]
    spelled = {"bfloat16": ("bf16", "bfloat16"), "float8": ("e4m3", "e5m2"), "float4": ("e2m1",)}
    return frozenset(kind for kind, parts in spelled.items() if any(part in word for part in parts for word in labels))


def gpu_refusal(graph: Graph, value: Value) -> str | None:
    """Return why another GPU cannot be predicted."""
    current = gpu_of(graph)
    if current is None:
        return "the run contains no GPU work"
    if is_amd(current.name) or gpu_spec_of(graph) is None:
        return f"{current.name} is not in gpulab's table of GPUs, so there is nothing to compare with"
    target = resolve(str(value))
    for kind in sorted(_narrow_types(graph)):
        if not _supports(target, kind):
            return f"it contains {kind} products, which {target.name} does not support"
    return None


def _supports(spec: GpuSpec, kind: str) -> bool:
    if kind == "bfloat16":
        return spec.bfloat16_flops_per_s is not None
    return {"float8": has_float8, "float4": has_float4}[kind](spec.compute_capability)


def _parse(typed: str) -> Value:
    resolve(typed)
    return typed.lower()


GPU_REWRITES = (
    Rewrite(
        name="gpu",
        edit=move_to_gpu,
        best_case=gpu_best_case,
        grade="D",
        about="the same work on another GPU",
        bound_label="an infinitely fast GPU",
        refusal_reason=gpu_refusal,
        value_help=f"a GPU: {', '.join(SHORT_NAMES)}",
        default=None,
        parse=_parse,
        cost="its rent; its memory may also be smaller",
    ),
)
