"""JobRewrite: one kind of change of a job, with its grade, its cost, and what remains unknown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpulab.replay.graph.graph import Graph
from gpulab.replay.job.job_graph import JobGraph
from gpulab.replay.pace_of_workers import with_pace_of_workers
from gpulab.replay.prediction import no_operators_reason
from gpulab.replay.rewrite import Draw, Rewrite, Value
from gpulab.replay.sweep import sweep


@dataclass(frozen=True, kw_only=True)
class JobRewrite:
    """One kind of change of a job. `edit` is a function of job, value and draw; its docstring explains the model."""

    name: str  # as users type it: "no_straggler"
    edit: Callable[[JobGraph, Value, Draw], JobGraph]
    best_case: Callable[[JobGraph, Value], JobGraph]  # all costs of the change are zero
    grade: str  # one of gpulab.replay.rewrite.GRADES
    about: str
    bound_label: str
    refusal_reason: Callable[[JobGraph, Value], str | None] = lambda job, value: None
    value_help: str = ""
    default: Value | None = True
    parse: Callable[[str], Value] | None = None
    cost: str = ""
    work_factor: Callable[[JobGraph, Value], float] | None = None


def of_all_ranks(rewrite: Rewrite) -> JobRewrite:
    """Return the change of a job that makes this change on every rank."""
    factor = rewrite.work_factor
    return JobRewrite(
        name=rewrite.name,
        edit=lambda job, value, draw: job.with_graphs([_edited(rewrite, graph, value, draw) for graph in job.graphs]),
        best_case=lambda job, value: job.with_graphs([rewrite.best_case(graph, value) for graph in job.graphs]),
        grade=rewrite.grade,
        about=rewrite.about,
        bound_label=rewrite.bound_label,
        refusal_reason=lambda job, value: _first_refusal(rewrite, job, value),
        value_help=rewrite.value_help,
        default=rewrite.default,
        parse=rewrite.parse,
        cost=rewrite.cost,
        work_factor=None if factor is None else lambda job, value: factor(job.graphs[0], value),
    )


def _edited(rewrite: Rewrite, graph: Graph, value: Value, draw: Draw) -> Graph:
    changed = rewrite.edit(graph, value, draw)
    return with_pace_of_workers(changed, graph, sweep(graph).step_ns) if graph.on_gpu else changed


def _first_refusal(rewrite: Rewrite, job: JobGraph, value: Value) -> str | None:
    """Return why the first rank on which this change cannot be predicted refuses it; None if none does."""
    for graph in job.graphs:
        reason = no_operators_reason(rewrite, graph) or rewrite.refusal_reason(graph, value)
        if reason is not None:
            return reason
    return None
