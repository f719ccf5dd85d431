"""Channels last: images in the order that tensor cores read, so that nothing rearranges them in between."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.analysis.kernels.tensor_cores import Cores
from gpulab.hardware.precision import Precision
from gpulab.replay.graph.graph import CALLING, Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.graph_work import across, faster, gpu_spec_of, pieces_of
from gpulab.replay.rewrites.engine.lower_bounds import least_share, multiplying, shrunk
from gpulab.replay.rewrites.machine.other_gpu import other_gpu

ON_TENSOR_CORES = (0.70, 0.97)  # of a convolution's time, beside what its own conversions took
ON_PLAIN_CORES = (0.92, 1.15)  # in float32 on the ordinary units channels last is often no faster, or slower
LAST_ALREADY = 0.5


def channels_last(graph: Graph, value: Value, draw: Draw) -> Graph:
    """`model.to(memory_format=torch.channels_last)`, and batches likewise.

    Models: kernels that only rearrange images (nchwToNhwc and their like) are gone, with their launches. Convolutions
    on tensor cores take 0.70 to 0.97 of their time; those in float32 on the ordinary units 0.92 to 1.15.

    Priced from: kernels' names in this run; PyTorch's and NVIDIA's published comparisons of the two layouts.

    Cannot know: which kernels cuDNN picks for the other layout, and operators that turn it back (reshape, view).
    """
    tensor, plain = draw.between("layout_tensor", *ON_TENSOR_CORES), draw.between("layout_plain", *ON_PLAIN_CORES)
    return _converted(graph, tensor, plain)


def channels_last_ceiling(graph: Graph, value: Value) -> Graph:
    """No rearranging; convolutions at the peak where their sizes tell it, passes over memory at its rate, else nothing.

    Pooling and norms read images as well: in the other order they may be several times as fast.
    """
    found, spec = pieces_of(graph), other_gpu(graph) or gpu_spec_of(graph)
    share = np.zeros(len(found))
    if spec is not None:
        tensor = _on_tensor_cores(graph) | (found.narrow | (found.precision == Precision.HALF))
        peak = np.where(tensor, spec.half_flops_per_s, spec.fastest_float32_flops_per_s)
        share = least_share(graph, peak)
    passes = found.is_family(Family.STREAM, Family.COMPILED, Family.OTHER, Family.COPY) & ~found.updates
    passes &= ~across(graph)
    return shrunk(_converted(graph, 1.0, 1.0), multiplying(graph, found.convolves) | passes, share)


def _converted(graph: Graph, tensor: float, plain: float) -> Graph:
    device, found = graph.device, pieces_of(graph)
    factor = np.where(_on_tensor_cores(graph), tensor, plain)
    dur = np.where(found.convolves, faster(device.dur_ns, factor), device.dur_ns)
    gone = found.is_family(Family.LAYOUT)
    dur = np.where(gone, 0.0, dur)
    turn = np.where(gone, 0.0, device.turn_ns)
    calls = device.call[gone & (device.call >= 0)]
    alone = calls[np.diff(graph.host.first)[calls] == 1]
    kept: Floats = np.ones(len(graph.host))
    kept[alone] = 0.0
    return (
        graph.scaled_before(dict.fromkeys(CALLING, kept))
        .with_host(own_ns=graph.host.own_ns * kept)
        .with_device(dur_ns=dur, turn_ns=turn)
    )


def _on_tensor_cores(graph: Graph) -> Mask:
    """Convolutions that run on tensor cores; by word of `amp` all of them."""
    found = pieces_of(graph)
    if "amp" in graph.made:
        return found.convolves
    half = (found.precision == Precision.HALF) | (found.precision == Precision.TF32) | found.narrow
    return np.asarray(found.convolves & ((found.cores == Cores.TENSOR) | half), bool)


def channels_last_lacking(graph: Graph, value: Value) -> str | None:
    """Why another layout cannot be told."""
    if not graph.on_gpu:
        return "the run holds no work of a GPU"
    found = pieces_of(graph)
    if not found.convolves.any():
        return "it holds no convolutions"
    last = graph.run.event_rows.matching(lambda word: "nhwc" in word.lower())[graph.device.event]
    time = found.dur_ns
    if not found.is_family(Family.LAYOUT).any() and (
        time[found.convolves & last].sum() > LAST_ALREADY * time[found.convolves].sum()
    ):
        return "its convolutions read channels last already"
    return None


LAYOUT = (
    Rewrite(
        name="channels_last",
        edit=channels_last,
        ceiling=channels_last_ceiling,
        grade="C",
        about="images stored with their channels last",
        ceiling_means="even convolutions at the peak, with nothing to rearrange,",
        lacking=channels_last_lacking,
        price="batches must be converted as well, and custom operators must keep the order",
        code=lambda graph, value: "model = model.to(memory_format=torch.channels_last)",
    ),
)
