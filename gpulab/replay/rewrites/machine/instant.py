"""The two floors: a GPU, or a host, that costs no time. Bounds that need no model of anything."""

from __future__ import annotations

import numpy as np

from gpulab.replay.graph.graph import Graph
from gpulab.replay.rewrite import Draw, Rewrite, Value


def instant_gpu(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A GPU infinitely fast: what the host alone takes. No other GPU, precision or kernel can give more than this."""
    return graph.with_device(dur_ns=np.zeros(len(graph.device)))


def instant_host(graph: Graph, value: Value, draw: Draw) -> Graph:
    """A host infinitely fast: what the GPU alone takes. No loader, compiler or CPU can give more than this."""
    before = {part: np.zeros_like(ns) for part, ns in graph.host.before_ns.items()}
    return graph.with_host(before_ns=before, own_ns=np.zeros(len(graph.host)))


def _without_gpu(graph: Graph, value: Value) -> str | None:
    return None if graph.on_gpu else "the run holds no work of a GPU"


FLOORS = (
    Rewrite(
        name="instant_gpu",
        edit=instant_gpu,
        ceiling=lambda graph, value: graph.with_device(dur_ns=np.zeros(len(graph.device))),
        grade="A",
        about="a GPU that takes no time",
        ceiling_means="a GPU infinitely fast",
        lacking=_without_gpu,
        bound=True,
    ),
    Rewrite(
        name="instant_host",
        edit=instant_host,
        ceiling=lambda graph, value: instant_host(graph, value, Draw()),
        grade="A",
        about="a host that takes no time",
        ceiling_means="a host infinitely fast",
        lacking=_without_gpu,
        bound=True,
    ),
)
