"""What was done in some spans taken away, wholly or in part: the effect of a fix that is no rewrite of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from gpulab.intervals import Coverage, Spans
from gpulab.replay.graph.graph import Floats, Graph
from gpulab.replay.rewrite import Chosen, Draw, Rewrite, Value
from gpulab.replay.rewrites.engine.cache import once


def without(
    name: str, spans: Spans, realised: tuple[float, float, float], *, cut: float = 1.0, device_only: bool = False
) -> Chosen:
    """Take away what host and device did inside these spans; who waited for it waits no longer.

    `realised`: how much of it a fix takes away, 0-1: at the least, at the most, and what no way of doing it exceeds.
    `cut`: the share of the spans' time that is the cause's, where it is not all. `device_only`: the host's work at the
    same time is another's.
    """

    @once
    def inside(graph: Graph) -> Inside:
        return _inside(graph, spans, device_only)

    def left(graph: Graph, share: float) -> Graph:
        return _left(graph, inside(graph), 1 - cut * share)

    def edit(graph: Graph, value: Value, draw: Draw) -> Graph:
        """What lay inside the spans takes less time, or none; the rest stays as it is."""
        return left(graph, draw.between(name, realised[1], realised[0]))

    return Chosen(
        Rewrite(
            name=name,
            edit=edit,
            ceiling=lambda graph, value: left(graph, realised[2]),
            grade="A",
            about="work taken away",
            ceiling_means="even removing it wholly",
            lacking=lambda graph, value: None,
        ),
        True,
    )


@dataclass(frozen=True, eq=False)
class Inside:
    """How much of everything lay inside some spans in the recording, 0-1; what is not to be touched is not there."""

    device: Floats
    own: Floats | None = None
    before: Mapping[str, Floats] = field(default_factory=dict)


def _inside(graph: Graph, spans: Spans, device_only: bool) -> Inside:
    covered = Coverage.of(spans)

    def share(start_ns: Floats, length_ns: Floats) -> Floats:
        start = start_ns.astype(np.int64)
        told: Floats = covered.within(start, start + length_ns.astype(np.int64)) / length_ns.clip(min=1.0)
        return told.clip(max=1.0)

    device = _beyond(graph, spans, share(graph.device.start_ns, graph.device.dur_ns))
    if device_only:
        return Inside(device)
    return Inside(device, share(graph.host.at_ns, graph.host.own_ns), graph.within(spans))


def _beyond(graph: Graph, spans: Spans, device: Floats) -> Floats:
    """Work before the first span and after the last goes as work of its name does between them.

    The spans are of the steps that count; but a host that is steps ahead of its GPU waits for the work of earlier ones.
    """
    if not len(spans.start_ns) or not len(device):
        return device
    start = graph.device.start_ns
    beyond = (start < spans.start_ns.min()) | (start >= spans.end_ns.max())
    code = graph.run.event_rows.words("name").codes[graph.device.event]
    count = np.bincount(code[~beyond], minlength=code.max() + 1)
    usual = np.bincount(code[~beyond], device[~beyond], code.max() + 1) / np.maximum(count, 1)
    return np.where(beyond, usual[code], device)


def _left(graph: Graph, inside: Inside, share: float) -> Graph:
    """The graph with this share left of what was done inside the spans."""
    gone = 1 - share
    if len(graph.device):
        graph = graph.with_device(dur_ns=graph.device.dur_ns * (1 - gone * inside.device))
    if inside.own is None:
        return graph
    graph = graph.scaled_before({part: 1 - gone * within for part, within in inside.before.items()})
    return graph.with_host(own_ns=graph.host.own_ns * (1 - gone * inside.own))
