"""A change that removes work inside given spans: the effect of a fix that has no rewrite."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpulab.intervals import Coverage, Spans
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Change, Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import cached_per_run


def removal(
    name: str,
    spans: Spans,
    realised_fracs: tuple[float, float, float],
    *,
    cause_frac: float = 1.0,
    host_spans: Spans | None = None,
) -> Change:
    """Return a change that removes what host and device did inside these spans; waits for that work end earlier.

    `realised_fracs`: the share (0-1) of the spans that a fix removes: at least, at most, and the upper bound for any
    fix. `cause_frac`: the share of the spans' time that belongs to the cause. `host_spans`: when the host did its
    work for this, if that is not the same time; `no_spans()` keeps all work of the host.
    """

    @cached_per_run
    def inside(graph: Graph) -> InsideShares:
        return _shares_inside(graph, spans, spans if host_spans is None else host_spans)

    def remaining(graph: Graph, share: float) -> Graph:
        return _scaled(graph, inside(graph), 1 - cause_frac * share)

    def edit(graph: Graph, value: Value, draw: Draw) -> Graph:
        """Work inside the spans takes less time, or none; everything else stays as it is."""
        return remaining(graph, draw.between(name, realised_fracs[1], realised_fracs[0]))

    return Change(
        Rewrite(
            name=name,
            edit=edit,
            best_case=lambda graph, value: remaining(graph, realised_fracs[2]),
            grade="A",
            about="work removed",
            bound_label="all of it removed",
            refusal_reason=lambda graph, value: None,
        ),
        True,
    )


@dataclass(frozen=True, eq=False)
class InsideShares:
    """Share (0-1) of each device op, call and host work inside the spans; None or absent if it is not changed."""

    device: Floats
    call: Floats | None = None
    before: Mapping[str, Floats] = field(default_factory=dict)


def _shares_inside(graph: Graph, spans: Spans, host_spans: Spans) -> InsideShares:
    device = _share_covered(spans, graph.device.start_ns, graph.device.dur_ns)
    device = _extrapolated(graph, spans, device)
    if not host_spans.total_ns:
        return InsideShares(device)
    calls = _share_covered(host_spans, graph.host.start_ns, graph.host.call_ns)
    return InsideShares(device, calls, graph.share_inside(host_spans))


def _share_covered(spans: Spans, start_ns: Floats, length_ns: Floats) -> Floats:
    """Return the share (0-1) of each stretch of time inside the spans."""
    start = start_ns.astype(np.int64)
    covered_ns = Coverage.of(spans).covered_ns(start, start + length_ns.astype(np.int64))
    fractions: Floats = covered_ns / length_ns.clip(min=1.0)
    return fractions.clip(max=1.0)


def _extrapolated(graph: Graph, spans: Spans, device: Floats) -> Floats:
    """Set the share of ops outside all spans to the mean of ops of the same name between the first span and the last.

    The spans cover the interior steps, but a host that runs ahead by some steps waits for the work of earlier ones.
    """
    if not len(spans.start_ns) or not len(device):
        return device
    start = graph.device.start_ns
    beyond = (start < spans.start_ns.min()) | (start >= spans.end_ns.max())
    code = graph.run.event_rows.text("name").codes[graph.device.event]
    count = np.bincount(code[~beyond], minlength=code.max() + 1)
    usual = np.bincount(code[~beyond], device[~beyond], code.max() + 1) / np.maximum(count, 1)
    return np.where(beyond, usual[code], device)


def _scaled(graph: Graph, inside: InsideShares, share: float) -> Graph:
    """Return the graph with this share left of the work inside the spans."""
    removed = 1 - share
    if len(graph.device):
        graph = graph.with_device(dur_ns=graph.device.dur_ns * (1 - removed * inside.device))
    if inside.call is None:
        return graph
    graph = graph.scaled_before({part: 1 - removed * fraction for part, fraction in inside.before.items()})
    return graph.with_host(call_ns=graph.host.call_ns * (1 - removed * inside.call))
