"""Measure how fast this CPU calls PyTorch operators, in about a second.

On tensors with a few elements, the time of an operator is its call overhead: Python arguments, the dispatcher, checks,
the autograd graph. Operators on a GPU have the same overhead, on the same thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

ROUNDS = 12  # every loop runs once per round, so that other load on the CPU affects all loops alike
LOOP_NS = 8_000_000
CHUNK = 20  # calls per clock reading, which costs 50 ns
NODES = 40  # nodes of the graph whose backward is timed

# The same loops on the reference CPU: PyTorch 2.13, Python 3.11, AMD EPYC (Zen 4), otherwise idle core. With another
# busy thread on the same core, all of them took 1.65 times as long.
REFERENCE_NS: Mapping[str, int] = {
    "add": 1_780,
    "add_": 730,
    "view": 1_170,
    "linear": 3_870,
    "layer_norm": 3_570,
    "sum": 1_850,
    "backward": 4_560,
}
DISPATCH_LOOPS = ("add", "add_", "view", "linear", "layer_norm", "sum")


@dataclass(frozen=True, kw_only=True)
class CpuSlowdown:
    """Slowdown of this CPU relative to the reference CPU: 2 is twice as slow."""

    dispatch: float  # calls of PyTorch operators
    autograd: float  # autograd nodes in backward


def measure_slowdown() -> CpuSlowdown:
    """Measure this CPU. Draws no random numbers and changes no settings; must not run while something records."""
    times = measure_loops()
    return CpuSlowdown(
        dispatch=statistics.median(times[name] / REFERENCE_NS[name] for name in DISPATCH_LOOPS),
        autograd=times["backward"] / REFERENCE_NS["backward"],
    )


def measure_loops(rounds: int = ROUNDS) -> dict[str, float]:
    """Time one call of each loop, in ns, after warm-up: the first quartile, which excludes most disturbances."""
    import torch

    options: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    samples: dict[str, list[float]] = {}
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        leaf, other = torch.ones(8, requires_grad=True, **options), torch.zeros(8, **options)
        row, square = torch.ones(1, 8, requires_grad=True, **options), torch.ones(8, 8, requires_grad=True, **options)
        linear, norm = torch.nn.functional.linear, torch.nn.functional.layer_norm
        loops: dict[str, Callable[[], float]] = {
            "add": _chunk(lambda: leaf + other),
            "add_": _chunk(lambda: other.add_(other)),
            "view": _chunk(square.t),
            "linear": _chunk(lambda: linear(row, square, other)),
            "layer_norm": _chunk(lambda: norm(row, (8,))),
            "sum": _chunk(leaf.sum),
            "backward": _backward(leaf),
        }
        for _ in range(rounds):
            for name, chunk in loops.items():
                samples.setdefault(name, []).extend(_run_chunks(chunk))
    # "inclusive": the default extrapolates, for two very different times to less than zero.
    return {name: statistics.quantiles(times, n=4, method="inclusive")[0] for name, times in samples.items()}


def _run_chunks(chunk: Callable[[], float]) -> list[float]:
    """Run one loop for TURN_NS; the first chunk is warm-up."""
    until_ns = perf_counter_ns() + LOOP_NS
    chunk()
    times = [chunk(), chunk()]
    while perf_counter_ns() < until_ns:
        times.append(chunk())
    return times


def _chunk(call: Callable[[], Any]) -> Callable[[], float]:
    def timed() -> float:
        start_ns = perf_counter_ns()
        for _ in range(CHUNK):
            call()
        return (perf_counter_ns() - start_ns) / CHUNK

    return timed


def _backward(leaf: Any) -> Callable[[], float]:
    """Time backward per forward operator; building the graph is not timed."""
    import torch

    def timed() -> float:
        last = leaf
        for _ in range(NODES):
            last = last * 1.0
        total = last.sum()
        start_ns = perf_counter_ns()
        torch.autograd.grad(total, leaf)
        return (perf_counter_ns() - start_ns) / NODES

    return timed
