"""A rewrite that a test adds to the catalogue."""

from __future__ import annotations

from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import MIDDLE, Draw, Rewrite, Value


def half(graph: Graph, value: Value, draw: Draw) -> Graph:
    """Kernels in half the time. Models: each kernel. Cannot know: anything else."""
    return graph.with_device(dur_ns=graph.device.dur_ns / 2)


HALF = Rewrite(
    name="made_rewrite",
    edit=half,
    best_case=lambda graph, value: half(graph, value, MIDDLE),
    grade="A",
    about="kernels in half the time",
    bound_label="even that",
    refusal_reason=lambda graph, value: None,
)
