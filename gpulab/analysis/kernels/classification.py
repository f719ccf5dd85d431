"""What each piece of device work is: its family, the precision it computes in, the operator behind it, its size."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.events.enclosing_operator import holders
from gpulab.analysis.kernels.bytes_moved import moved_bytes
from gpulab.analysis.kernels.families import is_compiled, is_layout, is_optimizer, is_pointwise, is_scattered
from gpulab.analysis.kernels.flops import flops, inputs
from gpulab.analysis.kernels.optimizers import ranges, within
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.kernels.tensor_cores import Cores, maths
from gpulab.hardware.architectures import threads_per_multiprocessor
from gpulab.hardware.precision import Precision
from gpulab.intervals import Ints
from gpulab.run import Gpu, Run
from gpulab.tables import Kind

_NARROW = re.compile(r"half|bfloat16|bf16|fp16|_f16|float8|e4m3|e5m2")
_REDUCES = re.compile(
    r"softmax|norm_kernel|layer_?norm|rms_?norm|gammabeta|reduce_kernel|reduce_1block|nll_loss|cross_entropy|mse_loss"
)
_STREAMS = re.compile(
    r"bn_(?:fw|bw)|batch_?norm|pool|upsample|dropout|cunn_|softmax|layer_?norm|rms_?norm|gammabeta|group_?norm"
    r"|fill|copy_kernel|catarray|threshold|activation|scaletensor|nll_loss|cross_entropy|prelu|gelu|swish|silu|optensor"
)
_CONVOLVES = re.compile(r"conv(?!ert)|fprop|dgrad|wgrad|winograd|scudnn|igemm_|fft2d_|miopen")
_ATTENDS = re.compile(r"flash|sdpa|attn|attention|fmha")


class Family(IntEnum):
    """What limits a piece of work, and what may be done about it."""

    OTHER = 0
    MATRIX = 1  # products, convolutions, fused attention
    STREAM = 2  # passes over memory: elementwise, normalisation, pooling, reductions
    OPTIMIZER = 3
    LAYOUT = 4  # rearranges images from one order of their dimensions to another
    SCATTERED = 5
    COMPILED = 6  # made by a compiler
    COPY = 7
    FILL = 8
    COLLECTIVE = 9


@dataclass(frozen=True, eq=False)
class Pieces:
    """Device work, each with what is known of it. NaN and -1 where the run does not tell."""

    family: Ints
    cores: Ints  # a tensor_cores.Cores each
    precision: Ints  # a tensor_cores.Precision each
    narrow: Mask  # its name says half precision, or less
    reduces: Mask  # normalises or sums up: what autocast keeps in float32
    convolves: Mask  # part of a convolution
    updates: Mask  # called for inside an optimizer's step
    op: Ints  # the operator that called for it, a row of the events
    blocks: Ints
    waves: NDArray[np.float64]  # blocks over those that a GPU of these multiprocessors holds at once
    dur_ns: NDArray[np.float64]  # as recorded
    op_flops: NDArray[np.float64]  # of the whole operator
    op_bytes: NDArray[np.float64]
    op_ns: NDArray[np.float64]  # what all matrix kernels of the operator took

    def __len__(self) -> int:
        return len(self.family)

    def is_family(self, *families: Family) -> Mask:
        """Which are of one of these families."""
        return np.isin(self.family, families)


def pieces(run: Run, event: Ints, caller: Ints, gpu: Gpu | None = None) -> Pieces:
    """What these rows of the events are; `caller`: the row of the call that started each, -1 for none."""
    events = run.event_rows
    names = _Names(run, event)
    op = holders(events, caller)
    updates = within(events, caller, ranges(run))
    family = _families(run, event, names)
    family[(family == Family.STREAM) & updates] = Family.OPTIMIZER
    family[(family == Family.OTHER) & updates & names.which(_is_multi)] = Family.OPTIMIZER
    matrix = family == Family.MATRIX
    dur = events["dur_ns"][event].astype(np.float64)
    amounts = _amounts(run, op, matrix)
    total = np.bincount(op[matrix] + 1, weights=dur[matrix], minlength=int(op.max(initial=-1)) + 2)
    blocks = run.grid_rows.spread("grid", len(events))[event]
    return Pieces(
        family=family,
        cores=names.told(lambda name: int(maths(name).cores)),
        precision=names.told(lambda name: int(maths(name).precision)),
        narrow=names.which(lambda name: bool(_NARROW.search(name.lower()))),
        reduces=names.which(lambda name: bool(_REDUCES.search(name.lower()))),
        convolves=matrix & (_of_convolutions(run, op) | names.which(_convolves)),
        updates=updates,
        op=op,
        blocks=np.asarray(blocks, np.int64),
        waves=_waves(run, event, blocks, gpu),
        dur_ns=dur,
        op_flops=amounts[0],
        op_bytes=amounts[1],
        op_ns=np.where(matrix, total[op + 1], np.nan),
    )


class _Names:
    """Questions to names, each name asked once."""

    def __init__(self, run: Run, event: Ints) -> None:
        words = run.event_rows.words("name")
        self.vocabulary = words.vocabulary
        self.code = words.codes[event]
        self.used = np.unique(self.code[self.code >= 0]).tolist()

    def told(self, ask: Callable[[str], int]) -> Ints:
        answers = np.zeros(len(self.vocabulary) + 1, np.int64)
        for code in self.used:
            answers[code] = ask(self.vocabulary[code])
        return answers[self.code]

    def which(self, ask: Callable[[str], bool]) -> Mask:
        return np.asarray(self.told(lambda name: int(ask(name))) == 1, bool)


def _families(run: Run, event: Ints, names: _Names) -> Ints:
    kind = run.event_rows["kind"][event]
    family = names.told(lambda name: int(family_of(name)))
    for told, meant in ((Kind.MEMCPY, Family.COPY), (Kind.MEMSET, Family.FILL), (Kind.COLLECTIVE, Family.COLLECTIVE)):
        family[kind == told] = int(meant)
    return family


@cache
def family_of(name: str) -> Family:
    """The family of a kernel of this name."""
    for ask, family in (
        (is_compiled, Family.COMPILED),
        (is_optimizer, Family.OPTIMIZER),
        (is_layout, Family.LAYOUT),
        (is_matrix, Family.MATRIX),
        (is_scattered, Family.SCATTERED),
        (is_pointwise, Family.STREAM),
    ):
        if ask(name):
            return family
    return Family.STREAM if _STREAMS.search(name.lower()) else Family.OTHER


def _is_multi(name: str) -> bool:
    return is_optimizer(name) or "foreach" in name.lower()


def _convolves(name: str) -> bool:
    lower = name.lower()
    return bool(_CONVOLVES.search(lower)) and not _ATTENDS.search(lower)


def _of_convolutions(run: Run, op: Ints) -> Mask:
    """Which of these operators, rows of the events, belong to a convolution."""
    return np.asarray((op >= 0) & run.event_rows.matching(lambda word: "conv" in word.lower())[op], bool)


def _waves(run: Run, event: Ints, blocks: Ints, gpu: Gpu | None) -> NDArray[np.float64]:
    """Kineto's occupancy says how many blocks a multiprocessor holds at once: occupancy x threads / block size."""
    waves = np.full(len(event), np.nan)
    if gpu is None or not gpu.multiprocessors or not len(run.grid_rows):
        return waves
    count = len(run.event_rows)
    occupancy = run.grid_rows.spread("occupancy_frac", count)[event].astype(np.float64)
    threads = run.grid_rows.spread("block", count)[event].astype(np.float64)
    told = (blocks > 0) & (threads > 0)
    resident = threads_per_multiprocessor(gpu.compute_capability)
    each = np.where(occupancy > 0, occupancy * resident / np.maximum(threads, 1), 1.0)
    waves[told] = (blocks / (np.maximum(1.0, np.round(each)) * gpu.multiprocessors))[told]
    return waves


