"""The forward passes of frozen models: calls of layers without nodes in the backward pass that follows."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.model_calls import forward_calls
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.forward_backward import BackwardPasses, backward_passes, previous_ends
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Rows
from gpulab.run import FrozenModel, Run

_LAYERS = {  # by letter, as in FrozenModel.layers: operator, backward node
    "l": (re.compile(r"::(linear|addmm|mm)$"), re.compile(r": (Addmm|Mm|Linear)Backward\d*$")),
    "c": (re.compile(r"::conv"), re.compile(r": Convolution\w*Backward\d*$")),
    "e": (re.compile(r"::embedding"), re.compile(r": Embedding\w*Backward\d*$")),
    "r": (re.compile(r"::(lstm|gru|rnn)"), re.compile(r": \w*(Rnn|Lstm|Gru)\w*Backward\d*$")),
}
_MAX_CALLS = 3  # of a frozen model per step
_MIN_PASSES_FRAC = 2 / 3  # of the backward passes


@dataclass(frozen=True, kw_only=True)
class FrozenForward:
    """Forward passes of frozen models."""

    models: tuple[FrozenModel, ...]  # those that run
    forward_ns: int  # their forward passes in a typical step, from the first layer to the last
    calls: int  # of their layers in a typical step
    spans: Spans


def frozen_forward(run: Run, steps: Steps, _ledger: Ledger) -> FrozenForward | None:
    """Find the forward passes of frozen models; None unless one precedes most backward passes.

    The layers of the trained models have nodes in the backward pass, in reverse order. What is left is the forward
    pass of frozen models if it is one block of calls, with exactly the layers of such models.
    """
    passes = backward_passes(run)
    if not run.frozen_models or passes is None:
        return None
    inside = np.flatnonzero(steps.interior_mask(passes.spans.start_ns))
    forward = forward_calls(run)
    forward = forward.select(np.argsort(forward["start_ns"], kind="stable"))
    blocks = _blocks(run, forward, passes, inside)
    if not blocks or len(blocks) < _MIN_PASSES_FRAC * len(inside):
        return None
    starts, ends, calls = np.array([block[:3] for block in blocks], np.int64).T
    spans = union(starts, ends)
    used = Counter(itertools.chain.from_iterable(block[3] for block in blocks))
    return FrozenForward(
        models=tuple(model for number, model in enumerate(run.frozen_models) if 2 * used[number] > len(blocks)),
        forward_ns=steps.typical_covered_ns(spans),
        calls=int(np.median(calls)),
        spans=spans,
    )


def _blocks(run: Run, forward: Rows, passes: BackwardPasses, inside: Ints) -> list[tuple[int, int, int, list[int]]]:
    """Return start, end, number of calls and used models of the block before each of these backward passes."""
    begins, ends = passes.spans
    since = previous_ends(run, begins, ends)
    layers, nodes = _letters(forward, 0), _letters(passes.nodes, 1)
    call_starts, call_ends = forward["start_ns"], forward["start_ns"] + forward["dur_ns"]
    node_starts = passes.nodes["start_ns"]
    blocks = []
    for index in inside.tolist():
        first, last = np.searchsorted(call_starts, (since[index], begins[index])).tolist()
        first_node, last_node = np.searchsorted(node_starts, (begins[index], ends[index])).tolist()
        trained = "".join(reversed(nodes[first_node:last_node])).replace(" ", "")
        durations_ns = call_ends[first:last] - call_starts[first:last]
        block = find_block(
            layers[first:last], trained, tuple(model.layers for model in run.frozen_models), durations_ns
        )
        if block is not None:
            start, end, used = block
            blocks.append((int(call_starts[first + start]), int(call_ends[first + end - 1]), end - start, used))
    return blocks


def find_block(
    calls: str, trained: str, models: tuple[str, ...], durations_ns: Ints
) -> tuple[int, int, list[int]] | None:
    """Return where the calls of frozen models are among all calls of layers, and which models run; None if unclear.

    `calls`: the letters of all calls in order. `trained`: those of the calls with a node in the backward pass, in
    order. `models`: the layers of each frozen model. If several places are possible, the one with the shortest calls.
    """
    length = len(calls) - len(trained)
    if length <= 0 or not models:
        return None
    same_before = next((i for i, (a, b) in enumerate(zip(calls, trained, strict=False)) if a != b), len(trained))
    backward = zip(reversed(calls), reversed(trained), strict=False)
    same_after = next((i for i, (a, b) in enumerate(backward) if a != b), len(trained))
    places = range(len(trained) - same_after, same_before + 1)
    total_ns = np.append(0, np.cumsum(durations_ns))
    in_order, combinations = re.compile(f"(?:{'|'.join(models)})+"), _combinations(models, length)
    candidates = []
    for start in places:
        block = calls[start : start + length]
        used = next((used for used, layers in combinations if layers == Counter(block)), None)
        if used:
            is_mixed = in_order.fullmatch(block) is None
            candidates.append((is_mixed, int(total_ns[start + length] - total_ns[start]), start, used))
    if not candidates:
        return None
    _, _, start, used = min(candidates)
    return start, start + length, used


def _combinations(models: tuple[str, ...], length: int) -> list[tuple[list[int], Counter[str]]]:
    """Return which models have so many layers together, each run up to three times, and their layers."""
    combinations = []
    for times in itertools.product(range(_MAX_CALLS + 1), repeat=len(models)):
        if sum(len(model) * count for model, count in zip(models, times, strict=True)) == length:
            layers = Counter("".join(model * count for model, count in zip(models, times, strict=True)))
            combinations.append(([number for number, count in enumerate(times) if count], layers))
    return combinations


def _letters(rows: Rows, column: int) -> str:
    """Return one letter for each row: that of its layer, or a space."""
    names = rows.text("name")
    by_code = [
        next((letter for letter, patterns in _LAYERS.items() if patterns[column].search(name)), " ")
        for name in (*names.vocabulary, "")
    ]
    return "".join(by_code[code] for code in names.codes.tolist())
