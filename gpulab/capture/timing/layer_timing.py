"""Time the layers of a training step in float32 and in bfloat16, on this machine, after the recorded code has ended.

Whether bfloat16 instructions make a layer faster depends on its shapes, the CPU and the kernels of PyTorch, and no
table tells. New tensors of the same shapes are used: the program's are not touched, nor its random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from time import perf_counter_ns  # bound here: the program may replace the functions of the module
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.layer_calls import (
    ATTENTION,
    CONVOLUTION,
    GRU,
    LINEAR,
    LSTM,
    ROW_PRODUCTS,
    Shape,
    TimedLayer,
)
from gpulab.capture.timing.timed_passes import own_autograd, times_in_turn
from gpulab.run import LayerTimes

_VALUE = 0.01  # of every element: products of it are neither zero nor subnormal
_MAX_BYTES = 2**28  # of the input and the weights of a layer; a larger one is not timed


class _Variant(NamedTuple):
    autocast: bool
    bfloat16_input: bool


# Under autocast, the input of a layer is converted unless the layer before it has returned bfloat16.
_VARIANTS = (_Variant(False, False), _Variant(True, False), _Variant(True, True))


def time_layers(calls: dict[TimedLayer, int], budget_ns: int) -> LayerTimes | None:
    """Time forward and backward pass of the layers, large ones first, within a budget; None if that suffices for none.

    calls: how often a step calls each layer, in the order of the first calls. The output of the last one is converted
    to float32, as a loss needs it. The times are sums over a step. Raises RuntimeError if PyTorch cannot compute a
    layer in bfloat16 on this CPU, such as an LSTM on one without instructions for it.
    """
    last = next(reversed(calls), None)
    end_ns, layers, sums_ns = perf_counter_ns() + budget_ns, 0, [0] * len(_VARIANTS)
    with own_autograd() as is_possible:
        for call in sorted(calls, key=_size, reverse=True) if is_possible else ():
            if 4 * sum([math.prod(shape) for shape in (call.input, *call.weights)]) > _MAX_BYTES:
                continue
            times_ns = _times_ns(call, call == last, end_ns)
            if times_ns is None:
                break
            layers += calls[call]
            sums_ns = [total + calls[call] * time_ns for total, time_ns in zip(sums_ns, times_ns, strict=True)]
    if not layers:
        return None
    float32_ns, converting_ns, chained_ns = sums_ns
    return LayerTimes(layers=layers, float32_ns=float32_ns, bfloat16_ns=converting_ns, bfloat16_chained_ns=chained_ns)


def _size(call: TimedLayer) -> int:
    return math.prod(call.input) * max([math.prod(shape) for shape in call.weights])


def _times_ns(call: TimedLayer, is_last: bool, end_ns: int) -> list[int] | None:
    """Return the median time of each variant; None if there is no time to measure all.

    The variants take turns, so that other programs slow all of them.
    """
    passes = [_forward_and_backward(call, variant, is_last) for variant in _VARIANTS]
    return times_in_turn(passes, end_ns)


def _forward_and_backward(call: TimedLayer, variant: _Variant, is_last: bool) -> Callable[[], None]:
    """Return a function that computes the output of such a layer, and the gradients of what needs one."""
    import torch

    tensor = _tensor(call.input)
    if call.is_channels_last:
        tensor = tensor.contiguous(memory_format=torch.channels_last)
    if variant.bfloat16_input:
        tensor = tensor.to(torch.bfloat16)
    weights = [_tensor(shape).requires_grad_(call.with_weight_gradients) for shape in call.weights]
    tensor.requires_grad_(call.with_input_gradient)
    forward = forward_pass(call, tensor, weights)
    with_gradients = [value for value in (tensor, *weights) if value.requires_grad]

    def run_once() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=variant.autocast):
            output = forward()
        if is_last:
            output = output.float()
        if with_gradients:
            torch.autograd.grad(output, with_gradients, torch.full_like(output, _VALUE))

    return run_once


def forward_pass(call: TimedLayer, tensor: Any, weights: list[Any]) -> Callable[[], Any]:
    """Return a function that computes the output of such a layer, with this input and these weights."""
    import torch

    if call.kind == LINEAR:
        return lambda: torch.nn.functional.linear(tensor, *weights)
    if call.kind == ROW_PRODUCTS:
        weight, bias = weights
        return lambda: torch.addmm(bias, tensor.reshape(-1, tensor.shape[-1]), weight)
    if call.kind in (LSTM, GRU):
        return _recurrent(call, tensor, weights)
    if call.kind == ATTENTION:
        return _attention(call, tensor, weights)
    dimensions = len(call.weights[0]) - 2
    function = getattr(torch.nn.functional, f"conv{'' if call.kind == CONVOLUTION else '_transpose'}{dimensions}d")
    weight, bias = (*weights, None)[:2]
    return lambda: function(tensor, weight, bias, *call.options)


def _recurrent(call: TimedLayer, tensor: Any, weights: list[Any]) -> Callable[[], Any]:
    import torch

    has_bias, layers, is_bidirectional, batch_first = call.options
    states = layers * (2 if is_bidirectional else 1), call.input[0 if batch_first else 1], call.weights[1][1]
    state = torch.zeros(states, dtype=tensor.dtype, device="cpu")
    arguments = weights, has_bias, layers, 0.0, True, is_bidirectional, batch_first
    if call.kind == LSTM:
        return lambda: torch.lstm(tensor, [state, state], *arguments)[0]
    return lambda: torch.gru(tensor, state, *arguments)[0]


def _attention(call: TimedLayer, tensor: Any, weights: list[Any]) -> Callable[[], Any]:
    import torch

    heads, batch_first, dropout, with_weights, key_length = call.options
    width, batch = call.input[2], call.input[0 if batch_first else 1]
    in_weight, in_bias = (*weights, None)[:2]
    out_weight = _tensor((width, width)).requires_grad_(call.with_weight_gradients)
    is_own = key_length == call.input[1 if batch_first else 0]
    query = tensor.transpose(0, 1) if batch_first else tensor
    key = query if is_own else _tensor((key_length, batch, width)).to(tensor.dtype)

    def forward() -> Any:
        return torch.nn.functional.multi_head_attention_forward(
            *(query, key, key, width, heads, in_weight, in_bias, None, None, False, dropout, out_weight, None),
            training=True,
            need_weights=with_weights,
        )[0]

    return forward


def _tensor(shape: Shape) -> Any:
    import torch

    return torch.full(shape, _VALUE, dtype=torch.float32, device="cpu")
