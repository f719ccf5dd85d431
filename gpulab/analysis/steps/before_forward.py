"""Operators on a batch before the first operator that has a node in the backward pass: no parameter affects them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpulab.analysis.host.outside_model import OutsideModel
from gpulab.analysis.steps.forward_backward import backward_passes, forward_backward_spans
from gpulab.intervals import Spans, intersect, no_spans, union
from gpulab.run import Run
from gpulab.tables import EventKind

_RANDOM = ("rand", "bernoulli", "uniform", "normal_", "multinomial", "dropout", "exponential_", "poisson")


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """The work between the arrival of a batch and the forward pass, apart from layers without gradients."""

    spans: Spans
    is_random: bool  # some of its operators draw random numbers


def preprocessing(run: Run, outside: OutsideModel) -> Preprocessing:
    """Return the part of the work outside models that precedes forward passes, in the steps of a DataLoader."""
    passes, backward = forward_backward_spans(run), backward_passes(run)
    fetches = run.event_rows.of_kind(EventKind.LOADER)
    if passes is None or backward is None or not len(fetches):
        return Preprocessing(spans=no_spans(), is_random=False)
    arrived_ns = np.sort(fetches["start_ns"] + fetches["dur_ns"])
    # The backward pass after each batch, and the forward pass that belongs to it: the last one that begins before.
    following = np.searchsorted(backward.spans.start_ns, arrived_ns)
    has_pass = following < len(backward.spans.start_ns)
    begins_ns = backward.spans.start_ns[following[has_pass]]
    forward = np.searchsorted(passes.start_ns, begins_ns, side="right") - 1
    arrived_ns, forward_ns = arrived_ns[has_pass], passes.start_ns[np.maximum(forward, 0)]
    precedes = (forward >= 0) & (forward_ns > arrived_ns)
    spans = intersect(outside.spans, union(arrived_ns[precedes], forward_ns[precedes]))
    return Preprocessing(spans=spans, is_random=_draws_numbers(run, spans))


def _draws_numbers(run: Run, spans: Spans) -> bool:
    events = run.event_rows.of_kind(EventKind.OP)
    drawing = events.matching(lambda name: any(word in name for word in _RANDOM))
    return bool(intersect(events.select(np.flatnonzero(drawing)).spans(), spans).total_ns)
