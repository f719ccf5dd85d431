"""The collectives of a graph: their device ops, kinds, bytes and usual durations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, TOGETHER, Collectives, collectives
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import once

GRADIENTS = ("all-reduce", "reduce-scatter")  # the collectives that average gradients in backward


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Collectives, in launch order."""

    work: Ints  # indices of device ops
    call: Ints  # the host node that launched each
    kind: Ints  # an index into KINDS
    bytes: Ints  # -1 if unknown
    recorded_ns: Floats
    exposed_ns: Floats  # the part of it in interior steps while no kernel runs

    def __len__(self) -> int:
        return len(self.work)

    def which(self, *kinds: str) -> Mask:
        """Mask of these kinds."""
        mask: Mask = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
        return mask

    def where(self, mask: Mask) -> Exchanges:
        """The collectives that a mask selects."""
        return Exchanges(
            **{name: getattr(self, name)[mask] for name in ("work", "call", "kind", "bytes")},
            recorded_ns=self.recorded_ns[mask],
            exposed_ns=self.exposed_ns[mask],
        )


@once
def every_exchange(graph: Graph) -> Exchanges:
    """Return all collectives of the busiest GPU whose launch was recorded."""
    recorded = collectives(graph.run, graph.steps, graph.ledger)
    if recorded is None:
        empty = np.empty(0, np.int64)
        return Exchanges(empty, empty, empty, empty, empty.astype(float), empty.astype(float))
    return _in_launch_order(graph, recorded)


def _in_launch_order(graph: Graph, recorded: Collectives) -> Exchanges:
    op_of_event = np.full(len(graph.run.event_rows) + 1, -1, np.int64)
    op_of_event[graph.device.event] = np.arange(len(graph.device))
    work = op_of_event[recorded.event]
    launched = np.flatnonzero((work >= 0) & (graph.device.call[work] >= 0))
    launched = launched[np.argsort(work[launched], kind="stable")]
    return Exchanges(
        work=work[launched],
        call=graph.device.call[work[launched]],
        kind=recorded.kind[launched],
        bytes=recorded.bytes[launched],
        recorded_ns=recorded.dur_ns[launched].astype(float),
        exposed_ns=recorded.exposed_ns[launched].astype(float),
    )


@once
def exchanges(graph: Graph) -> Exchanges:
    """Return the collectives that average gradients."""
    recorded = every_exchange(graph)
    return recorded.where(recorded.which(*GRADIENTS))


@once
def alike(graph: Graph) -> tuple[Exchanges, list[Ints]]:
    """Return the collectives that end only after all ranks have joined, and groups of them of one kind and size."""
    synchronising = every_exchange(graph)
    synchronising = synchronising.where(synchronising.which(*TOGETHER))
    if not len(synchronising):
        return synchronising, []
    _, group = np.unique(np.stack([synchronising.kind, synchronising.bytes], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    return synchronising, [np.flatnonzero(group == each) for each in range(int(group.max()) + 1)]
