"""The work of some spans of the main thread: its operators on the CPU, or the kernels launched there on a GPU."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpulab.analysis.kernels.interior_kernels import InteriorKernels, interior_kernels
from gpulab.analysis.kernels.optimizers import mask_inside, optimizer_steps
from gpulab.intervals import Ints, Spans, covered_ns, intersect, no_spans
from gpulab.rules.engine.evidence import Evidence


class Work(NamedTuple):
    """Work done in some spans, and their length, in a typical traced step."""

    cost_ns: int
    spans: Spans
    length_ns: int  # of the spans themselves, with dispatch


def work_in_spans(evidence: Evidence, spans: Spans) -> Work | None:
    """Return the work in these spans, without that of the optimizer; None if there is no kernel of it on a GPU."""
    if not evidence.on_gpu:
        computing = intersect(evidence.ledger.spans.get("compute", no_spans()), spans)
        steps = evidence.steps
        return Work(steps.typical_covered_ns(computing), computing, steps.typical_covered_ns(spans))
    kernels = evidence.cached(interior_kernels)
    return None if kernels is None else _work_of_kernels(kernels, spans)


def _work_of_kernels(kernels: InteriorKernels, spans: Spans) -> Work | None:
    """Return the exposed work of the kernels that were launched in these spans."""
    events = kernels.run.event_rows
    with_call = np.flatnonzero(kernels.call >= 0)
    call_ns: Ints = events["start_ns"][kernels.call[with_call]]
    inside = np.zeros(len(kernels), bool)
    inside[with_call] = covered_ns(spans, call_ns, call_ns + 1) > 0
    inside &= ~mask_inside(events, kernels.call, optimizer_steps(kernels.run))
    if not inside.any():
        return None
    return Work(kernels.cost_ns(inside), kernels.spans(inside), kernels.typical_ns(spans))
