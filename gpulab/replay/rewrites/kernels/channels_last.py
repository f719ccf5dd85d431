"""Channels last: NHWC, the memory format of tensor cores, so that no kernels convert between formats."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily
from gpulab.analysis.kernels.tensor_cores import Cores
from gpulab.hardware.precision import Precision
from gpulab.replay.graph.graph import CALL_PARTS, Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.graph_work import classified_ops, gpu_spec_of, is_host_device_copy, scale_kernels
from gpulab.replay.rewrites.engine.lower_bounds import minimum_time_frac, ops_of_same_operators, shrink_ops
from gpulab.replay.rewrites.machine.other_gpu import target_gpu

ON_TENSOR_CORES = (0.70, 0.97)  # remaining share of a convolution's time, without the conversions
ON_CUDA_CORES = (0.92, 1.15)  # in float32 on CUDA cores, channels last is often no faster, or slower
MAX_NHWC_FRAC = 0.5


def channels_last(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`model.to(memory_format=torch.channels_last)`, and the same for batches.

    Models: conversion kernels (nchwToNhwc and similar) disappear, with their launches. Convolutions on tensor cores
    take 0.70 to 0.97 of their time; those in float32 on CUDA cores 0.92 to 1.15.

    Priced from: kernel names in this run; PyTorch's and NVIDIA's published comparisons of the two formats.

    Cannot know: which kernels cuDNN chooses for the other format, and operators that convert back (reshape, view).
    """
    tensor_factor, cuda_factor = (
        draw.between("layout_tensor", *ON_TENSOR_CORES),
        draw.between("layout_plain", *ON_CUDA_CORES),
    )
    return _converted(graph, tensor_factor, cuda_factor)


def channels_last_best_case(graph: Graph, value: Value) -> Graph:
    """No conversions; convolutions at peak rate and memory passes at peak bandwidth; nothing if sizes are unknown.

    Pooling and norms read images too; in the other format they may be several times as fast.
    """
    kernels, spec = classified_ops(graph), target_gpu(graph) or gpu_spec_of(graph)
    share = np.zeros(len(kernels))
    if spec is not None:
        tensor = _on_tensor_cores(graph) | (kernels.is_narrow | (kernels.precision == Precision.HALF))
        peak = np.where(tensor, spec.half_flops_per_s, spec.fastest_float32_flops_per_s)
        share = minimum_time_frac(graph, peak)
    passes = (
        kernels.family_mask(KernelFamily.STREAM, KernelFamily.COMPILED, KernelFamily.OTHER, KernelFamily.COPY)
        & ~kernels.in_optimizer
    )
    passes &= ~is_host_device_copy(graph)
    return shrink_ops(_converted(graph, 1.0, 1.0), ops_of_same_operators(graph, kernels.is_convolution) | passes, share)


def _converted(graph: Graph, tensor_factor: float, cuda_factor: float) -> Graph:
    device, kernels = graph.device, classified_ops(graph)
    factor = np.where(_on_tensor_cores(graph), tensor_factor, cuda_factor)
    dur_ns = np.where(kernels.is_convolution, scale_kernels(device.dur_ns, factor), device.dur_ns)
    conversions = kernels.family_mask(KernelFamily.LAYOUT)
    dur_ns = np.where(conversions, 0.0, dur_ns)
    gap_ns = np.where(conversions, 0.0, device.gap_ns)
    calls = device.call[conversions & (device.call >= 0)]
    single_launches = calls[np.diff(graph.host.first_op)[calls] == 1]
    call_factor: Floats = np.ones(len(graph.host))
    call_factor[single_launches] = 0.0
    return (
        graph.scaled_before(dict.fromkeys(CALL_PARTS, call_factor))
        .with_host(call_ns=graph.host.call_ns * call_factor)
        .with_device(dur_ns=dur_ns, gap_ns=gap_ns)
    )


def _on_tensor_cores(graph: Graph) -> Mask:
    """Mask of convolutions that run on tensor cores; all of them if `amp` was applied."""
    kernels = classified_ops(graph)
    if "amp" in graph.applied:
        return kernels.is_convolution
    half = (kernels.precision == Precision.HALF) | (kernels.precision == Precision.TF32) | kernels.is_narrow
    return np.asarray(kernels.is_convolution & ((kernels.cores == Cores.TENSOR) | half), bool)


def channels_last_refusal(graph: Graph, value: Value) -> str | None:
    """Return why channels last cannot be predicted."""
    if not graph.on_gpu:
        return "the run contains no GPU work"
    kernels = classified_ops(graph)
    if not kernels.is_convolution.any():
        return "the run contains no convolutions"
    is_nhwc = graph.run.event_rows.matching(lambda word: "nhwc" in word.lower())[graph.device.event]
    dur_ns = kernels.dur_ns
    if not kernels.family_mask(KernelFamily.LAYOUT).any() and (
        dur_ns[kernels.is_convolution & is_nhwc].sum() > MAX_NHWC_FRAC * dur_ns[kernels.is_convolution].sum()
    ):
        return "its convolutions use channels last already"
    return None


MEMORY_FORMAT_REWRITES = (
    Rewrite(
        name="channels_last",
        edit=channels_last,
        best_case=channels_last_best_case,
        grade="C",
        about="images and convolutions in channels last (NHWC)",
        bound_label="convolutions at peak rate without any conversion",
        refusal_reason=channels_last_refusal,
        cost="batches must be converted as well, and custom operators must keep the format",
        code=lambda graph, value: "model = model.to(memory_format=torch.channels_last)",
    ),
)
