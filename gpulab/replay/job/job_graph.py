"""The graph of a job: one graph per rank, and the collectives that end on all ranks at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpulab.analysis.ranks.arrivals import RankArrivals, rank_arrivals
from gpulab.analysis.ranks.stragglers import Rank, ranks_with_collectives
from gpulab.errors import RunError
from gpulab.intervals import Ints
from gpulab.replay.graph.build import build_graph
from gpulab.replay.graph.calibration import calibrate
from gpulab.replay.graph.graph import NONE, Floats, Graph
from gpulab.replay.quality import Quality
from gpulab.run import Run

RECORD_ALL = "record all ranks, with the same steps on each: torchrun ... -m gpulab run train.py"


@dataclass(frozen=True, eq=False)
class JointCollectives:
    """Collectives that all ranks of a group reach; one row per collective, one column per rank of the job."""

    op: Ints  # collective x rank: its device op in the graph of that rank; -1: that rank is not in the group
    transfer_ns: Floats  # from the arrival of the last rank to the end
    recorded_ns: Floats  # collective x rank: its recorded duration there, with the wait for the last rank
    kind: Ints  # an index into gpulab.analysis.ranks.collectives.KINDS
    bytes: Ints  # that a rank sends or receives; -1 if unknown
    step: Ints  # number of the step, on the first rank of the group

    def __len__(self) -> int:
        return len(self.transfer_ns)

    @property
    def ranks(self) -> Ints:
        """Return the number of ranks that each collective joins."""
        count: Ints = (self.op >= 0).sum(axis=1)
        return count

    def first_of_steps(self) -> Ints:
        """Return the index of the first collective of each step."""
        order = np.argsort(self.step, kind="stable")
        first: Ints = order[np.unique(self.step[order], return_index=True)[1]]
        return first


@dataclass(frozen=True, eq=False)
class JobGraph:
    """The graphs of all ranks of a job, joined at their collectives."""

    graphs: tuple[Graph, ...]
    joint: JointCollectives
    offset_ns: Floats  # per rank: added to its clock, it gives the clock of the first rank
    arrival: str = "last"  # a collective starts when the "last" or the "first" rank arrives, or at the "mean"
    excused: tuple[int, ...] = ()  # ranks that no other rank waits for
    synced_every: int = 1  # ranks exchange data in every n-th step only

    def awaited(self, arrivals_ns: Floats) -> float:
        """Return what a collective waits for, of the arrivals of its ranks: the last, the mean or the first."""
        if self.arrival == "mean":
            return float(arrivals_ns.mean())
        return float(arrivals_ns.min() if self.arrival == "first" else arrivals_ns.max())

    def with_joint(self, **changes: object) -> JobGraph:
        """Return the job with these columns of its collectives replaced."""
        return replace(self, joint=replace(self.joint, **changes))  # type: ignore[arg-type]

    def with_graphs(self, graphs: Sequence[Graph]) -> JobGraph:
        """Return the job with other graphs of its ranks; the transfers become as much shorter as the device ops are."""
        factor = np.ones(len(self.joint))
        for rank, (old, new) in enumerate(zip(self.graphs, graphs, strict=True)):
            member = self.joint.op[:, rank] >= 0
            ops = self.joint.op[member, rank]
            ratio = new.device.dur_ns[ops] / np.maximum(old.device.dur_ns[ops], 1.0)
            factor[member] = np.minimum(factor[member], ratio)
        return replace(self, graphs=tuple(graphs)).with_joint(transfer_ns=self.joint.transfer_ns * factor)

    def without_collectives(self, mask: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> JobGraph:
        """Return the job where these collectives take no time and join nobody."""
        graphs = list(self.graphs)
        for rank, graph in enumerate(graphs):
            ops = self.joint.op[mask, rank]
            graphs[rank] = graph.without_work(ops[ops >= 0])
        left = ~mask
        names = ("op", "transfer_ns", "recorded_ns", "kind", "bytes", "step")
        joint = JointCollectives(**{name: getattr(self.joint, name)[left] for name in names})
        return replace(self, graphs=tuple(graphs), joint=joint)


def build_job_graph(runs: Sequence[Run]) -> JobGraph:
    """Return the graph of the job that these runs are the ranks of, with the un-profiled costs of each rank.

    Raises RunError if a rank has no collectives, or if too few of them can be matched.
    """
    ranks = ranks_with_collectives(runs)
    if len(ranks) < max(2, len(runs)):
        problem = "a job has two ranks or more" if len(runs) < 2 else "no collectives were recorded on some ranks"
        raise RunError("These runs cannot be replayed together.", why=problem, fix=RECORD_ALL)
    traced = [build_graph(rank.run, rank.steps, rank.ledger) for rank in ranks]
    _check_quality(traced)
    graphs = tuple(calibrate(graph).graph for graph in traced)
    sides = [
        rank_arrivals(rank.run, rank.steps, rank.collectives, np.ones(len(rank.collectives), bool)) for rank in ranks
    ]
    joint = _match(ranks, graphs, sides)
    if len(np.unique(joint.step)) < 3:
        raise RunError(
            "These runs cannot be replayed together.",
            why="they share the collectives of fewer than three steps",
            fix=RECORD_ALL,
        )
    return JobGraph(graphs, joint, _offsets(ranks, sides))


def _check_quality(graphs: Sequence[Graph]) -> None:
    """Raise RunError if the replay of one of the ranks alone cannot be trusted."""
    for index, graph in enumerate(graphs):
        quality = Quality.of(graph)
        if quality.refusal_reason is not None:
            rank = graph.run.rank if graph.run.rank is not None else index
            raise RunError(
                "These runs cannot be replayed together.",
                why=f"on rank {rank}, {quality.refusal_reason}",
                fix=quality.fix,
            )


def _match(ranks: Sequence[Rank], graphs: Sequence[Graph], sides: Sequence[RankArrivals]) -> JointCollectives:
    """Match the collectives of all ranks by their keys; those that a rank of the group lacks are left out."""
    keys = np.unique(np.concatenate([side.key for side in sides]))
    row = np.full((len(keys), len(sides)), NONE, np.int64)
    op = row.copy()
    for index, (rank, graph, side) in enumerate(zip(ranks, graphs, sides, strict=True)):
        op_of_event = np.full(len(rank.run.event_rows) + 1, NONE, np.int64)
        op_of_event[graph.device.event] = np.where(graph.device.call >= 0, np.arange(len(graph.device)), NONE)
        at = np.searchsorted(keys, side.key)
        row[at, index] = side.row
        op[at, index] = op_of_event[rank.collectives.event[side.row]]
    first = (row >= 0).argmax(axis=1)
    sizes, kind, size, step = (np.full(len(keys), NONE, np.int64) for _ in range(4))
    recorded = np.full(row.shape, np.inf)
    for index, (rank, side) in enumerate(zip(ranks, sides, strict=True)):
        member = row[:, index] >= 0
        recorded[member, index] = rank.collectives.dur_ns[row[member, index]]
        is_first = member & (first == index)
        rows = row[is_first, index]
        sizes[is_first], kind[is_first], size[is_first] = (
            getattr(rank.collectives, name)[rows] for name in ("group_size", "kind", "bytes")
        )
        step[is_first] = side.step[np.searchsorted(side.key, keys[is_first])]
    count = (op >= 0).sum(axis=1)
    complete = (count == np.where(sizes > 0, sizes, len(ranks))) & (count > 1)
    return JointCollectives(
        op=op[complete],
        transfer_ns=recorded[complete].min(axis=1, initial=np.inf),
        recorded_ns=recorded[complete],
        kind=kind[complete],
        bytes=size[complete],
        step=step[complete],
    )


def _offsets(ranks: Sequence[Rank], sides: Sequence[RankArrivals]) -> Floats:
    """Return what turns the clock of each rank into that of the first: collectives end at the same time on all ranks.

    A rank that shares no collective with the first one keeps the clock of its run.
    """
    offsets = np.zeros(len(ranks))
    for index in range(1, len(ranks)):
        keys = np.intersect1d(sides[0].key, sides[index].key, assume_unique=True)
        ends = [
            side.start_ns[at] + side.dur_ns[at]
            for side in (sides[0], sides[index])
            for at in (np.searchsorted(side.key, keys),)
        ]
        if len(keys):
            offsets[index] = float(np.median(ends[0] - ends[1]))
    return offsets
