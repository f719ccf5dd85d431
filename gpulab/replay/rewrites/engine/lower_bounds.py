"""Minimum time of device work on its GPU, whatever the kernel: the basis of upper bounds.

A ratio of peak rates is no bound: a kernel at 25 % of one peak may be replaced by one at 90 % of another. Arithmetic
that must be done and bytes that must pass through memory are a bound; if sizes are unknown, the bound is zero.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.analysis.kernels.flops import inputs, largest_bytes, least_flops
from gpulab.hardware.precision import Precision
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import once
from gpulab.replay.rewrites.engine.graph_work import CALLED, gpu_spec_of, pieces_of


class Least(NamedTuple):
    """Minimum work of the operator behind each device op."""

    flops: Floats  # the minimum for its matrix product; 0 if unknown, or not a product
    bytes: Floats  # of its largest tensor, if one pass reads or writes all of it; else 0
    ns: Floats  # recorded time of all device ops of the operator


@once
def least(graph: Graph) -> Least:
    """Return the minimum work, as far as recorded sizes show it."""
    kernels = pieces_of(graph)
    matrix = kernels.is_family(Family.MATRIX)
    passes = kernels.is_family(Family.STREAM) & ~kernels.reduces
    flops, size = _flops_and_bytes(graph, matrix | passes)
    total = np.bincount(kernels.op + 1, weights=kernels.dur_ns, minlength=int(kernels.op.max(initial=-1)) + 2)
    operator_ns = np.where(kernels.op >= 0, total[kernels.op + 1], kernels.dur_ns) if len(kernels) else kernels.dur_ns
    # Split-K products add up their parts in another kernel, which belongs to the product.
    multiplies = np.isin(kernels.op, np.unique(kernels.op[matrix & (kernels.op >= 0)]))
    return Least(np.where(multiplies, flops, 0.0), np.where(passes & ~multiplies, size, 0.0), operator_ns)


def _flops_and_bytes(graph: Graph, relevant: Mask) -> tuple[Floats, Floats]:
    """Return FLOPs and largest tensor of the operator behind each device op; 0 if its sizes were not recorded."""
    run, op = graph.run, pieces_of(graph).op
    flops, size = np.zeros(len(op)), np.zeros(len(op))
    shapes = run.shape_rows
    has_shapes = np.isin(op, np.unique(op[relevant & (op >= 0)]))
    if not len(shapes) or not has_shapes.any():
        return flops, size
    names, count = run.event_rows.words("name"), len(run.event_rows)
    shape_codes, dtype_codes = (shapes.spread(column, count)[op[has_shapes]] for column in ("shapes", "dtypes"))
    keys, inverse = np.unique(
        np.stack([names.codes[op[has_shapes]], shape_codes, dtype_codes]), axis=1, return_inverse=True
    )
    amounts = np.zeros((2, keys.shape[1]))
    for column, (name, shape, dtype) in enumerate(keys.T.tolist()):
        if min(name, shape, dtype) >= 0:
            sizes = inputs(shapes.words("shapes").vocabulary[shape], shapes.words("dtypes").vocabulary[dtype])
            amounts[:, column] = least_flops(names.vocabulary[name], sizes) or 0.0, largest_bytes(sizes)
    flops[has_shapes], size[has_shapes] = amounts[:, inverse.reshape(-1)]
    return flops, size


def least_share(graph: Graph, flops_per_s: float | Floats | None, *, width: float = 1.0) -> Floats:
    """Return the minimum remaining fraction of each device op at this peak rate, with elements narrower by `width`.

    0 if there is no bound. It counts only the arithmetic, or one pass over the largest tensor except for what the L2
    cache may hold. It is a fraction of the recorded time, because an earlier edit may have changed the duration.
    """
    minimum, spec = least(graph), gpu_spec_of(graph)
    if spec is None or flops_per_s is None:
        return np.zeros(len(minimum.ns))
    arithmetic_ns = minimum.flops / flops_per_s * 1e9
    # Data that the previous kernel left in the L2 cache do not pass through memory.
    traffic_ns = np.maximum(0.0, minimum.bytes * width - spec.l2_bytes) / spec.memory_bytes_per_s * 1e9
    return np.asarray(np.clip(np.maximum(arithmetic_ns, traffic_ns) / np.maximum(minimum.ns, 1.0), 0.0, 1.0))


@once
def own_peak(graph: Graph) -> Floats:
    """Return the peak rate of the precision each device op computes in, FLOP/s; infinite if unknown."""
    kernels, spec = pieces_of(graph), gpu_spec_of(graph)
    peak = np.full(len(kernels), np.inf)
    if spec is not None:
        is_float32 = (kernels.precision == Precision.FLOAT32) & ~kernels.narrow
        peak[is_float32] = spec.float32_flops_per_s
        peak[is_float32 & kernels.convolves] = spec.fastest_float32_flops_per_s
        peak[(kernels.precision == Precision.TF32) & ~kernels.narrow] = spec.fastest_float32_flops_per_s
        peak[kernels.precision == Precision.HALF] = spec.half_flops_per_s
    return peak


def multiplying(graph: Graph, products: Mask) -> Mask:
    """Mask of all device ops of the operators that these products belong to."""
    op = pieces_of(graph).op
    return np.asarray(products | np.isin(op, np.unique(op[products & (op >= 0)])), bool)


def shrunk(graph: Graph, work: Mask, share: Floats) -> Graph:
    """Return the graph with this fraction left of these ops, without gaps; one kernel may do all work of an operator.

    The launches of its other kernels cost nothing.
    """
    device, host = graph.device, graph.host
    dur_ns = np.where(work, device.dur_ns * share, device.dur_ns)
    gap_ns = np.where(work, np.minimum(device.gap_ns, 0.0), device.gap_ns)
    op = pieces_of(graph).op
    later_ops = np.ones(len(op), bool)
    later_ops[np.unique(op, return_index=True)[1]] = False
    later_ops = device.call[work & later_ops & (op >= 0) & (device.call >= 0)]
    call_factor: Floats = np.ones(len(host))
    call_factor[later_ops[np.diff(host.first_op)[later_ops] == 1]] = 0.0
    cheaper = graph.scaled_before(dict.fromkeys(CALLED, call_factor)).with_host(call_ns=host.call_ns * call_factor)
    return cheaper.with_device(dur_ns=dur_ns, gap_ns=gap_ns)
