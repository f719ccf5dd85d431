"""Chains of elementwise work: kernels or operators in a row, each of which reads what the one before it wrote.

A compiler makes one of them all; PyTorch's own fused operators (gelu, layer_norm, scaled_dot_product_attention) are
each one already. What a chain computes is guessed from what its parts are called.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.device_work import Mask
from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.kernels.families import is_compiled, is_optimizer, is_pointwise, is_softmax
from gpulab.analysis.kernels.flops import inputs
from gpulab.analysis.kernels.fusion_patterns import Formula, formula, parts_of
from gpulab.analysis.kernels.interior import Interior
from gpulab.analysis.kernels.optimizers import ranges, within
from gpulab.analysis.kernels.repeats import Repeats, keyed, repeats
from gpulab.analysis.kernels.table import is_matrix
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, Spans
from gpulab.run import Run
from gpulab.tables import Kind

LEAST = 3  # two in a row are common in any model: an activation and the addition that follows
REPEATED_FRAC = 0.5  # of what chains cost: from here on they are the rounds of a loop
# Parts that may follow one of their own kind on the same data: sums of sums, but no softmax of a softmax.
ACCUMULATING = frozenset({"add", "subtract", "multiply", "divide", "choose"})
REAL_NS = 10_000  # shorter operators on a CPU are mostly their call, and their cost is that of calling


@dataclass(frozen=True, kw_only=True)
class Chains:
    """The chains of the interior steps."""

    unit: str  # "kernel" or "operator"
    count: int  # chains in a typical step
    pieces: float  # in a chain, on average
    cost_ns: int  # what all of them cost a typical step
    formulas: tuple[tuple[Formula, int], ...]  # what they compute, as far as known, and what that costs, most first
    sized: bool  # that they work on equally many elements is told, by sizes or by blocks
    repeated: bool  # most of them are the rounds of a loop, which could be one chain on all its data at once
    compiled: bool  # some of the work of these steps was made by a compiler
    spans: Spans


def chains_on_gpu(kernels: Interior) -> Chains | None:
    """Elementwise kernels in a row on one stream; None where there is no such row."""
    own = ~within(kernels.run.event_rows, kernels.call, ranges(kernels.run)) & ~kernels.which(is_optimizer)
    order = np.argsort(kernels["stream"], kind="stable")  # within a stream in order of time
    stream = kernels["stream"][order]
    pointwise = (kernels.which(is_pointwise) & own)[order]
    words = parts_of(kernels.run.event_rows.words("name").vocabulary, kernels.codes)
    names, time = kernels.code.astype(np.int64)[order], kernels["dur_ns"][order]
    size, grid = _elements(kernels.run, kernels.op)[order], _grid(kernels)[order]
    known = np.where(size > 0, size, -grid)  # how large: by elements, else by blocks
    step = _step_of(_called_ns(kernels)[order], kernels.steps)
    again = repeats(keyed(names, known, stream, step, part=pointwise), _alone(names, words))
    joined = pointwise[1:] & pointwise[:-1] & (stream[1:] == stream[:-1]) & _alike(size, grid)
    joined &= (step[1:] == step[:-1]) & ~again.begins[1:]
    matrix, softmax = kernels.which(is_matrix)[order], kernels.which(is_softmax)[order]
    runs, attention = _chains(pointwise, joined, matrix, softmax)
    if not len(runs):
        return None
    chosen = np.zeros(len(kernels), bool)
    chosen[order[_members(runs, len(kernels))]] = True
    spans = kernels.exposed(chosen)
    return Chains(
        unit="kernel",
        count=max(1, round(int(kernels.begun[order][runs[:, 0]].sum()) / kernels.many)),
        pieces=float((runs[:, 1] - runs[:, 0]).mean()),
        cost_ns=kernels.typical_ns(spans),
        formulas=_formulas(runs, attention, names, words, time, kernels.many),
        sized=True,
        repeated=_mostly(again, runs, time),
        compiled=bool(kernels.which(is_compiled).any()),
        spans=spans,
    )


def _alike(size: Ints, grid: Ints) -> Mask:
    """Which neighbours work on equally many elements; where that is not told, on equally many blocks."""
    known = (size[1:] > 0) & (size[:-1] > 0)
    same = np.where(known, size[1:] == size[:-1], grid[1:] == grid[:-1])
    unknown = ~known & ((grid[1:] < 0) | (grid[:-1] < 0))
    return np.asarray(same & ~unknown, bool)


def _grid(kernels: Interior) -> Ints:
    """The blocks of each kernel; below 0 where not told."""
    return kernels.run.grid_rows.spread("grid", len(kernels.run.event_rows))[kernels.event]


def _called_ns(kernels: Interior) -> Ints:
    """When the host called for each kernel; where that is not told, when it began."""
    called = kernels.run.event_rows["start_ns"][np.maximum(kernels.call, 0)]
    return np.where(kernels.call >= 0, called, kernels.start_ns)


def _step_of(at_ns: Ints, steps: Steps) -> Ints:
    """The step of each moment: no chain goes on from one step into the next."""
    return np.asarray(np.searchsorted(np.sort(steps.start_ns), at_ns, side="right"), np.int64)


def _alone(codes: Ints, words: dict[int, frozenset[str]]) -> Mask:
    """Which parts never follow one of their own kind on the same data."""
    follows = [code for code, told in words.items() if told & ACCUMULATING]
    return ~np.isin(codes, follows)


def _mostly(again: Repeats, runs: Ints, time: Ints) -> bool:
    """Whether most of the time of these chains is in rounds of loops."""
    of_runs = np.zeros(len(time), bool)
    of_runs[_members(runs, len(time))] = True
    return int(time[of_runs & again.member].sum()) >= REPEATED_FRAC * int(time[of_runs].sum())


def _elements(run: Run, ops: Ints) -> Ints:
    """The elements in the largest input of each operator, a row of the events; 0 where not told."""
    shapes = run.shape_rows
    if not len(shapes):
        return np.zeros(len(ops), np.int64)
    vocabulary = shapes.words("shapes").vocabulary
    code = shapes.spread("shapes", len(run.event_rows))[np.maximum(ops, 0)]
    used = np.unique(code)
    sizes = np.zeros(len(vocabulary) + 1, np.int64)
    for each in used[used >= 0].tolist():
        sizes[each] = inputs(vocabulary[each], None).elements
    return np.where((ops >= 0) & (code >= 0), sizes[code], 0)


def _chains(member: Mask, joined: Mask, matrix: Mask, softmax: Mask) -> tuple[Ints, Mask]:
    """Runs of members that are long enough, or attention: a softmax between two products; and which are attention."""
    runs = _runs(member, joined)
    attention = _between(runs, matrix, member) & _holds(runs, softmax)
    kept = (runs[:, 1] - runs[:, 0] >= LEAST) | attention
    return runs[kept], attention[kept]


def _runs(member: Mask, joined: Mask) -> Ints:
    """Stretches of members that are joined to their neighbours: rows of (first, one past the last)."""
    opens = member.copy()
    opens[1:] &= ~joined
    first = np.flatnonzero(opens)
    closes = member.copy()
    closes[:-1] &= ~joined
    return np.stack([first, np.flatnonzero(closes) + 1], axis=1)


def _between(runs: Ints, matrix: Mask, pointwise: Mask) -> Mask:
    """Which of them a matrix product comes before and after, with at most other elementwise work in between."""
    place = np.arange(len(matrix))
    other = ~pointwise
    # Of each place, the last piece before it and the first after it that is not elementwise.
    before = np.append(-1, np.maximum.accumulate(np.where(other, place, -1)))
    after = np.append(np.minimum.accumulate(np.where(other, place, len(matrix))[::-1])[::-1], len(matrix))
    ends = np.append(matrix, False)  # beyond either end there is none
    return np.asarray(ends[before[runs[:, 0]]] & ends[after[runs[:, 1]]], bool)


def _holds(runs: Ints, wanted: Mask) -> Mask:
    """Which of them hold one that is wanted."""
    so_far = np.concatenate([[0], np.cumsum(wanted)])
    return np.asarray(so_far[runs[:, 1]] > so_far[runs[:, 0]], bool)


def _members(runs: Ints, count: int) -> Ints:
    edges = np.zeros(count + 1, np.int64)
    np.add.at(edges, runs[:, 0], 1)
    np.add.at(edges, runs[:, 1], -1)
    return np.flatnonzero(np.cumsum(edges[:-1]) > 0)


def _formulas(
    runs: Ints, attention: Mask, names: np.ndarray, words: dict[int, frozenset[str]], time: Ints, many: int
) -> tuple[tuple[Formula, int], ...]:
    """What the chains compute, by the words in their parts' names; chains of equal parts are asked about once."""
    done = np.concatenate([[0], np.cumsum(time)])
    known: dict[tuple[bytes, bool], Formula | None] = {}
    total: dict[Formula, int] = {}
    for (first, last), attends in zip(runs.tolist(), attention.tolist(), strict=True):
        key = (names[first:last].tobytes(), attends)
        if key not in known:
            told = [words.get(code, frozenset()) for code in names[first:last].tolist()]
            known[key] = formula(told, attention=attends)
        found = known[key]
        if found is not None:
            total[found] = total.get(found, 0) + int(done[last] - done[first])
    return tuple(sorted(((each, ns // many) for each, ns in total.items()), key=lambda pair: -pair[1]))


def chains_on_cpu(run: Run, steps: Steps, ledger: Ledger) -> Chains | None:
    """Elementwise operators in a row on equally many elements, where the CPU is the device; None without."""
    events = run.event_rows
    wraps = events.matching(_wraps)
    rows = np.flatnonzero((events["kind"] == Kind.OP) & (events["thread"] == run.main_thread) & ~wraps)
    rows = rows[~within(events, rows, ranges(run))]
    ops = rows[steps.in_interior(events["start_ns"][rows])]
    ops = ops[outermost(events.where(ops))]
    ops = ops[events["dur_ns"][ops] >= REAL_NS]
    if len(ops) < LEAST:
        return None
    words = parts_of(events.words("name").vocabulary, np.unique(events["name"][ops]))
    code = events["name"][ops]
    primitive = np.isin(code, [each for each, told in words.items() if told])
    size = _elements(run, ops)
    # Where sizes were not recorded, neighbours are taken to be alike; what a formula then confirms, or nothing does.
    step = _step_of(events["start_ns"][ops], steps)
    again = repeats(keyed(code, size, step, part=primitive), _alone(code, words))
    joined = primitive[1:] & primitive[:-1] & (size[1:] == size[:-1])
    joined &= (step[1:] == step[:-1]) & ~again.begins[1:]
    products = events.matching(_multiplies)[ops]
    softmax = np.isin(code, [each for each, told in words.items() if "softmax" in told])
    runs, attention = _chains(primitive, joined, products, softmax)
    if not len(runs):
        return None
    time = events["dur_ns"][ops]
    spans = events.where(ops[_members(runs, len(ops))]).spans()
    many = max(1, int(steps.interior.sum()))
    return Chains(
        unit="operator",
        count=max(1, round(len(runs) / many)),
        pieces=float((runs[:, 1] - runs[:, 0]).mean()),
        cost_ns=steps.typical_covered_ns(spans),
        formulas=_formulas(runs, attention, code, words, time, many),
        sized=bool(size.any()),
        repeated=_mostly(again, runs, time),
        compiled=False,
        spans=spans,
    )


def _wraps(name: str) -> bool:
    """Holds the operators that do the work, or does none: autograd's nodes, operators made of others, views."""
    return name.startswith(("autograd::", "torch::autograd::")) or "Backward" in name or name in _COMPOSED + _VIEWS


def _multiplies(name: str) -> bool:
    return name in ("aten::mm", "aten::bmm", "aten::addmm", "aten::matmul", "aten::baddbmm")


_COMPOSED = ("aten::softmax", "aten::square", "aten::rsub", "aten::linear", "aten::einsum")
_VIEWS = (
    *("aten::t", "aten::view", "aten::expand", "aten::expand_as", "aten::detach", "aten::transpose", "aten::permute"),
    *("aten::reshape", "aten::unsqueeze", "aten::squeeze", "aten::slice", "aten::select", "aten::as_strided"),
    *("aten::alias", "aten::view_as", "aten::flatten", "aten::narrow", "aten::_unsafe_view", "aten::empty_like"),
)