def _amounts(run: Run, op: Ints, matrix: Mask) -> NDArray[np.float64]:
    """Arithmetic and least traffic of the operators behind matrix kernels; NaN where sizes do not tell."""
    amounts = np.full((2, len(op)), np.nan)
    shapes = run.shape_rows
    if not len(shapes) or not matrix.any():
        return amounts
    count, names = len(run.event_rows), run.event_rows.words("name")
    codes = [shapes.spread(column, count) for column in ("shapes", "dtypes")]
    known: dict[tuple[int, int, int], tuple[float, float]] = {}
    for row in np.flatnonzero(matrix & (op >= 0)).tolist():
        each = int(op[row])
        key = int(names.codes[each]), int(codes[0][each]), int(codes[1][each])
        if min(key) < 0:
            continue
        if key not in known:
            given = inputs(shapes.words("shapes").vocabulary[key[1]], shapes.words("dtypes").vocabulary[key[2]])
            name = names.vocabulary[key[0]]
            known[key] = flops(name, given) or np.nan, moved_bytes(name, given) or np.nan
        amounts[:, row] = known[key]
    return amounts


def half_share(found: Pieces) -> float:
    """The share of matrix kernel time that is in half precision or less already."""
    matrix = found.is_family(Family.MATRIX)
    time = found.dur_ns
    half = matrix & ((found.precision == Precision.HALF) | found.narrow)
    return float(time[half].sum() / max(1.0, time[matrix].sum()))


def single(found: Pieces, precision: Precision) -> Mask:
    """Matrix kernels in float32 of this kind (FLOAT32 or TF32); those whose names do not tell count as FLOAT32."""
    matrix = found.is_family(Family.MATRIX) & ~found.narrow
    if precision is Precision.TF32:
        return np.asarray(matrix & (found.precision == Precision.TF32), bool)
    plain = (found.precision == Precision.FLOAT32) | (found.precision == Precision.UNKNOWN)
    return np.asarray(matrix & plain & (found.cores != Cores.TENSOR), bool)
