"""Another GPU: each piece of device work by the ratio of what the two can do."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.hardware.architectures import has_float4, has_float8
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.hardware.precision import Precision
from gpulab.hardware.vendor import is_amd
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import noting, once
from gpulab.replay.rewrites.engine.graph_work import LEAST_NS, gpu_of, gpu_spec_of, pieces_of
from gpulab.replay.rewrites.kernels.batch_size import inward

SPREAD = (1.25, 0.8)  # of the ratio of two GPUs: medians of kernels do not tell of each network's
BOUND = (0.0, 0.4)  # of a product's time, memory's
LINKED = (1.0, 0.0)  # of the ratio of links, as a power: copies from pageable memory go at the pace of the host
CLOCKS = 0.2  # logarithm of what one generation's clocks differ by from another's, at most

IN_TF32 = 0.45  # of the peak in TF32, that convolutions reach; in half precision they reach 0.5 to 0.6 on all GPUs
SHORT_NAMES = tuple(spec.aliases[0] for spec in SPECS)


def gpu(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The same work on another GPU, with this host.

    Models: products by the ratio of what each GPU reaches in their precision, part of their time by memory's;
    everything else by the ratio of memory rates; work with fewer blocks than either GPU has multiprocessors by what
    one of them does; copies to the device by the link. What it takes to start a kernel stays, and so does the host:
    its Python, its operators, its loading. float32 products outside convolutions stay float32, convolutions use TF32
    where the GPU has it, as PyTorch does by itself.

    Priced from: the makers' figures for both GPUs (gpulab.hardware.gpus), times the share of them that kernels
    reach: medians over some 27,000 kernels that NeuSight's authors measured (MIT licence).

    Cannot know: other kernels for the other GPU, clocks under load (70 W boards reach half of their peak), caches,
    the other machine's CPU. It is a guess of the right order, for deciding what to rent: try an hour first.
    """
    to = resolve(str(value))
    now = gpu_spec_of(graph)
    assert now is not None  # `gpu_lacking` asks
    if to.computes_like(now):
        return graph
    products, streams = np.log(_products(graph, now, to)), float(np.log(_streaming(to) / _streaming(now)))
    spread = float(np.log(draw.ratio("gpu_reached", *SPREAD)))
    # Part of a product's time is memory's: where that gets faster by less, so does the product.
    slower = np.minimum(0.0, streams - products) * draw.between("gpu_bound", *BOUND)
    found = pieces_of(graph)
    matrix = found.is_family(Family.MATRIX)
    faster = np.where(matrix, products + slower, streams) + spread
    faster = np.where(_few(graph, now, to), np.minimum(faster, _of_one(matrix, products, now, to)), faster)
    linked = np.log(to.link_bytes_per_s / now.link_bytes_per_s) * draw.between("gpu_linked", *LINKED)
    faster = np.where(inward(graph), linked, faster)
    faster = np.where(found.is_family(Family.COLLECTIVE), 0.0, faster)
    dur = graph.device.dur_ns
    least = np.minimum(dur, LEAST_NS)
    return noting(graph.with_device(dur_ns=least + (dur - least) / np.exp(faster)), f"gpu={to.name}")


def _few(graph: Graph, now: GpuSpec, to: GpuSpec) -> Mask:
    """Work with fewer blocks than either GPU has multiprocessors: more of them do not help."""
    blocks = pieces_of(graph).blocks
    return np.asarray((blocks > 0) & (blocks < min(now.multiprocessors, to.multiprocessors)), bool)


def _of_one(matrix: Mask, products: Floats, now: GpuSpec, to: GpuSpec) -> Floats:
    """By how much one multiprocessor is faster, as a logarithm; for passes over memory, by clocks and little else."""
    return np.where(matrix, np.maximum(0.0, products + np.log(now.multiprocessors / to.multiprocessors)), CLOCKS)


