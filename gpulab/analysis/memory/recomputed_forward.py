"""Forward passes that activation checkpointing runs again during the backward pass."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.events.per_run import cached_by_run
from gpulab.intervals import Spans, no_spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_NODES = ("autograd::engine::evaluate_function", "CheckpointFunctionBackward")
# Operators that modules call and that no gradient formula calls; gradients use their parts, such as aten::mm.
_FORWARD_OPS = frozenset(
    f"aten::{name}"
    for name in (
        *(
            "linear",
            "conv1d",
            "conv2d",
            "conv3d",
            "layer_norm",
            "batch_norm",
            "group_norm",
            "instance_norm",
            "rms_norm",
        ),
        *("embedding", "scaled_dot_product_attention", "dropout", "max_pool2d", "lstm", "gru"),
    )
)


@cached_by_run
def recomputed_forward_spans(run: Run) -> Spans:
    """Return when the forward pass ran again within autograd nodes: from the start of a node to its last such operator.

    A node whose saved tensors were not kept computes them first, and its gradient afterwards.
    """
    events = run.event_rows
    nodes = events.select(np.flatnonzero(events.matching(lambda word: word.startswith(_NODES))))
    again = events.select(np.flatnonzero(events.is_kind(EventKind.OP) & events.matching(_FORWARD_OPS.__contains__)))
    if not len(nodes) or not len(again):
        return no_spans()
    nodes = nodes.select(np.flatnonzero(outermost(nodes)))
    starts, ends = [no_spans().start_ns], [no_spans().end_ns]
    for thread in np.unique(nodes["thread"]).tolist():
        start, end = _recomputed(*(rows.select(rows["thread"] == thread) for rows in (nodes, again)))
        starts.append(start)
        ends.append(end)
    return union(np.concatenate(starts), np.concatenate(ends))


def _recomputed(nodes: Rows, again: Rows) -> Spans:
    """Return, for the nodes of a thread with such operators in them, the time from their start to the last of these."""
    order = np.argsort(nodes["start_ns"], kind="stable")
    start = nodes["start_ns"][order]
    end = start + nodes["dur_ns"][order]
    index = np.searchsorted(start, again["start_ns"], side="right") - 1
    again_end = again["start_ns"] + again["dur_ns"]
    inside = (index >= 0) & (again_end <= end[np.maximum(index, 0)])
    last_ns = np.zeros(len(start), np.int64)
    np.maximum.at(last_ns, index[inside], again_end[inside])
    has_any = last_ns > 0
    return Spans(start[has_any], last_ns[has_any])
