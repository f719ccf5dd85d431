"""When the main thread runs forward and backward passes: what torch.compile of the model can speed up.

The optimizer, gradient clipping, weight averaging, metrics and logging lie outside, and no compiler of the model sees
them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gpulab.analysis.events.per_run import cached_by_run
from gpulab.analysis.steps.detection import Steps
from gpulab.intervals import Ints, Spans, union
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind

_NODE = "autograd::engine::evaluate_function"
_UPDATE = "Optimizer.step#"
_ACCUMULATE = "AccumulateGrad"  # the node of a parameter; it runs once in each backward pass that reaches the parameter
_NODE_NAME = re.compile(r"(\w+?)Backward\d*$")  # "autograd::engine::evaluate_function: AddmmBackward0"
_EARLIER_OPS = 20_000  # operators before the previous pass among which the rest of a forward pass is looked for


@dataclass(frozen=True, eq=False)
class BackwardPasses:
    """The backward passes of a run, in order: series of autograd nodes without another operator between them."""

    nodes: Rows  # the autograd nodes, in order
    spans: Spans  # from the first node of each pass to its last

    def count_nodes(self, is_counted: Callable[[str], bool]) -> Ints:
        """Return the number of nodes with such a name in each pass."""
        at_ns = self.nodes["start_ns"][self.nodes.matching(is_counted)]
        counts: Ints = np.searchsorted(at_ns, self.spans.end_ns) - np.searchsorted(at_ns, self.spans.start_ns)
        return counts

    def typical_gradients(self, steps: Steps) -> int:
        """Return how many parameter tensors receive a gradient in the median pass of the interior steps; 0 without."""
        inside = steps.interior_mask(self.spans.start_ns)
        counts = self.count_nodes(lambda word: word.endswith(_ACCUMULATE))[inside]
        return int(np.median(counts)) if len(counts) else 0


@cached_by_run
def backward_passes(run: Run) -> BackwardPasses | None:
    """Find the backward passes; None if none was recorded."""
    nodes, ops = _nodes_and_ops(run)
    if not len(nodes):
        return None
    covered = nodes.spans()  # nodes of a checkpointed block run inside another node
    first, last = _passes(ops["start_ns"], covered)
    return BackwardPasses(nodes, Spans(covered.start_ns[first], covered.end_ns[last]))


@cached_by_run
def _nodes_and_ops(run: Run) -> tuple[Rows, Rows]:
    """Return the autograd nodes, and the other operators of the main thread, both in order."""
    events = run.event_rows
    is_node = events.matching(lambda word: word.startswith(_NODE))
    is_op = events.is_kind(EventKind.OP) & (events["thread"] == run.main_thread) & ~is_node
    return _in_order(events.select(np.flatnonzero(is_node))), _in_order(events.select(np.flatnonzero(is_op)))


@cached_by_run
def forward_backward_spans(run: Run) -> Spans | None:
    """Return the spans of forward and backward passes; None if no backward pass was recorded.

    A backward pass is a series of autograd nodes without another operator between them. Its forward pass ends where it
    begins, and starts with the first operator that has a node in it: with the k-th `aten::addmm` from the end for k
    nodes `AddmmBackward0`, and so on.
    """
    nodes, ops = _nodes_and_ops(run)
    if not len(nodes):
        return None
    passes = backward_passes(run)
    assert passes is not None, "a run with autograd nodes has backward passes"
    begins, ends = passes.spans
    forward = _ForwardPasses(ops, nodes)
    since = previous_ends(run, begins, ends)
    times = zip(since.tolist(), begins.tolist(), ends.tolist(), strict=True)
    spans = [span for since_ns, begin_ns, end_ns in times for span in forward.spans(since_ns, begin_ns, end_ns)]
    start_ns, end_ns = np.array(spans, np.int64).reshape(-1, 2).T
    return union(np.concatenate([start_ns, begins]), np.concatenate([end_ns, ends]))


def _in_order(rows: Rows) -> Rows:
    return rows.select(np.argsort(rows["start_ns"], kind="stable"))


def _passes(op_starts: Ints, nodes: Spans) -> tuple[Ints, Ints]:
    """Return the index of the first and of the last autograd node of each backward pass."""
    between = np.searchsorted(op_starts, nodes.start_ns[1:]) - np.searchsorted(op_starts, nodes.end_ns[:-1])
    breaks = np.flatnonzero(between > 0)
    return np.append(0, breaks + 1), np.append(breaks, len(nodes.start_ns) - 1)


def previous_ends(run: Run, begins: Ints, ends: Ints) -> Ints:
    """Return the latest end of a batch fetch, an optimizer step or a backward pass before each of these times."""
    events = run.event_rows
    is_call = events.is_kind(EventKind.LOADER) | events.matching(lambda word: word.startswith(_UPDATE))
    calls = events.select(np.flatnonzero(is_call))
    boundaries = np.sort(np.concatenate([calls["start_ns"] + calls["dur_ns"], ends, [0]]))
    return np.asarray(boundaries[np.searchsorted(boundaries, begins, side="right") - 1], np.int64)


class _ForwardPasses:
    """Finds the operators of autograd nodes by name: `aten::native_layer_norm` and `NativeLayerNormBackward0`."""

    def __init__(self, ops: Rows, nodes: Rows) -> None:
        self._starts, self._ends = ops["start_ns"], ops["start_ns"] + ops["dur_ns"]
        self._node_starts = nodes["start_ns"]
        keys: dict[str, int] = {"": -1}
        self._op_keys = _keys(ops, _op_key, keys)
        self._node_keys = _keys(nodes, _node_key, keys)

    def spans(self, since_ns: int, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
        """Return the spans of the forward pass of the backward pass from `begin_ns` to `end_ns`.

        Operators that are missing since `since_ns` ran before: in a GAN, the generator runs before the discriminator's
        backward pass. They form another span.
        """
        first_node, last_node = np.searchsorted(self._node_starts, (begin_ns, end_ns))
        since, before = np.searchsorted(self._starts, (since_ns, begin_ns)).tolist()
        earliest = max(0, since - _EARLIER_OPS)
        keys = self._op_keys[earliest:before]
        here, earlier = [before], []
        for key, count in Counter(self._node_keys[first_node:last_node].tolist()).items():
            places = earliest + np.flatnonzero(keys == key)[-count:] if key >= 0 else np.empty(0, np.int64)
            here += places[places >= since][:1].tolist()
            earlier += places[places < since].tolist()
        start_ns = int(self._starts[min(here)]) if min(here) < before else since_ns
        spans = [(start_ns, begin_ns)]
        if earlier:
            spans.append((int(self._starts[min(earlier)]), int(self._ends[max(earlier)])))
        return spans


def _keys(rows: Rows, key_of: Callable[[str], str], keys: dict[str, int]) -> Ints:
    """Return a number for the key of each row's name, -1 for an empty one; new keys are added."""
    names = rows.text("name")
    numbers = np.array([keys.setdefault(key_of(name), len(keys)) for name in names.vocabulary], np.int64)
    return numbers[names.codes] if len(names.codes) else np.empty(0, np.int64)


@lru_cache(maxsize=4096)
def _node_key(name: str) -> str:
    """Return "nativelayernorm" for "...: NativeLayerNormBackward0"; "" for nodes that accumulate gradients."""
    match = _NODE_NAME.search(name)
    return match[1].lower().replace("_", "") if match else ""


def _op_key(name: str) -> str:
    """Return "nativelayernorm" for "aten::native_layer_norm"."""
    return name.rpartition("::")[2].replace("_", "").lower()
