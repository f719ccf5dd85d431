"""Time parts of a training step alone, after the recorded code has ended: variants take turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter_ns  # bound here: the program may replace the functions of the module
from typing import Any

_ROUNDS, _LONG_ROUNDS = 5, 2  # the second number is enough once they took so long
_LONG_NS = 60_000_000


@contextlib.contextmanager
def own_autograd() -> Iterator[bool]:
    """Compute without the program's modes, hooks and random numbers; yields whether that is possible."""
    import torch

    if torch._C._len_torch_dispatch_stack():  # a mode of the program, such as FlopCounterMode, would see our operators
        yield False
        return
    with (
        torch._C.DisableTorchFunction(),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),  # dropout of attention
        torch.autograd.graph.saved_tensors_hooks(_unchanged, _unchanged),  # instead of hooks of the program
    ):
        yield True


def _unchanged(tensor: Any) -> Any:
    return tensor


def times_in_turn(passes: Sequence[Callable[[], None]], end_ns: int) -> list[int] | None:
    """Return the median time of each function; None if there is no time until `end_ns` to measure all.

    They take turns, so that other programs slow all of them.
    """
    start_ns, rounds_ns = perf_counter_ns(), list[list[int]]()
    while len(rounds_ns) < 1 + _ROUNDS:  # the first one selects and prepares the kernels
        if len(rounds_ns) > _LONG_ROUNDS and perf_counter_ns() - start_ns > _LONG_NS:
            break
        times_ns: list[int] = []
        for run_once in passes:
            began_ns = perf_counter_ns()
            if began_ns >= end_ns:
                return _medians(rounds_ns[1:])
            run_once()
            times_ns.append(perf_counter_ns() - began_ns)
        rounds_ns.append(times_ns)
    return _medians(rounds_ns[1:])


def _medians(rounds_ns: list[list[int]]) -> list[int] | None:
    return [sorted(values)[len(values) // 2] for values in zip(*rounds_ns, strict=True)] if rounds_ns else None
