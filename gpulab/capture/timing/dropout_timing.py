"""Time the dropout of a training step, and a faster one with the same distribution, after the recorded code has ended.

PyTorch draws Bernoulli numbers for the mask; uniform numbers that are compared with the rate take less time. By how
much depends on the rate, the CPU and the number of threads. New tensors of the same shapes are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from time import perf_counter_ns  # bound here: the program may replace the functions of the module
from typing import Any

from gpulab.capture.hooks.models.dropout_calls import TimedDropout
from gpulab.capture.timing.timed_passes import own_autograd, times_in_turn
from gpulab.run import DropoutTimes

_MAX_ELEMENTS = 2**26


def time_dropout(calls: Mapping[TimedDropout, int], budget_ns: int) -> DropoutTimes | None:
    """Time forward and backward pass of these calls, large ones first; None if the budget suffices for none.

    `calls`: how often a step makes each call. The times are sums over a step.
    """
    end_ns, count, sums_ns = perf_counter_ns() + budget_ns, 0, [0, 0]
    with own_autograd() as is_possible:
        for call in sorted(calls, key=_size, reverse=True) if is_possible else ():
            if _size(call) > _MAX_ELEMENTS:
                continue
            passes = [_pass(call, _usual), _pass(call, masked)]
            times_ns = times_in_turn(passes, end_ns)
            if times_ns is None:
                break
            count += calls[call]
            sums_ns = [total + calls[call] * time_ns for total, time_ns in zip(sums_ns, times_ns, strict=True)]
    return DropoutTimes(calls=count, bernoulli_ns=sums_ns[0], uniform_ns=sums_ns[1]) if count else None


def _usual(tensor: Any, rate: float) -> Any:
    import torch

    return torch.dropout(tensor, rate, True)  # the program may replace the function of torch.nn.functional


def masked(tensor: Any, rate: float) -> Any:
    """Return the tensor after dropout, by a mask of uniform random numbers."""
    import torch

    return tensor * torch.rand_like(tensor).ge_(rate).mul_(1 / (1 - rate))


def _size(call: TimedDropout) -> int:
    return math.prod(call.shape)


def _pass(call: TimedDropout, dropout: Callable[[Any, float], Any]) -> Callable[[], None]:
    """Return a function that computes the output, and the gradient of the input if it needs one."""
    import torch

    tensor = torch.ones(call.shape, dtype=torch.float32, device="cpu").requires_grad_(call.with_gradient)
    gradient = torch.ones(call.shape, dtype=torch.float32, device="cpu")

    def run_once() -> None:
        output = dropout(tensor, call.rate)
        if call.with_gradient:
            torch.autograd.grad(output, tensor, gradient)

    return run_once
