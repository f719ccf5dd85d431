"""What was done in some spans taken away, wholly or in part: the effect of a fix that is no rewrite of its own."""

from __future__ import annotations

from gpulab.intervals import Coverage, Spans
from gpulab.replay.graph import Floats, Graph
from gpulab.replay.rewrite import Chosen, Draw, Rewrite, Value


def without(name: str, spans: Spans, realised: tuple[float, float], cut: float = 1.0) -> Chosen:
    """Take away what host and device did inside these spans; who waited for it waits no longer.

    `realised`: how much of it a fix takes away, at the least and at the most, 0-1. `cut`: the share of the spans' time
    that is the cause's, where it is not all.
    """

    def edit(graph: Graph, value: Value, draw: Draw) -> Graph:
        """What lay inside the spans takes less time, or none; the rest stays as it is."""
        return _left(graph, spans, 1 - cut * draw.between(name, realised[1], realised[0]))

    return Chosen(
        Rewrite(
            name=name,
            edit=edit,
            ceiling=lambda graph, value: _left(graph, spans, 1 - cut),
            grade="A",
            about="work taken away",
            ceiling_means="even removing it wholly",
            lacking=lambda graph, value: None,
        ),
        True,
    )


def _left(graph: Graph, spans: Spans, share: float) -> Graph:
    """The graph with this share left of what was done inside the spans."""
    covered = Coverage.of(spans)

    def kept(start_ns: Floats, length_ns: Floats) -> Floats:
        start = start_ns.astype("int64")
        inside = covered.within(start, start + length_ns.astype("int64")) / length_ns.clip(min=1.0)
        return 1 - (1 - share) * inside.clip(max=1.0)

    host, device = graph.host, graph.device
    within = graph.within(spans)
    cut = graph.scaled_before({part: 1 - inside * (1 - share) for part, inside in within.items()})
    cut = cut.with_host(own_ns=host.own_ns * kept(host.at_ns, host.own_ns))
    return cut.with_device(dur_ns=device.dur_ns * kept(device.start_ns, device.dur_ns)) if len(device) else cut
