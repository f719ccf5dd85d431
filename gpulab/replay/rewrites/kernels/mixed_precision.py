"""Half precision: matrix kernels made as much faster as this GPU's tensor cores allow, and what autocast adds."""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.kernels.classification import Family, half_share, single
from gpulab.hardware.architectures import has_bfloat16
from gpulab.hardware.precision import Precision, precision_speedup
from gpulab.hardware.vendor import is_amd
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import noting, once
from gpulab.replay.rewrites.engine.graph_work import (
    across,
    calling_ns,
    calls,
    faster,
    gpu_of,
    gpu_spec_of,
    pieces_of,
    training,
)
from gpulab.replay.rewrites.engine.lower_bounds import least_share, multiplying, shrunk
from gpulab.replay.rewrites.machine.other_gpu import other_gpu
from gpulab.wording import percent

# Of the ratio of peaks, what comes out, as powers of it. A V100's factor of 8 gave 3.3x for all of a ResNet-50, which
# is 6x for its products (NVIDIA's DeepLearningExamples); small and oddly shaped ones gain half of that and less.
BEST_POWER, WORST_POWER = 0.85, 0.30
EFFICIENCY = (0.65, 0.25)  # of the peak that products reach in half precision, where their sizes are known
MEMORY_FRAC = 0.7  # of the memory's peak rate that products reach
STREAM_BEST, STREAM_WORST, STREAM_MIXED = 0.5, 0.65, 0.85  # what is left of passes over activations of half the size
CASTS = (0.7, 1.6)  # for each operator that multiplies: 117 on 161 for ResNet-50, 274 on 171 for GPT-2, counted
CAST_COST = (0.2, 0.6)  # of what calling a kernel costs the host here: 2.4 ms for those of a ResNet-50, of 10.4 ms
CAST_NS = (1_500.0, 4_000.0)  # of the device
CAST_TRAFFIC = (0.0, 0.06)  # of the time of the product that reads the result
CHECK_NS = (15_000.0, 40_000.0)  # float16: from the end of the check for overflow until the host knows
SCALER_NS = (50_000.0, 200_000.0)  # of the host, each step
UNSCALE_FRAC = (0.1, 0.4)  # of the optimizer's kernels: one more pass over the gradients
HALF_ALREADY = 0.5  # of matrix kernel time: with more of it in half precision there is little left to gain
WORTH_RATIO = 1.2
_IN_FLOAT32 = re.compile(r"layer_?norm|gammabeta|group_?norm|rowwisemoments")  # by autocast's list, in and out
UNTOLD_FRAC = 0.5


