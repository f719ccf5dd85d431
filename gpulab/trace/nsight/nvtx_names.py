"""What NVTX ranges are, by their texts: operators and annotations of PyTorch, steps of a loop, and anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from gpulab.rows import Array
from gpulab.tables import EventKind
from gpulab.trace.columns.categories import EventFamily, kind_of

# What torch.autograd.profiler.emit_nvtx adds: "aten::add, seq = 12, op_id = 7, sizes = [[8, 4]], input_op_ids = []".
_EMIT_NVTX = re.compile(
    r"(.*?)(, seq = \d+)?(?:, op_id = \d+)?(?:, sizes = \[.*?\])?(?:, input_op_ids = .*)?", re.DOTALL
)
_OPERATOR = re.compile(r"\w+::\w|\w+Backward\d*$")  # in a program of PyTorch
_ATEN = "aten::"
_NUMBERED_STEP = re.compile(r"(.{0,80}?(?<![a-z])(?:steps?|iter(?:ation)?s?|batch)[ _#:=./-]*)\d+", re.IGNORECASE)
_MIN_STEPS = 2


def classify_ranges(texts: Sequence[str], domain: str | None = None) -> list[tuple[str, EventKind]]:
    """Name and kind of ranges with these texts. Ranges of a library's domain, such as NCCL, are "NCCL:text"."""
    if domain is not None:
        return [(f"{domain}:{text}", EventKind.ANNOTATION) for text in texts]
    has_operators = any(text.startswith(_ATEN) for text in texts)
    return [_classified(text, has_operators) for text in texts]


def _classified(text: str, has_operators: bool) -> tuple[str, EventKind]:
    match = _EMIT_NVTX.fullmatch(text) if has_operators else None
    if match is None:
        return text, kind_of(EventFamily.ANNOTATION, text)
    name = match[1]
    is_operator = match[2] is not None or _OPERATOR.match(name)
    return name, kind_of(EventFamily.OP if is_operator else EventFamily.ANNOTATION, name)


def numbered_steps(columns: Mapping[str, Array], names: Sequence[str]) -> Array:
    """Mask of the ranges that are steps of a loop: outermost ranges such as "step 12" or "iteration12" of one thread.

    None are, if the trace has steps of torch.profiler. Of several series, the one that takes the most time counts.
    """
    kind, name, thread = columns["kind"], columns["name"], columns["thread"]
    steps = np.zeros(len(kind), bool)
    matches = [_NUMBERED_STEP.match(text) for text in names]
    series = [re.sub(r"\d+", "#", match[1]) if match else "" for match in matches]
    index = {text: code for code, text in enumerate(dict.fromkeys(series))}
    series_of_name = np.array([index[text] if text else -1 for text in series], np.int64)
    candidates = np.flatnonzero((kind == EventKind.ANNOTATION.value) & (thread >= 0))
    candidates = candidates[series_of_name[name[candidates]] >= 0] if len(candidates) else candidates
    if (kind == EventKind.STEP.value).any() or not len(candidates):
        return steps
    candidates = _outermost(columns, candidates)
    keys = np.stack((thread[candidates], series_of_name[name[candidates]]), axis=1)
    groups, group = np.unique(keys, axis=0, return_inverse=True)
    group = group.reshape(-1)
    total_ns = np.bincount(group, columns["dur_ns"][candidates], len(groups))
    total_ns[np.bincount(group, minlength=len(groups)) < _MIN_STEPS] = -1
    best = int(total_ns.argmax())
    if total_ns[best] >= 0:
        steps[candidates[group == best]] = True
    return steps


def _outermost(columns: Mapping[str, Array], rows: Array) -> Array:
    """Those of these rows that are inside no other of them on their thread."""
    start, end = columns["start_ns"][rows], (columns["start_ns"] + columns["dur_ns"])[rows]
    outer = np.zeros(len(rows), bool)
    for thread in np.unique(columns["thread"][rows]).tolist():
        of_thread = np.flatnonzero(columns["thread"][rows] == thread)
        of_thread = of_thread[np.lexsort((-end[of_thread], start[of_thread]))]
        reach = np.maximum.accumulate(end[of_thread])
        outer[of_thread[1:]] = end[of_thread[1:]] > reach[:-1]
        outer[of_thread[:1]] = True
    selected: Array = rows[outer]
    return selected