def _streaming(spec: GpuSpec) -> float:
    """Bytes per second that passes over memory reach."""
    return spec.memory_bytes_per_s * spec.shares.streaming


def _plain(spec: GpuSpec) -> float:
    """Operations per second that float32 products reach on the ordinary units."""
    return spec.float32_flops_per_s * spec.shares.float32_gemm


def _products(graph: Graph, now: GpuSpec, to: GpuSpec) -> Floats:
    """For each piece of work how many times as fast the other GPU multiplies, by its peaks in that precision."""
    found = pieces_of(graph)
    ratio = np.full(len(found), _plain(to) / _plain(now))
    # PyTorch convolves in TF32 where there is TF32, and multiplies in it only where it is asked to.
    convolved = found.convolves & (found.precision != Precision.HALF) & ~found.narrow
    if to.tf32_flops_per_s and not now.tf32_flops_per_s:
        ratio[convolved] = IN_TF32 * to.tf32_flops_per_s / _plain(now)
    elif now.tf32_flops_per_s and not to.tf32_flops_per_s:
        ratio[convolved] = _plain(to) / (IN_TF32 * now.tf32_flops_per_s)
    tf32 = found.precision == Precision.TF32
    then = IN_TF32 * to.tf32_flops_per_s if to.tf32_flops_per_s else _plain(to)
    ratio[tf32] = then / (IN_TF32 * now.fastest_float32_flops_per_s)
    ratio[(found.precision == Precision.HALF) | found.narrow] = to.half_flops_per_s / now.half_flops_per_s
    return ratio


def gpu_ceiling(graph: Graph, value: Value) -> Graph:
    """A GPU that takes no time."""
    return graph.with_device(dur_ns=np.zeros(len(graph.device)))


def other_gpu(graph: Graph) -> GpuSpec | None:
    """The GPU that `gpu` moved this graph to; None where it did not."""
    return next((each for each in SPECS if f"gpu={each.name}" in graph.made), None)


@once
def _types(graph: Graph) -> frozenset[str]:
    """Which narrow types the matrix kernels of the run name: "bfloat16", "float8", "float4"."""
    names = graph.run.event_rows.words("name")
    matrix = graph.device.event[pieces_of(graph).is_family(Family.MATRIX)]
    codes = np.unique(names.codes[matrix])
    words = [names.vocabulary[code].lower() for code in codes[codes >= 0].tolist()]
    spelled = {"bfloat16": ("bf16", "bfloat16"), "float8": ("e4m3", "e5m2"), "float4": ("e2m1",)}
    return frozenset(kind for kind, parts in spelled.items() if any(part in word for part in parts for word in words))


def gpu_lacking(graph: Graph, value: Value) -> str | None:
    """Why another GPU cannot be told."""
    now = gpu_of(graph)
    if now is None:
        return "the run holds no work of a GPU"
    if is_amd(now.name) or gpu_spec_of(graph) is None:
        return f"what {now.name} can do is not listed here, so there is nothing to compare with"
    to = resolve(str(value))
    for kind in sorted(_types(graph)):
        if not _computes(to, kind):
            return f"it holds products in {kind}, and {to.name} has no units for that"
    return None


def _computes(spec: GpuSpec, kind: str) -> bool:
    if kind == "bfloat16":
        return spec.bfloat16_flops_per_s is not None
    return {"float8": has_float8, "float4": has_float4}[kind](spec.compute_capability)


def _parse(typed: str) -> Value:
    resolve(typed)
    return typed.lower()


HARDWARE = (
    Rewrite(
        name="gpu",
        edit=gpu,
        ceiling=gpu_ceiling,
        grade="D",
        about="the same work on another GPU",
        ceiling_means="a GPU infinitely fast",
        lacking=gpu_lacking,
        takes=f"a GPU: {', '.join(SHORT_NAMES)}",
        usual=None,
        parse=_parse,
        price="its rent; and its memory may be smaller",
    ),
)
