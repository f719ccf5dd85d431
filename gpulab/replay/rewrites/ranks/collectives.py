"""The collectives of a graph: their device ops, kinds, bytes and usual durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, SYNCHRONISING_KINDS, Collectives, collectives
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import cached_per_run

GRADIENTS = ("all-reduce", "reduce-scatter")  # the collectives that average gradients in backward


@dataclass(frozen=True, eq=False)
class GraphCollectives:
    """Collectives, in launch order."""

    ops: Ints  # indices of device ops
    call: Ints  # the host node that launched each
    kind: Ints  # an index into KINDS
    bytes: Ints  # -1 if unknown
    recorded_ns: Floats
    exposed_ns: Floats  # the part of it in interior steps while no kernel runs

    def __len__(self) -> int:
        return len(self.ops)

    def is_kind(self, *kinds: str) -> Mask:
        """Mask of these kinds."""
        mask: Mask = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
        return mask

    def select(self, mask: Mask) -> GraphCollectives:
        """The collectives that a mask selects."""
        return GraphCollectives(
            **{name: getattr(self, name)[mask] for name in ("ops", "call", "kind", "bytes")},
            recorded_ns=self.recorded_ns[mask],
            exposed_ns=self.exposed_ns[mask],
        )


@cached_per_run
def all_collectives(graph: Graph) -> GraphCollectives:
    """Return all collectives of the busiest GPU whose launch was recorded."""
    # Without device ops, no launch was recorded, as of exchanges on a CPU.
    recorded = collectives(graph.run, graph.steps, graph.ledger) if len(graph.device) else None
    if recorded is None:
        empty = np.empty(0, np.int64)
        return GraphCollectives(empty, empty, empty, empty, empty.astype(float), empty.astype(float))
    return _in_launch_order(graph, recorded)


def _in_launch_order(graph: Graph, recorded: Collectives) -> GraphCollectives:
    op_of_event = np.full(len(graph.run.event_rows) + 1, -1, np.int64)
    op_of_event[graph.device.event] = np.arange(len(graph.device))
    work = op_of_event[recorded.event]
    launched = np.flatnonzero((work >= 0) & (graph.device.call[work] >= 0))
    launched = launched[np.argsort(work[launched], kind="stable")]
    return GraphCollectives(
        ops=work[launched],
        call=graph.device.call[work[launched]],
        kind=recorded.kind[launched],
        bytes=recorded.bytes[launched],
        recorded_ns=recorded.dur_ns[launched].astype(float),
        exposed_ns=recorded.exposed_ns[launched].astype(float),
    )


@cached_per_run
def gradient_collectives(graph: Graph) -> GraphCollectives:
    """Return the collectives that average gradients."""
    recorded = all_collectives(graph)
    return recorded.select(recorded.is_kind(*GRADIENTS))


@cached_per_run
def collectives_by_size(graph: Graph) -> tuple[GraphCollectives, list[Ints]]:
    """Return the collectives that end only after all ranks have joined, and groups of them of one kind and size."""
    synchronising = all_collectives(graph)
    synchronising = synchronising.select(synchronising.is_kind(*SYNCHRONISING_KINDS))
    if not len(synchronising):
        return synchronising, []
    _, group = np.unique(np.stack([synchronising.kind, synchronising.bytes], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    return synchronising, [np.flatnonzero(group == each) for each in range(int(group.max()) + 1)]
