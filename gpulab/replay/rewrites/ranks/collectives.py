"""The collectives of a graph: which device work they are, what they move, how long the usual one of a kind takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.ranks.collectives import KINDS, TOGETHER, Collectives, collectives
from gpulab.analysis.steps.detection import Mask
from gpulab.intervals import Ints
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrites.engine.cache import once

GRADIENTS = ("all-reduce", "reduce-scatter")  # what is done with gradients, in backward


@dataclass(frozen=True, eq=False)
class Exchanges:
    """Collectives, in the order in which they were called for."""

    work: Ints  # which device work
    call: Ints  # the stop that called for each
    kind: Ints  # an index into KINDS
    bytes: Ints  # -1 where not told
    recorded_ns: Floats
    exposed_ns: Floats  # of it, in interior steps and with no kernel beside it

    def __len__(self) -> int:
        return len(self.work)

    def which(self, *kinds: str) -> Mask:
        """Those of these kinds."""
        mask: Mask = np.isin(self.kind, [KINDS.index(kind) for kind in kinds])
        return mask

    def where(self, picked: Mask) -> Exchanges:
        """The part of them that a mask picks."""
        return Exchanges(
            **{name: getattr(self, name)[picked] for name in ("work", "call", "kind", "bytes")},
            recorded_ns=self.recorded_ns[picked],
            exposed_ns=self.exposed_ns[picked],
        )


@once
def every_exchange(graph: Graph) -> Exchanges:
    """All collectives of the busiest GPU whose call is in the run."""
    told = collectives(graph.run, graph.steps, graph.ledger)
    if told is None:
        none = np.empty(0, np.int64)
        return Exchanges(none, none, none, none, none.astype(float), none.astype(float))
    return _ordered(graph, told)


def _ordered(graph: Graph, told: Collectives) -> Exchanges:
    place = np.full(len(graph.run.event_rows) + 1, -1, np.int64)
    place[graph.device.event] = np.arange(len(graph.device))
    work = place[told.event]
    known = np.flatnonzero((work >= 0) & (graph.device.call[work] >= 0))
    known = known[np.argsort(work[known], kind="stable")]
    return Exchanges(
        work=work[known],
        call=graph.device.call[work[known]],
        kind=told.kind[known],
        bytes=told.bytes[known],
        recorded_ns=told.dur_ns[known].astype(float),
        exposed_ns=told.exposed_ns[known].astype(float),
    )


@once
def exchanges(graph: Graph) -> Exchanges:
    """Those that make gradients equal."""
    found = every_exchange(graph)
    return found.where(found.which(*GRADIENTS))


@once
def alike(graph: Graph) -> tuple[Exchanges, list[Ints]]:
    """Collectives that none leaves before all have arrived, and which of them are of one kind and size."""
    found = every_exchange(graph)
    found = found.where(found.which(*TOGETHER))
    if not len(found):
        return found, []
    _, group = np.unique(np.stack([found.kind, found.bytes], axis=1), axis=0, return_inverse=True)
    group = group.reshape(-1)
    return found, [np.flatnonzero(group == each) for each in range(int(group.max()) + 1)]
