"""Another GPU: each piece of device work by the ratio of what the two can do."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family
from gpulab.analysis.kernels.families import is_amd
from gpulab.analysis.kernels.tensor_cores import Precision
from gpulab.analysis.peaks import PEAKS, Peaks
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import noting, once
from gpulab.replay.rewrites.engine.graph_work import LEAST_NS, gpu_of, gpu_peaks, pieces_of
from gpulab.replay.rewrites.kernels.batch_size import inward

SPREAD = (1.25, 0.8)  # of the ratio of two GPUs: medians of kernels do not tell of each network's
BOUND = (0.0, 0.4)  # of a product's time, memory's
LINKED = (1.0, 0.0)  # of the ratio of links, as a power: copies from pageable memory go at the pace of the host
CLOCKS = 0.2  # logarithm of what one generation's clocks differ by from another's, at most

# What kernels reach of the peaks: float32 products, and passes over memory. Half precision: 0.5 to 0.6 on all.
_FLOAT32 = {"T4": 0.48, "V100": 0.94, "A100 40": 0.78, "A100 80": 0.86, "L4": 0.28, "H100": 0.72, "H200": 0.72}
_MEMORY = {"T4": 0.75, "V100": 0.91, "A100": 0.87, "L4": 0.78}
_USUAL_FLOAT32, _USUAL_MEMORY = 0.65, 0.85
IN_TF32 = 0.45  # of the peak in TF32, that convolutions reach

_NAMES = {re.sub(r"[^a-z0-9]", "", peaks.name.lower()): peaks for peaks in PEAKS}
_SHORT = {
    "v100": "v100sxm2", "a100": "a10080gbsxm", "a10080gb": "a10080gbsxm", "h100": "h100sxm", "h200": "h200sxm",
    "a10040": "a10040gb", "3090": "rtx3090", "4090": "rtx4090",
}  # fmt: skip
SPELLED = ("t4", "v100", "a10", "a10g", "l4", "rtx3090", "rtx4090", "a100", "a100-40gb", "h100", "h200", "b200")


def gpu(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The same work on another GPU, with this host.

    Models: products by the ratio of what each GPU reaches in their precision, part of their time by memory's;
    everything else by the ratio of memory rates; work with fewer blocks than either GPU has multiprocessors by what
    one of them does; copies to the device by the link. What it takes to start a kernel stays, and so does the host:
    its Python, its operators, its loading. float32 products outside convolutions stay float32, convolutions use TF32
    where the GPU has it, as PyTorch does by itself.

    Priced from: the makers' figures for both GPUs (gpulab.analysis.peaks), times the share of them that kernels
    reach: medians over some 27,000 kernels that NeuSight's authors measured (MIT licence).

    Cannot know: other kernels for the other GPU, clocks under load (70 W boards reach half of their peak), caches,
    the other machine's CPU. It is a guess of the right order, for deciding what to rent: try an hour first.
    """
    to = target(str(value))
    now = gpu_peaks(graph)
    assert now is not None  # `gpu_lacking` asks
    if to is now:
        return graph
    products, streams = np.log(_products(graph, now, to)), float(np.log(_streaming(to) / _streaming(now)))
    spread = float(np.log(draw.ratio("gpu_reached", *SPREAD)))
    # Part of a product's time is memory's: where that gets faster by less, so does the product.
    slower = np.minimum(0.0, streams - products) * draw.between("gpu_bound", *BOUND)
    found = pieces_of(graph)
    matrix = found.is_family(Family.MATRIX)
    faster = np.where(matrix, products + slower, streams) + spread
    faster = np.where(_few(graph, now, to), np.minimum(faster, _of_one(matrix, products, now, to)), faster)
    faster = np.where(inward(graph), np.log(to.link / now.link) * draw.between("gpu_linked", *LINKED), faster)
    faster = np.where(found.is_family(Family.COLLECTIVE), 0.0, faster)
    dur = graph.device.dur_ns
    least = np.minimum(dur, LEAST_NS)
    return noting(graph.with_device(dur_ns=least + (dur - least) / np.exp(faster)), f"gpu={to.name}")


