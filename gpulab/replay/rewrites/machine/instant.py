"""The two lower limits: a GPU, or a host, that takes no time. Bounds that need no model."""

from __future__ import annotations

import numpy as np

from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value


def instant_gpu(graph: Graph, value: Value, draw: Draw) -> Graph:
    """An infinitely fast GPU: the step takes what the host alone needs. No GPU, precision or kernel can give more."""
    return graph.with_device(dur_ns=np.zeros(len(graph.device)))


def instant_host(graph: Graph, value: Value, draw: Draw) -> Graph:
    """An infinitely fast host: the step takes what the GPU alone needs. No loader, compiler or CPU can give more."""
    before = {part: np.zeros_like(ns) for part, ns in graph.host.before_ns.items()}
    return graph.with_host(before_ns=before, call_ns=np.zeros(len(graph.host)))


def _refusal(graph: Graph, value: Value) -> str | None:
    return None if graph.on_gpu else "the run contains no GPU work"


INSTANT_REWRITES = (
    Rewrite(
        name="instant_gpu",
        edit=instant_gpu,
        best_case=lambda graph, value: graph.with_device(dur_ns=np.zeros(len(graph.device))),
        grade="A",
        about="an infinitely fast GPU",
        bound_label="an infinitely fast GPU",
        refusal_reason=_refusal,
        bound_only=True,
    ),
    Rewrite(
        name="instant_host",
        edit=instant_host,
        best_case=lambda graph, value: instant_host(graph, value, Draw()),
        grade="A",
        about="an infinitely fast host",
        bound_label="an infinitely fast host",
        refusal_reason=_refusal,
        bound_only=True,
    ),
)
