"""The cost of dense gradients of embedding tables: the backward pass writes, and the optimizer updates, all rows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.launches import rows_in_interior
from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.optimizers import (
    mask_inside,
    optimizer_cost_on_cpu,
    optimizer_cost_on_gpu,
    optimizer_steps,
)
from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.forward_backward import backward_passes
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, union
from gpulab.run import Run

_NODE = re.compile(r": Embedding(Bag)?Backward\d*$")
_NORM = re.compile(r"^aten::(linalg_vector_norm|_foreach_norm)$")


@dataclass(frozen=True, kw_only=True)
class EmbeddingGradients:
    """Dense gradients of embedding tables, in a typical step."""

    elements: int  # of the tables
    rows: int  # of the largest table
    elements_frac: float  # of the elements that the optimizers update
    backward_ns: int
    update_ns: int  # the tables' share of the optimizer step, by elements
    clips_gradients: bool  # norms are computed between the backward pass and the optimizer
    spans: Spans  # of the backward passes of embeddings, and of the optimizer step


def embedding_gradients(run: Run, steps: Steps, ledger: Ledger) -> EmbeddingGradients | None:
    """Return the cost of dense gradients of embedding tables; None if there are none, or if their size is unknown."""
    elements = sum(model.embedding_elements or 0 for model in run.models)
    updated = sum(optimizer.elements or 0 for optimizer in run.optimizers)
    passes = backward_passes(run)
    if not elements or passes is None or updated < elements:
        return None
    is_embedding = passes.nodes.matching(lambda word: bool(_NODE.search(word)))
    nodes = rows_in_interior(passes.nodes.select(np.flatnonzero(is_embedding)), steps)
    kernels = interior_kernels(run, steps, ledger)
    optimizer = optimizer_cost_on_cpu(run, steps) if kernels is None else optimizer_cost_on_gpu(kernels)
    if not len(nodes) or optimizer is None:
        return None
    spans = nodes.spans() if kernels is None else kernels.exposed(mask_inside(run.event_rows, kernels.call, nodes))
    starts, ends = (np.concatenate(times) for times in zip(spans, optimizer.spans, strict=True))
    return EmbeddingGradients(
        elements=elements,
        rows=max(model.embedding_rows or 0 for model in run.models),
        elements_frac=elements / updated,
        backward_ns=steps.typical_covered_ns(spans),
        update_ns=round(optimizer.cost_ns * elements / updated),
        clips_gradients=_clips_gradients(run, passes.spans),
        spans=union(starts, ends),
    )


def _clips_gradients(run: Run, backward: Spans) -> bool:
    """Whether norms are computed after a backward pass and before the optimizer step that follows it."""
    events, calls = run.event_rows, optimizer_steps(run)
    norms = np.sort(events["start_ns"][events.matching(lambda word: bool(_NORM.match(word)))])
    updates = np.sort(calls["start_ns"])
    following = np.searchsorted(updates, backward.end_ns)
    has_update = following < len(updates)
    until = updates[following[has_update]]
    since = backward.end_ns[has_update]
    return bool((np.searchsorted(norms, until) > np.searchsorted(norms, since)).any())
