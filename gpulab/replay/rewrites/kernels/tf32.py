"""TF32: float32 matrix products on tensor cores, if the GPU has them and they are not in use yet."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import float32_mask
from gpulab.analysis.kernels.tensor_cores import tf32_setting
from gpulab.hardware.precision import Precision, precision_speedup
from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.graph_work import classified_ops, gpu_of, gpu_spec_of, scale_kernels
from gpulab.replay.rewrites.engine.lower_bounds import minimum_time_frac, ops_of_same_operators, shrink_ops
from gpulab.replay.rewrites.kernels.mixed_precision import BEST_POWER, MIN_SPEEDUP, WORST_POWER, precision_refusal
from gpulab.replay.rewrites.machine.other_gpu import target_gpu


def tf32(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`torch.set_float32_matmul_precision("high")`: float32 products on tensor cores, inputs rounded to 10 bits.

    Models: float32 matrix kernels outside convolutions (PyTorch computes those in TF32 by default) speed up by the
    ratio of this GPU's peaks to the power 0.3 to 0.85. Combined with amp, nothing is left to gain.

    Priced from: the peaks as the maker states them; NVIDIA's published examples on A100, where a ratio of 8 gave 2.6x
    for ResNet-50 and 6x for BERT.

    Cannot know: how well your sizes fit, and whether 10 mantissa bits are enough.
    """
    if "amp" in graph.applied:
        return graph
    power = draw.between("tf32_matrix", BEST_POWER, WORST_POWER)
    factor = np.where(_float32_products(graph), _tf32_ratio(graph) ** -power, 1.0)
    return graph.with_device(dur_ns=scale_kernels(graph.device.dur_ns, factor))


def tf32_best_case(graph: Graph, value: Value) -> Graph:
    """These products at the TF32 peak if their sizes were recorded, otherwise in no time."""
    if "amp" in graph.applied:
        return graph
    spec = target_gpu(graph) or gpu_spec_of(graph)
    share = minimum_time_frac(graph, spec.fastest_float32_flops_per_s if spec else None)
    return shrink_ops(graph, ops_of_same_operators(graph, _float32_products(graph)), share)


def _float32_products(graph: Graph) -> Mask:
    kernels = classified_ops(graph)
    return float32_mask(kernels, Precision.FLOAT32) & ~kernels.is_convolution


def _tf32_ratio(graph: Graph) -> float:
    if (other := target_gpu(graph)) is not None:
        return other.fastest_float32_flops_per_s / other.float32_flops_per_s
    return max(1.0, precision_speedup(gpu_of(graph), Precision.TF32, Precision.FLOAT32) or 1.0)


def tf32_refusal(graph: Graph, value: Value) -> str | None:
    """Return why TF32 cannot be predicted."""
    if (reason := precision_refusal(graph)) is not None:
        return reason
    if _tf32_ratio(graph) < MIN_SPEEDUP:
        gpu = gpu_of(graph)
        return f"{gpu.name if gpu else 'this GPU'} is no faster in TF32 than in float32"
    if tf32_setting(graph.run) == "on":
        return "TF32 is enabled already"
    if not _float32_products(graph).any():
        return "no matrix product is in float32, apart from convolutions"
    return None


TF32_REWRITES = (
    Rewrite(
        name="tf32",
        edit=tf32,
        best_case=tf32_best_case,
        grade="C",
        about="float32 matrix products on tensor cores",
        bound_label="TF32 at peak rate",
        refusal_reason=tf32_refusal,
        cost="inputs of products are rounded to 10 mantissa bits",
        code=lambda graph, value: 'torch.set_float32_matmul_precision("high")',
    ),
)
