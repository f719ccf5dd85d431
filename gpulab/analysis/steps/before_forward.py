"""Operators on a batch before the first operator that has a node in the backward pass: no parameter affects them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.events.nesting import outermost
from gpulab.analysis.host.outside_model import OutsideModel, most_expensive
from gpulab.analysis.steps.forward_backward import backward_passes, forward_backward_spans
from gpulab.intervals import Spans, covered_ns, intersect, union
from gpulab.run import Run
from gpulab.tables import EventKind

_RANDOM = ("rand", "bernoulli", "uniform", "normal_", "multinomial", "dropout", "exponential_", "poisson")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The work between the arrival of a batch and the forward pass, apart from layers without gradients."""

    spans: Spans
    names: tuple[str, ...]  # its most expensive operators
    is_random: bool  # some of its operators draw random numbers


def preprocessing(run: Run, outside: OutsideModel) -> Preprocessing | None:
    """Return the part of the work outside models that precedes forward passes; None without such work."""
    passes, backward = forward_backward_spans(run), backward_passes(run)
    fetches = run.event_rows.of_kind(EventKind.LOADER)
    if passes is None or backward is None or not len(fetches):
        return None
    begins_ns, ends_ns = backward.spans
    forward_ns = passes.start_ns[np.maximum(np.searchsorted(passes.start_ns, begins_ns, side="right") - 1, 0)]
    arrived_ns = np.sort(fetches["start_ns"] + fetches["dur_ns"])
    last = np.searchsorted(arrived_ns, forward_ns, side="right") - 1
    arrived_ns = arrived_ns[np.maximum(last, 0)]
    # A second backward pass for the same batch has nothing before its forward pass but the first one.
    is_first = (last >= 0) & (arrived_ns >= np.append(0, ends_ns[:-1])) & (forward_ns > arrived_ns)
    spans = intersect(outside.spans, union(arrived_ns[is_first], forward_ns[is_first]))
    ops = run.event_rows.select(
        np.flatnonzero(run.event_rows.is_kind(EventKind.OP) & (run.event_rows["thread"] == run.main_thread))
    )
    ops = ops.select(np.flatnonzero(covered_ns(spans, ops["start_ns"], ops["start_ns"] + 1) > 0))
    if not len(ops):
        return None
    is_random = ops.matching(lambda name: any(word in name for word in _RANDOM)).any()
    names = most_expensive(ops.select(np.flatnonzero(outermost(ops))))
    return Preprocessing(spans=spans, names=names, is_random=bool(is_random))
