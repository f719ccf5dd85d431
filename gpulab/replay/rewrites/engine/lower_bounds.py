"""What device work takes at the least on its GPU, whichever kernel does it: what a ceiling may stand on.

A ratio of peaks bounds nothing: a kernel at a quarter of one peak may be followed by one at nine tenths of another.
What must be computed and what must pass through memory bounds it; where sizes do not tell that, only nothing does.
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
    """For each piece of device work, of the operator behind it."""

    flops: Floats  # that no way of multiplying goes below; 0 where not known, or where it multiplies nothing
    bytes: Floats  # of its largest tensor, where one pass reads or writes all of it; else 0
    ns: Floats  # what all device work of the operator took


@once
def least(graph: Graph) -> Least:
    """What must be done, as far as recorded sizes tell."""
    found = pieces_of(graph)
    matrix = found.is_family(Family.MATRIX)
    passes = found.is_family(Family.STREAM) & ~found.reduces
    flops, size = _amounts(graph, matrix | passes)
    total = np.bincount(found.op + 1, weights=found.dur_ns, minlength=int(found.op.max(initial=-1)) + 2)
    ns = np.where(found.op >= 0, total[found.op + 1], found.dur_ns) if len(found) else found.dur_ns
    # The parts of a product that are added up by a kernel of their own are the product's as well.
    multiplies = np.isin(found.op, np.unique(found.op[matrix & (found.op >= 0)]))
    return Least(np.where(multiplies, flops, 0.0), np.where(passes & ~multiplies, size, 0.0), ns)


def _amounts(graph: Graph, wanted: Mask) -> tuple[Floats, Floats]:
    """Arithmetic and the largest tensor of the operator behind each piece; 0 where its sizes were not recorded."""
    run, op = graph.run, pieces_of(graph).op
    flops, size = np.zeros(len(op)), np.zeros(len(op))
    shapes = run.shape_rows
    known = np.isin(op, np.unique(op[wanted & (op >= 0)]))
    if not len(shapes) or not known.any():
        return flops, size
    names, count = run.event_rows.words("name"), len(run.event_rows)
    given, types = (shapes.spread(column, count)[op[known]] for column in ("shapes", "dtypes"))
    keys, place = np.unique(np.stack([names.codes[op[known]], given, types]), axis=1, return_inverse=True)
    told = np.zeros((2, keys.shape[1]))
    for column, (name, shape, dtype) in enumerate(keys.T.tolist()):
        if min(name, shape, dtype) >= 0:
            sizes = inputs(shapes.words("shapes").vocabulary[shape], shapes.words("dtypes").vocabulary[dtype])
            told[:, column] = least_flops(names.vocabulary[name], sizes) or 0.0, largest_bytes(sizes)
    flops[known], size[known] = told[:, place.reshape(-1)]
    return flops, size


def least_share(graph: Graph, flops_per_s: float | Floats | None, *, width: float = 1.0) -> Floats:
    """Of the time of each piece, what must be left where products reach this peak and numbers are so much narrower.

    0 where nothing bounds it. Only its arithmetic, or one pass over its largest tensor but for what the cache may
    hold, counts; and that as a share of what it took, as an edit before may have changed how long it takes.
    """
    told, spec = least(graph), gpu_spec_of(graph)
    if spec is None or flops_per_s is None:
        return np.zeros(len(told.ns))
    arithmetic_ns = told.flops / flops_per_s * 1e9
    # What the kernel before left in the L2 cache need not pass through memory.
    traffic_ns = np.maximum(0.0, told.bytes * width - spec.l2_bytes) / spec.memory_bytes_per_s * 1e9
    return np.asarray(np.clip(np.maximum(arithmetic_ns, traffic_ns) / np.maximum(told.ns, 1.0), 0.0, 1.0))


@once
def own_peak(graph: Graph) -> Floats:
    """For each piece the peak of the precision it computes in, FLOP/s; infinite where that is not known."""
    found, spec = pieces_of(graph), gpu_spec_of(graph)
    peak = np.full(len(found), np.inf)
    if spec is not None:
        plain = (found.precision == Precision.FLOAT32) & ~found.narrow
        peak[plain] = spec.float32_flops_per_s
        peak[plain & found.convolves] = spec.fastest_float32_flops_per_s
        peak[(found.precision == Precision.TF32) & ~found.narrow] = spec.fastest_float32_flops_per_s
        peak[found.precision == Precision.HALF] = spec.half_flops_per_s
    return peak


def multiplying(graph: Graph, products: Mask) -> Mask:
    """All device work of the operators that these products belong to."""
    op = pieces_of(graph).op
    return np.asarray(products | np.isin(op, np.unique(op[products & (op >= 0)])), bool)


def shrunk(graph: Graph, work: Mask, share: Floats) -> Graph:
    """The graph where this share is left of this work, right behind what was before; one kernel may do an operator's.

    What called for its other kernels costs nothing.
    """
    device, host = graph.device, graph.host
    dur = np.where(work, device.dur_ns * share, device.dur_ns)
    turn = np.where(work, np.minimum(device.turn_ns, 0.0), device.turn_ns)
    op = pieces_of(graph).op
    later = np.ones(len(op), bool)
    later[np.unique(op, return_index=True)[1]] = False
    later = device.call[work & later & (op >= 0) & (device.call >= 0)]
    kept: Floats = np.ones(len(host))
    kept[later[np.diff(host.first)[later] == 1]] = 0.0
    left = graph.scaled_before(dict.fromkeys(CALLED, kept)).with_host(own_ns=host.own_ns * kept)
    return left.with_device(dur_ns=dur, turn_ns=turn)
