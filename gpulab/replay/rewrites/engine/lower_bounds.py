"""Minimum time of device work on its GPU, whatever the kernel: the basis of upper bounds.

A ratio of peak rates is no bound: a kernel at 25 % of one peak may be replaced by one at 90 % of another. Arithmetic
that must be done and bytes that must pass through memory are a bound; if sizes are unknown, the bound is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import KernelFamily
from gpulab.analysis.kernels.flops import largest_bytes, min_flops, parse_inputs
from gpulab.hardware.precision import Precision
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import cached_per_run
from gpulab.replay.rewrites.engine.graph_work import DISPATCH_PARTS, classified_ops, gpu_spec_of


class MinimumWork(NamedTuple):
    """Minimum work of the operator behind each device op."""

    flops: Floats  # the minimum for its matrix product; 0 if unknown, or not a product
    bytes: Floats  # of its largest tensor, if one pass reads or writes all of it; else 0
    ns: Floats  # recorded time of all device ops of the operator


@cached_per_run
def minimum_work(graph: Graph) -> MinimumWork:
    """Return the minimum work, as far as recorded sizes show it."""
    kernels = classified_ops(graph)
    matrix = kernels.family_mask(KernelFamily.MATRIX)
    passes = kernels.family_mask(KernelFamily.STREAM) & ~kernels.is_reduction
    flops, size = _flops_and_bytes(graph, matrix | passes)
    total = np.bincount(kernels.op + 1, weights=kernels.dur_ns, minlength=int(kernels.op.max(initial=-1)) + 2)
    operator_ns = np.where(kernels.op >= 0, total[kernels.op + 1], kernels.dur_ns) if len(kernels) else kernels.dur_ns
    # Split-K products add up their parts in another kernel, which belongs to the product.
    multiplies = np.isin(kernels.op, np.unique(kernels.op[matrix & (kernels.op >= 0)]))
    return MinimumWork(np.where(multiplies, flops, 0.0), np.where(passes & ~multiplies, size, 0.0), operator_ns)


def _flops_and_bytes(graph: Graph, relevant: Mask) -> tuple[Floats, Floats]:
    """Return FLOPs and largest tensor of the operator behind each device op; 0 if its sizes were not recorded."""
    run, op = graph.run, classified_ops(graph).op
    flops, size = np.zeros(len(op)), np.zeros(len(op))
    shapes = run.shape_rows
    has_shapes = np.isin(op, np.unique(op[relevant & (op >= 0)]))
    if not len(shapes) or not has_shapes.any():
        return flops, size
    names, count = run.event_rows.text("name"), len(run.event_rows)
    shape_codes, dtype_codes = (shapes.per_event(column, count)[op[has_shapes]] for column in ("shapes", "dtypes"))
    keys, inverse = np.unique(
        np.stack([names.codes[op[has_shapes]], shape_codes, dtype_codes]), axis=1, return_inverse=True
    )
    amounts = np.zeros((2, keys.shape[1]))
    for column, (name, shape, dtype) in enumerate(keys.T.tolist()):
        if min(name, shape, dtype) >= 0:
            sizes = parse_inputs(shapes.text("shapes").vocabulary[shape], shapes.text("dtypes").vocabulary[dtype])
            amounts[:, column] = min_flops(names.vocabulary[name], sizes) or 0.0, largest_bytes(sizes)
    flops[has_shapes], size[has_shapes] = amounts[:, inverse.reshape(-1)]
    return flops, size


def minimum_time_frac(graph: Graph, flops_per_s: float | Floats | None, *, width: float = 1.0) -> Floats:
    """Return the minimum remaining fraction of each device op at this peak rate, with elements narrower by `width`.

    0 if there is no bound. It counts only the arithmetic, or one pass over the largest tensor except for what the L2
    cache may hold. It is a fraction of the recorded time, because an earlier edit may have changed the duration.
    """
    minimum, spec = minimum_work(graph), gpu_spec_of(graph)
    if spec is None or flops_per_s is None:
        return np.zeros(len(minimum.ns))
    arithmetic_ns = minimum.flops / flops_per_s * 1e9
    # Data that the previous kernel left in the L2 cache do not pass through memory.
    traffic_ns = np.maximum(0.0, minimum.bytes * width - spec.l2_bytes) / spec.memory_bytes_per_s * 1e9
    return np.asarray(np.clip(np.maximum(arithmetic_ns, traffic_ns) / np.maximum(minimum.ns, 1.0), 0.0, 1.0))


@cached_per_run
def peak_of_run_gpu(graph: Graph) -> Floats:
    """Return the peak rate of the precision each device op computes in, FLOP/s; infinite if unknown."""
    kernels, spec = classified_ops(graph), gpu_spec_of(graph)
    peak = np.full(len(kernels), np.inf)
    if spec is not None:
        is_float32 = (kernels.precision == Precision.FLOAT32) & ~kernels.is_narrow
        peak[is_float32] = spec.float32_flops_per_s
        peak[is_float32 & kernels.is_convolution] = spec.fastest_float32_flops_per_s
        peak[(kernels.precision == Precision.TF32) & ~kernels.is_narrow] = spec.fastest_float32_flops_per_s
        peak[kernels.precision == Precision.HALF] = spec.half_flops_per_s
    return peak


def ops_of_same_operators(graph: Graph, products: Mask) -> Mask:
    """Mask of all device ops of the operators that these products belong to."""
    op = classified_ops(graph).op
    return np.asarray(products | np.isin(op, np.unique(op[products & (op >= 0)])), bool)


def shrink_ops(graph: Graph, work: Mask, share: Floats) -> Graph:
    """Return the graph with this fraction left of these ops, without gaps; one kernel may do all work of an operator.

    The launches of its other kernels cost nothing.
    """
    device, host = graph.device, graph.host
    dur_ns = np.where(work, device.dur_ns * share, device.dur_ns)
    gap_ns = np.where(work, np.minimum(device.gap_ns, 0.0), device.gap_ns)
    op = classified_ops(graph).op
    later_ops = np.ones(len(op), bool)
    later_ops[np.unique(op, return_index=True)[1]] = False
    later_ops = device.call[work & later_ops & (op >= 0) & (device.call >= 0)]
    call_factor: Floats = np.ones(len(host))
    call_factor[later_ops[np.diff(host.first_op)[later_ops] == 1]] = 0.0
    cheaper = graph.scaled_before(dict.fromkeys(DISPATCH_PARTS, call_factor)).with_host(
        call_ns=host.call_ns * call_factor
    )
    return cheaper.with_device(dur_ns=dur_ns, gap_ns=gap_ns)
