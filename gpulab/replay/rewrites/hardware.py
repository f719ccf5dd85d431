"""Another GPU: each piece of device work by the ratio of what the two can do."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.families import is_amd
from gpulab.analysis.peaks import PEAKS, Peaks
from gpulab.analysis.pieces import Family
from gpulab.analysis.tensor_cores import Precision
from gpulab.analysis.work import Mask
from gpulab.replay.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.batch import inward
from gpulab.replay.rewrites.once import made, noting, once
from gpulab.replay.rewrites.work import LEAST_NS, gpu_of, gpu_peaks, pieces_of

REACHED = (1.1, 0.65)  # of a ratio of peaks, as a power: newer GPUs are harder to fill
STREAMED = (1.05, 0.8)  # the same for memory traffic, which every GPU reaches 0.7 to 0.9 of
BOUND = (0.0, 0.6)  # of a product's time, memory's
CLOCKS = 0.2  # logarithm of what one generation's clocks differ by from another's, at most
LINKED = (1.0, 0.0)  # the same for the link to the host: copies from pageable memory go at the pace of the host

_NAMES = {re.sub(r"[^a-z0-9]", "", peaks.name.lower()): peaks for peaks in PEAKS}
_SHORT = {
    "v100": "v100sxm2", "a100": "a10080gbsxm", "a10080gb": "a10080gbsxm", "h100": "h100sxm", "h200": "h200sxm",
    "3090": "rtx3090", "4090": "rtx4090",
}  # fmt: skip
SPELLED = ("t4", "v100", "a10", "a10g", "l4", "rtx3090", "rtx4090", "a100", "h100", "h200", "b200")


def gpu(graph: Graph, value: Value, draw: Draw) -> Graph:
    """The same work on another GPU, with this host.

    Models: products by the ratio of peaks in their precision, between that and the ratio of memory rates; everything
    else by the ratio of memory rates; work with fewer blocks than either GPU has multiprocessors by what one of them
    does; copies to the device by the link. What it takes to start a kernel stays, and so does the host: its Python,
    its operators, its loading. float32 products outside convolutions stay float32 where TF32 is not on by itself.

    Priced from: the makers' figures for both GPUs (gpulab.analysis.peaks).

    Cannot know: other kernels for the other GPU, clocks under load (70 W boards reach half of their peak), caches,
    the other machine's CPU. It is a guess of the right order, for deciding what to rent: try an hour first.
    """
    to = target(str(value))
    now = gpu_peaks(graph)
    assert now is not None  # `gpu_lacking` asks
    products, streams = np.log(_products(graph, now, to)), np.log(to.memory / now.memory)
    reached, streamed = draw.between("gpu_reached", *REACHED), draw.between("gpu_streamed", *STREAMED)
    # Part of a product's time is memory's: where that gets faster by less, so does the product.
    slower = np.minimum(0.0, streams - products) * draw.between("gpu_bound", *BOUND)
    found = pieces_of(graph)
    matrix = found.is_family(Family.MATRIX)
    faster = np.where(matrix, _power(products + slower, reached), _power(np.full(len(found), streams), streamed))
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


def _power(logarithm: Floats, power: float) -> Floats:
    """The power of a ratio, as logarithms; a smaller power is worse, whether the ratio is above one or below."""
    return np.where(logarithm >= 0, logarithm * power, logarithm / power)


def _products(graph: Graph, now: Peaks, to: Peaks) -> Floats:
    """For each piece of work how many times as fast the other GPU multiplies, by its peaks in that precision."""
    found = pieces_of(graph)
    ratio = np.full(len(found), to.float32 / now.float32)
    # PyTorch convolves in TF32 where there is TF32, and multiplies in it only where it is asked to.
    convolved = found.convolves & (found.precision != Precision.HALF) & ~found.narrow
    ratio[convolved] = (to.tf32 or to.float32) / now.float32
    tf32 = found.precision == Precision.TF32
    ratio[tf32] = (to.tf32 or to.float32) / (now.tf32 or now.float32)
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
    return next((each for each in PEAKS if made(graph, f"gpu={each.name}")), None)


@once
def _in_bfloat16(graph: Graph) -> bool:
    """Whether matrix kernels of the run name bfloat16."""
    names = graph.run.event_rows.words("name")
    bfloat = names.matching("bf16" in word.lower() or "bfloat16" in word.lower() for word in names.vocabulary)
    return bool((bfloat[graph.device.event] & pieces_of(graph).is_family(Family.MATRIX)).any())


def gpu_lacking(graph: Graph, value: Value) -> str | None:
    """Why another GPU cannot be told."""
    now = gpu_of(graph)
    if now is None:
        return "the run holds no work of a GPU"
    if is_amd(now.name) or gpu_peaks(graph) is None:
        return f"what {now.name} can do is not listed here, so there is nothing to compare with"
    to = target(str(value))
    if to.bfloat16 is None and _in_bfloat16(graph):
        return f"its products are in bfloat16, and {to.name} has no units for that"
    return None


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