def amp(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Automatic mixed precision: `torch.autocast` around the forward pass, in bfloat16 or float16.

    Models: matrix kernels in float32 and TF32 move to tensor cores in half precision. Where the sizes of their
    inputs were recorded, each takes what arithmetic or traffic takes at 25 to 65 % of this GPU's peak; elsewhere it
    gets faster by the ratio of the peaks to the power 0.3 to 0.85. Passes over activations take 0.5 to 0.65 of their
    time, to 0.85 where layer norms keep part of the activations in float32. Softmax, norms, losses and other
    reductions stay as they are, as does the optimizer. Casts are added with their calls, 0.7 to 1.6 for each operator
    that multiplies, and for float16 the gradient scaler: one wait of the host for the GPU in each step.

    Priced from: this GPU's peaks as its maker states them (gpulab.hardware.gpus); the number of casts counted on
    ResNet-50 and GPT-2; NVIDIA's published ResNet-50 on V100, 3.26x where the GPU limits.

    Cannot know: whether your sizes are multiples of 8, which tensor cores want; which kernels cuDNN then picks;
    whether the loss still falls.
    """
    to = _dtype(graph, value)
    matrix, stream = _products(graph), _activations(graph)
    factor = np.where(matrix, _matrix_factor(graph, draw), 1.0)
    factor[stream] = draw.between("amp_stream", STREAM_BEST, _stream_worst(graph))
    casts = _casts(graph, draw)
    dur = faster(graph.device.dur_ns, factor)
    traffic = draw.between("amp_cast_traffic", *CAST_TRAFFIC)
    dur = dur + matrix * (casts * draw.between("amp_cast", *CAST_NS) + traffic * graph.device.dur_ns * factor)
    cast = noting(_with_casts(graph.with_device(dur_ns=dur), casts, draw), "amp")
    return _with_scaler(cast, draw) if to == "fp16" and training(graph) else cast


def amp_ceiling(graph: Graph, value: Value) -> Graph:
    """Products at the peak, passes over memory half as wide, and no casts; nothing where sizes do not bound it.

    By no ratio of peaks: products in half precision may come nearer to theirs than those in float32 do. Where sizes
    were recorded, a product takes its arithmetic over the peak, and a pass one way over its largest tensor at half its
    width, but for what the cache may hold. All else that autocast may narrow takes nothing.
    """
    spec = other_gpu(graph) or gpu_spec_of(graph)
    share = least_share(graph, spec.half_flops_per_s if spec else None, width=0.5)
    return noting(shrunk(graph, _narrowed(graph), share), "amp")


@once
def _narrowed(graph: Graph) -> Mask:
    """What may become narrower, or another kernel: all work that is not kept in float32, and not the optimizer's."""
    found = pieces_of(graph)
    kept = graph.run.event_rows.matching(lambda word: _IN_FLOAT32.search(word.lower()))[graph.device.event]
    matrix = found.is_family(Family.MATRIX)
    elsewhere = found.is_family(Family.COLLECTIVE, Family.OPTIMIZER) | found.updates | across(graph) | kept
    return np.asarray(multiplying(graph, _products(graph)) | ~(matrix | elsewhere | found.narrow), bool)


def _dtype(graph: Graph, value: Value) -> str:
    if isinstance(value, str):
        return value
    return "bf16" if _has_bfloat16(graph) else "fp16"


def _has_bfloat16(graph: Graph) -> bool:
    spec = other_gpu(graph) or gpu_spec_of(graph)
    return has_bfloat16(gpu_of(graph)) if spec is None else spec.bfloat16_flops_per_s is not None


@once
def _products(graph: Graph) -> Mask:
    found = pieces_of(graph)
    return single(found, Precision.FLOAT32) | single(found, Precision.TF32)


@once
def _activations(graph: Graph) -> Mask:
    """Passes over what a model computes; not those that autocast keeps in float32, nor what is narrow already."""
    found = pieces_of(graph)
    return found.is_family(Family.STREAM, Family.COMPILED) & ~found.reduces & ~found.narrow & ~found.updates


def _ratios(graph: Graph) -> Floats:
    """How many times as fast half precision is at most, for each piece; 1 where it is no product in float32 or TF32."""
    other = other_gpu(graph)
    if other is None:
        return _own_ratios(graph)
    found = pieces_of(graph)
    in_tf32 = found.convolves | (found.precision == Precision.TF32)
    float32 = np.where(in_tf32, other.fastest_float32_flops_per_s, other.float32_flops_per_s)
    ratio = other.half_flops_per_s / float32
    return np.where(_products(graph), np.maximum(ratio, 1.0), 1.0)


@once
def _own_ratios(graph: Graph) -> Floats:
    found, gpu = pieces_of(graph), gpu_of(graph)
    ratio = np.ones(len(found))
    for precision in (Precision.FLOAT32, Precision.TF32):
        ratio[single(found, precision)] = precision_speedup(gpu, Precision.HALF, precision) or 1.0
    return np.maximum(ratio, 1.0)


def _matrix_factor(graph: Graph, draw: Draw) -> Floats:
    """What is left of each product; by its sizes where they are known, else by the ratio of peaks."""
    ratio, found, spec = _ratios(graph), pieces_of(graph), gpu_spec_of(graph)
    factor = ratio ** -draw.between("amp_matrix", BEST_POWER, WORST_POWER)
    if spec is None or other_gpu(graph) is not None:
        return factor
    arithmetic_ns = found.op_flops / (spec.half_flops_per_s * draw.between("amp_efficiency", *EFFICIENCY)) * 1e9
    traffic_ns = found.op_bytes / 2 / (spec.memory_bytes_per_s * MEMORY_FRAC) * 1e9
    known = np.isfinite(found.op_flops) & (found.op_ns > 0)
    told = np.fmax(arithmetic_ns, traffic_ns)[known] / found.op_ns[known]
    factor[known] = np.clip(told, 1 / ratio[known], 1.0)
    return factor


@once
def _stream_worst(graph: Graph) -> float:
    """Layer norms give float32, and what is added to it stays float32: half of the passes are as large as before."""
    names = graph.run.event_rows.words("name").vocabulary
    return STREAM_MIXED if any("layer_norm" in name or "LayerNorm" in name for name in names) else STREAM_WORST


def _casts(graph: Graph, draw: Draw) -> float:
    """Casts for each matrix kernel."""
    return draw.between("amp_casts", *CASTS) * _operators(graph)


@once
def _operators(graph: Graph) -> float:
    """Operators for each matrix kernel: one of them may be several kernels. Where none is known, each is one."""
    found = pieces_of(graph)
    op = found.op[_products(graph)]
    return len(np.unique(op)) / len(op) if len(op) and (op >= 0).all() else 1.0


def _with_casts(graph: Graph, casts: float, draw: Draw) -> Graph:
    """The calls of casts, before the calls of the products that read their results."""
    told = calls(graph)
    model = told.model & told.launches
    each = float(calling_ns(graph)[model].mean()) if model.any() else 0.0
    added = _multiplies(graph) * casts * each * draw.between("amp_cast_call", *CAST_COST)
    return graph.with_more_before("dispatch", added)


@once
def _multiplies(graph: Graph) -> Mask:
    """Stops that start one kernel, and that a product."""
    matrix = np.append(_products(graph), False)
    return np.asarray(calls(graph).launches & matrix[graph.host.first[:-1]], bool)


def _with_scaler(graph: Graph, draw: Draw) -> Graph:
    """The gradient scaler: before the optimizer's step gradients are unscaled, and the host waits to know whether."""
    opens = calls(graph).opens
    last = graph.host.first[opens] - 1
    opens, last = opens[last >= 0], last[last >= 0]
    wait, wait_ns = graph.host.wait.copy(), graph.host.wait_ns.copy()
    wait[opens] = np.maximum(wait[opens], last)
    wait_ns[opens] = np.maximum(wait_ns[opens], draw.between("amp_check", *CHECK_NS))
    added = np.zeros(len(graph.host))
    added[opens] = draw.between("amp_scaler", *SCALER_NS)
    dur = graph.device.dur_ns.copy()
    optimizer_ns = float(dur[pieces_of(graph).is_family(Family.OPTIMIZER)].sum()) / max(1, len(opens))
    np.add.at(dur, last, optimizer_ns * draw.between("amp_unscale", *UNSCALE_FRAC))
    return graph.with_device(dur_ns=dur).with_host(wait=wait, wait_ns=wait_ns).with_more_before("dispatch", added)


def amp_lacking(graph: Graph, value: Value) -> str | None:
    """Why half precision cannot be told."""
    if (why := no_products(graph)) is not None:
        return why
    gpu, found = gpu_of(graph), pieces_of(graph)
    name = gpu.name if gpu else "this GPU"
    share = half_share(found)
    if share > HALF_ALREADY:
        return f"{percent(share)} of the time of its matrix products is in half precision already"
    products = _products(graph)
    if not products.any():
        return "none of its matrix products is in float32"
    if precision_speedup(gpu, Precision.HALF, Precision.FLOAT32) is None:
        return f"what {name} computes in half precision is not known here"
    ratio = float(np.average(_ratios(graph)[products], weights=found.dur_ns[products] + 1))
    if ratio < WORTH_RATIO:
        return f"{name} computes half precision no faster than what it computes now"
    if value == "bf16" and not _has_bfloat16(graph):
        return f"{name} has no units for bfloat16; ask for amp=fp16"
    return None


def no_products(graph: Graph) -> str | None:
    """Why nothing can be told of the precision of matrix products."""
    if not graph.on_gpu:
        return "the run holds no work of a GPU"
    gpu, found = gpu_of(graph), pieces_of(graph)
    if gpu is not None and is_amd(gpu.name):
        return "the names of AMD's matrix kernels do not tell how they compute"
    matrix = found.is_family(Family.MATRIX)
    if not found.dur_ns[matrix].sum() > 0:
        return "it holds no matrix products"
    untold = matrix & (found.precision == Precision.UNKNOWN) & ~found.narrow
    share = found.dur_ns[untold].sum() / found.dur_ns[matrix].sum()
    if share > UNTOLD_FRAC:
        return f"the names of {percent(share)} of its matrix kernels, by time, do not tell their precision"
    return None


def _amp_dtype(typed: str) -> Value:
    named = {"bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "half": "fp16"}.get(typed.lower())
    if named is None:
        raise ValueError("autocast computes in bf16 or fp16")
    return named


def _amp_code(graph: Graph, value: Value) -> str:
    dtype = {"bf16": "bfloat16", "fp16": "float16"}[_dtype(graph, value)]
    model = next((each.name for each in graph.run.models if each.name), "model")
    code = f'{model}.forward = torch.autocast("cuda", dtype=torch.{dtype})({model}.forward)'
    if dtype == "bfloat16" or not training(graph):
        return code
    optimizer = next((each.name for each in graph.run.optimizers if each.name), "optimizer")
    return (
        f'{code}\nscaler = torch.amp.GradScaler("cuda")\n'
        "# in place of loss.backward() and optimizer.step():\n"
        f"scaler.scale(loss).backward()\nscaler.step({optimizer})\nscaler.update()"
    )


PRECISION = (
    Rewrite(
        name="amp",
        edit=amp,
        ceiling=amp_ceiling,
        grade="C",
        about="matrix products in half precision, by autocast",
        ceiling_means="even half precision at its peak, without casts,",
        lacking=amp_lacking,
        takes="bf16 or fp16; without either, to the one that the GPU has units for",
        parse=_amp_dtype,
        price="watch the loss over the first few hundred steps; float16 also needs a gradient scaler",
        code=_amp_code,
    ),
)
