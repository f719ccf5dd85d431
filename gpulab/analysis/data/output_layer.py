"""When the output layer of a classifier of tokens runs with its loss: the last matrix product, cross entropy, backward.

The work in between grows with the number of classes, such as a vocabulary, and with the number of positions.
"""

from __future__ import annotations

import re

import numpy as np

from gpulab.analysis.events.per_run import cached_by_run
from gpulab.analysis.steps.forward_backward import backward_passes
from gpulab.intervals import Ints, Spans, no_spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_LOSSES = ("aten::cross_entropy_loss", "aten::nll_loss_nd")
_PRODUCTS = ("aten::linear", "aten::matmul", "aten::addmm", "aten::mm")
_SELECTIONS = ("aten::index", "aten::masked_select", "aten::nonzero", "aten::gather", "aten::take_along_dim")
_LOSS_NODE = re.compile(r": NllLoss\w*Backward\d+$")
_PRODUCT_NODE = re.compile(r": (Addmm|Mm|Bmm|Baddbmm)Backward\d+$")
_LAYERS_WITHOUT_SELECTION = 3  # before the loss: a head of two layers, and the last layer of the model's body


@cached_by_run
def output_layer_spans(run: Run) -> Spans | None:
    """Return when output layers and their losses ran, forward and backward; None if no such loss was recorded.

    None also if positions are selected in or before the output layer: then it does not compute all of them.
    """
    events = run.event_rows
    on_main = events["thread"] == run.main_thread
    is_op = events.is_kind(EventKind.OP) & on_main
    losses = events.select(np.flatnonzero(is_op & events.matching(lambda name: name in _LOSSES))).spans()
    products = events.select(np.flatnonzero(is_op & events.matching(lambda name: name in _PRODUCTS))).spans()
    if not len(losses.start_ns) or not len(products.start_ns):
        return None
    selected_ns = np.sort(events["start_ns"][is_op & events.matching(lambda name: name in _SELECTIONS)])
    last = np.searchsorted(products.end_ns, losses.start_ns, side="right") - 1
    after_ns = np.append(0, losses.end_ns[:-1])
    has_layer = (last >= 0) & (products.start_ns[np.maximum(last, 0)] >= after_ns)
    first = products.end_ns[np.maximum(last - _LAYERS_WITHOUT_SELECTION + 1, 0)]
    selections = np.searchsorted(selected_ns, losses.start_ns) - np.searchsorted(selected_ns, first)
    if not has_layer.any() or selections[has_layer].any():
        return None
    forward = Spans(products.start_ns[last[has_layer]], losses.end_ns[has_layer])
    passes = backward_passes(run)
    backward = no_spans() if passes is None else _backward_spans(passes.nodes)
    return union(
        np.concatenate([forward.start_ns, backward.start_ns]), np.concatenate([forward.end_ns, backward.end_ns])
    )


def _backward_spans(nodes: Rows) -> Spans:
    """Return the time from the node of each loss to the end of the first node of a matrix product after it."""
    losses = nodes.select(np.flatnonzero(nodes.matching(lambda name: bool(_LOSS_NODE.search(name)))))
    products = nodes.select(np.flatnonzero(nodes.matching(lambda name: bool(_PRODUCT_NODE.search(name)))))
    start_ns: Ints = losses["start_ns"]
    following = np.searchsorted(products["start_ns"], start_ns)
    next_loss_ns = np.append(start_ns[1:], np.iinfo(np.int64).max)
    has_product = following < len(products)
    ends = products["start_ns"] + products["dur_ns"]
    has_product[has_product] &= products["start_ns"][following[has_product]] < next_loss_ns[has_product]
    return Spans(start_ns[has_product], ends[following[has_product]])