def _few(graph: Graph, now: Peaks, to: Peaks) -> Mask:
    """Work with fewer blocks than either GPU has multiprocessors: more of them do not help."""
    blocks = pieces_of(graph).blocks
    return np.asarray((blocks > 0) & (blocks < min(now.multiprocessors, to.multiprocessors)), bool)


def _of_one(matrix: Mask, products: Floats, now: Peaks, to: Peaks) -> Floats:
    """By how much one multiprocessor is faster, as a logarithm; for passes over memory, by clocks and little else."""
    return np.where(matrix, np.maximum(0.0, products + np.log(now.multiprocessors / to.multiprocessors)), CLOCKS)


def _streaming(peaks: Peaks) -> float:
    """Bytes per second that passes over memory reach."""
    return peaks.memory * _of(_MEMORY, peaks, _USUAL_MEMORY)


def _plain(peaks: Peaks) -> float:
    """Operations per second that float32 products reach on the ordinary units."""
    return peaks.float32 * _of(_FLOAT32, peaks, _USUAL_FLOAT32)


def _of(table: Mapping[str, float], peaks: Peaks, usual: float) -> float:
    return next((share for name, share in table.items() if peaks.name.startswith(name)), usual)


def _products(graph: Graph, now: Peaks, to: Peaks) -> Floats:
    """For each piece of work how many times as fast the other GPU multiplies, by its peaks in that precision."""
    found = pieces_of(graph)
    ratio = np.full(len(found), _plain(to) / _plain(now))
    # PyTorch convolves in TF32 where there is TF32, and multiplies in it only where it is asked to.
    convolved = found.convolves & (found.precision != Precision.HALF) & ~found.narrow
    if to.tf32 and not now.tf32:
        ratio[convolved] = IN_TF32 * to.tf32 / _plain(now)
    elif now.tf32 and not to.tf32:
        ratio[convolved] = _plain(to) / (IN_TF32 * now.tf32)
    tf32 = found.precision == Precision.TF32
    ratio[tf32] = (IN_TF32 * to.tf32 if to.tf32 else _plain(to)) / (IN_TF32 * (now.tf32 or now.float32))
    ratio[(found.precision == Precision.HALF) | found.narrow] = to.half / now.half
    return ratio


def gpu_ceiling(graph: Graph, value: Value) -> Graph:
    """A GPU that takes no time."""
    return graph.with_device(dur_ns=np.zeros(len(graph.device)))


def target(typed: str) -> Peaks:
    """The GPU of this name. Raises ValueError for one that is not listed."""
    name = re.sub(r"[^a-z0-9]", "", typed.lower()).removeprefix("nvidia").removeprefix("tesla")
    found = _NAMES.get(_SHORT.get(name, name))
    if found is None:
        raise ValueError(f"the GPUs it knows are {', '.join(SPELLED)}")
    return found


def other_gpu(graph: Graph) -> Peaks | None:
    """The GPU that `gpu` moved this graph to; None where it did not."""
    return next((each for each in PEAKS if f"gpu={each.name}" in graph.made), None)


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
    if is_amd(now.name) or gpu_peaks(graph) is None:
        return f"what {now.name} can do is not listed here, so there is nothing to compare with"
    to = target(str(value))
    for kind in sorted(_types(graph)):
        if not _computes(to, kind):
            return f"it holds products in {kind}, and {to.name} has no units for that"
    return None


def _computes(peaks: Peaks, kind: str) -> bool:
    if kind == "bfloat16":
        return peaks.bfloat16 is not None
    least = {"float8": 8.9, "float4": 10.0}[kind]
    return float(peaks.architecture) >= least


def _parse(typed: str) -> Value:
    target(typed)
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
        takes=f"a GPU: {', '.join(SPELLED)}",
        usual=None,
        parse=_parse,
        price="its rent; and its memory may be smaller",
    ),
)
