"""Time layers of several modules, one after another and as one operator, on this machine.

How much one operator saves depends on the sizes: small layers cost mostly dispatch, large ones mostly arithmetic. New
tensors of the same sizes are used, after the recorded code: the program's are not touched, nor its random numbers.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from time import perf_counter_ns  # bound here: the program may replace the functions of the module
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.layer_calls import LINEAR
from gpulab.capture.hooks.models.separate_modules import EMBEDDING, SeparateLayer
from gpulab.capture.timing.timed_passes import own_autograd, times_in_turn
from gpulab.run import SeparateModules

_VALUE = 0.01  # of every element: products of it are neither zero nor subnormal
_MAX_BYTES = 2**26  # of inputs and weights, which exist twice, with gradients; larger layers are not timed


class JoinedTimes(NamedTuple):
    """Forward and, if there is one, backward pass of a layer of all modules."""

    separate_ns: int
    joined_ns: int


class _Passes(NamedTuple):
    """Functions that compute the outputs of all modules, and the tensors whose gradients a backward pass computes."""

    separate: Callable[[], list[Any]]
    separate_tensors: list[Any]
    joined: Callable[[], list[Any]]
    joined_tensors: list[Any]


def timed_modules(
    groups: Iterable[tuple[Counter[SeparateLayer], SeparateModules]], budget_ns: int
) -> tuple[SeparateModules, ...]:
    """Return the groups with the times of their layers in a step; without times if the budget does not suffice.

    The times of a group are those of all its layers, or missing.
    """
    groups, end_ns = list(groups), perf_counter_ns() + budget_ns
    times: dict[SeparateLayer, JoinedTimes] = {}
    with own_autograd() as is_possible:
        for layers, _ in groups if is_possible else ():
            for layer in layers:
                if layer not in times and (measured := _times(layer, end_ns)) is not None:
                    times[layer] = measured
    return tuple([_with_times(layers, modules, times) for layers, modules in groups])


def _with_times(
    layers: Counter[SeparateLayer], modules: SeparateModules, times: dict[SeparateLayer, JoinedTimes]
) -> SeparateModules:
    if not layers or not all([layer in times for layer in layers]):
        return modules
    calls = modules.calls / modules.modules  # of each module
    separate_ns = sum([count * times[layer].separate_ns for layer, count in layers.items()])
    joined_ns = sum([count * times[layer].joined_ns for layer, count in layers.items()])
    return replace(modules, separate_ns=round(calls * separate_ns), joined_ns=round(calls * joined_ns))


def _times(layer: SeparateLayer, end_ns: int) -> JoinedTimes | None:
    """Return the times of a layer of all modules; None if it is too large, or if there is no time to measure it."""
    elements = layer.modules * sum([math.prod(shape) for shape in (layer.input, *layer.weights)])
    if 4 * elements > _MAX_BYTES or perf_counter_ns() >= end_ns:
        return None
    passes = _passes(layer)
    functions = [
        _forward_and_backward(passes.separate, passes.separate_tensors),
        _forward_and_backward(passes.joined, passes.joined_tensors),
    ]
    times_ns = times_in_turn(functions, end_ns)
    return None if times_ns is None else JoinedTimes(*times_ns)


def _passes(layer: SeparateLayer) -> _Passes:
    if layer.kind == EMBEDDING:
        return _embeddings(layer)
    return _linear(layer) if layer.kind == LINEAR else _convolutions(layer)


def _embeddings(layer: SeparateLayer) -> _Passes:
    import torch

    embedding = torch.nn.functional.embedding
    ((rows, width),) = layer.weights
    indices = torch.arange(math.prod(layer.input), device="cpu").remainder_(rows).reshape(layer.input)
    tables = [_tensor((rows, width), layer.with_weight_gradients) for _ in range(layer.modules)]
    table = _tensor((layer.modules * rows, width), layer.with_weight_gradients)
    offsets = torch.arange(layer.modules, device="cpu").mul_(rows).reshape(layer.modules, *[1] * len(layer.input))
    return _Passes(
        lambda: [embedding(indices, weight) for weight in tables],
        tables if layer.with_weight_gradients else [],
        lambda: [embedding(indices + offsets, table)],
        [table] if layer.with_weight_gradients else [],
    )


def _linear(layer: SeparateLayer) -> _Passes:
    import torch

    linear = torch.nn.functional.linear
    (outputs, inputs), rows = layer.weights[0], math.prod(layer.input[:-1])
    values = [_tensor(layer.input, layer.with_input_gradient) for _ in range(layer.modules)]
    weights = [[_tensor(shape, layer.with_weight_gradients) for shape in layer.weights] for _ in range(layer.modules)]
    value = _tensor((layer.modules, rows, inputs), layer.with_input_gradient)
    weight = _tensor((layer.modules, inputs, outputs), layer.with_weight_gradients)
    has_bias = len(layer.weights) > 1
    bias = [_tensor((layer.modules, 1, outputs), layer.with_weight_gradients)] if has_bias else []
    return _Passes(
        lambda: [linear(tensor, *parts) for tensor, parts in zip(values, weights, strict=True)],
        [*_with_gradients(values), *_with_gradients([tensor for tensors in weights for tensor in tensors])],
        lambda: [torch.baddbmm(bias[0], value, weight) if bias else torch.bmm(value, weight)],
        _with_gradients([value, weight, *bias]),
    )


def _convolutions(layer: SeparateLayer) -> _Passes:
    """Return passes of convolutions, which are joined as groups of one convolution."""
    import torch

    shape, modules = layer.weights[0], layer.modules
    convolution = getattr(torch.nn.functional, f"conv{len(shape) - 2}d")
    *options, groups = layer.options
    values = [_tensor(layer.input, layer.with_input_gradient) for _ in range(modules)]
    weights = [[_tensor(part, layer.with_weight_gradients) for part in layer.weights] for _ in range(modules)]
    channels = len(layer.input) - len(shape) + 1  # the dimension; inputs may lack one for the batch
    joined_input = (*layer.input[:channels], modules * layer.input[channels], *layer.input[channels + 1 :])
    value = _tensor(joined_input, layer.with_input_gradient)
    joined = [_tensor((modules * part[0], *part[1:]), layer.with_weight_gradients) for part in layer.weights]
    weight, bias = (*joined, None)[:2]
    return _Passes(
        lambda: [
            convolution(tensor, *(*parts, None)[:2], *layer.options)
            for tensor, parts in zip(values, weights, strict=True)
        ],
        [*_with_gradients(values), *_with_gradients([tensor for tensors in weights for tensor in tensors])],
        lambda: [convolution(value, weight, bias, *options, modules * groups)],
        _with_gradients([value, *joined]),
    )


def _forward_and_backward(forward: Callable[[], list[Any]], tensors: list[Any]) -> Callable[[], None]:
    import torch

    outputs = forward()
    gradients = [torch.full_like(output, _VALUE) for output in outputs]

    def run_once() -> None:
        results = forward()
        if tensors:
            torch.autograd.grad(results, tensors, gradients)

    return run_once


def _tensor(shape: tuple[int, ...], with_gradient: bool) -> Any:
    import torch

    return torch.full(shape, _VALUE, dtype=torch.float32, device="cpu").requires_grad_(with_gradient)


def _with_gradients(tensors: list[Any]) -> list[Any]:
    return [tensor for tensor in tensors if tensor.requires_grad]
