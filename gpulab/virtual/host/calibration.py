"""How fast this CPU calls PyTorch: what tiny operators take of it, measured in about a second.

On tensors of a few numbers an operator's time is the cost of calling it: Python's arguments, the dispatcher, checks,
the autograd graph. A GPU's operators pay the same, on the same thread.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

ROUNDS = 12  # in each, every loop has a turn: a moment in which others crowd the CPU then hits all alike
TURN_NS = 8_000_000
CHUNK = 20  # calls between two looks at the clock, which costs 50 ns
NODES = 40  # of the graph whose backward is timed

# The same loops on the CPU that counts as usual: PyTorch 2.13, Python 3.11, AMD EPYC (Zen 4), its core otherwise idle.
# Beside another busy thread on the same core they took 1.65 times as long, all alike.
USUAL_NS: Mapping[str, int] = {
    "add": 1_780,
    "add_": 730,
    "view": 1_170,
    "linear": 3_870,
    "layer_norm": 3_570,
    "sum": 1_850,
    "backward": 4_560,
}
CALLING = ("add", "add_", "view", "linear", "layer_norm", "sum")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """By how much slower than the usual CPU this one is: 2 is twice as slow."""

    calling: float  # PyTorch's operators
    autograd: float  # nodes of the graph in backward


def speed() -> Speed:
    """Measure this CPU. No random number is drawn, no setting changed, and nothing recorded may be switched on."""
    took = measured()
    return Speed(
        calling=statistics.median(took[name] / USUAL_NS[name] for name in CALLING),
        autograd=took["backward"] / USUAL_NS["backward"],
    )


def measured(rounds: int = ROUNDS) -> dict[str, float]:
    """What one call of each loop takes, in ns, warm: the quarter of the time in which nobody else is in the way."""
    import torch

    given: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}
    seen: dict[str, list[float]] = {}
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cpu", enabled=False):
        leaf, other = torch.ones(8, requires_grad=True, **given), torch.zeros(8, **given)
        row, square = torch.ones(1, 8, requires_grad=True, **given), torch.ones(8, 8, requires_grad=True, **given)
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
                seen.setdefault(name, []).extend(_turn(chunk))
    return {name: statistics.quantiles(times, n=4)[0] for name, times in seen.items()}


def _turn(chunk: Callable[[], float]) -> list[float]:
    """One loop for some milliseconds; the first chunk only warms up."""
    until_ns = perf_counter_ns() + TURN_NS
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
    """What backward takes for each operator of forward: the graph is made outside the time."""
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
