"""How ranks without a GPU share the cores of a machine: what they compute alone, and what the cores allow at least."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.intervals import Spans, intersect, subtract, union, union_of
from gpulab.replay.job.job_graph import JobGraph
from gpulab.tables import EventKind

_COMPUTES = "aten::"  # operators; those that exchange data or wait for it have other names


@dataclass(frozen=True, kw_only=True)
class SharedMachine:
    """Times per step. `alone_ns`: a rank computes while no other does (of the rank that has least of it).

    `capacity_ns`: all operators of all ranks, spread over the cores of the machine.
    """

    alone_ns: float
    capacity_ns: float
    cores: float


def shared_machine(job: JobGraph) -> SharedMachine:
    """Return how the ranks share their machine. That much more of their work coincides if no rank waits for another."""
    steps = job.graphs[0].steps
    # Only complete traced steps of the first rank: between two traced parts, nothing is known of the operators.
    busy = [intersect(_computing(job, rank), steps.interior_spans) for rank in range(len(job.graphs))]
    alone_ns = [
        subtract(spans, union_of(*(other for index, other in enumerate(busy) if index != rank))).total_ns
        for rank, spans in enumerate(busy)
    ]
    count = max(1, int(steps.interior.sum()))
    machine = job.graphs[0].run.machine
    cores = machine.cores_allowed or machine.cores or len(busy)
    return SharedMachine(
        alone_ns=min(alone_ns) / count,
        capacity_ns=sum(spans.total_ns for spans in busy) / count / cores,
        cores=float(cores),
    )


def _computing(job: JobGraph, rank: int) -> Spans:
    """Return when a rank computes, on the clock of the first rank."""
    run = job.graphs[rank].run
    rows = run.event_rows
    names = rows.text("name").matching(name.startswith(_COMPUTES) for name in rows.text("name").vocabulary)
    mask = names & (rows["kind"] == EventKind.OP.value)
    start_ns = rows["start_ns"][mask] + round(float(job.offset_ns[rank]))
    return union(start_ns, start_ns + rows["dur_ns"][mask])
