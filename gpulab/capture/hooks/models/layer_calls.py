"""The layers that a training step calls, as values: their options and shapes, from which they can be timed later.

Of modules of PyTorch's own classes only `__dict__` is read; of tensors only their size, type and memory format.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.models.module_tree import is_transformers_linear

Shape = tuple[int, ...]

LINEAR, CONVOLUTION, TRANSPOSED_CONVOLUTION = "linear", "conv", "conv_transpose"
LSTM, GRU, ATTENTION = "lstm", "gru", "attention"
ROW_PRODUCTS = "rows"  # a linear layer whose weight is stored as inputs x outputs
_CONVOLUTION_OPTIONS = ("stride", "padding", "dilation", "groups")
_TRANSPOSED_OPTIONS = ("stride", "padding", "output_padding", "groups", "dilation")
_RECURRENT_OPTIONS = ("bias", "num_layers", "bidirectional", "batch_first")
_OF_PYTORCH = "torch.nn.utils.parametrizations"
_NORMALIZED = ("weight_v", "weight_orig")  # of torch.nn.utils.weight_norm and spectral_norm
_SIMPLE_TYPES = (int, float, bool, str)


class TimedLayer(NamedTuple):
    """A call of a layer that computes in float32 on the CPU. Equal calls take equally long."""

    kind: str
    options: tuple[Any, ...]  # as the function of this kind takes them
    weights: tuple[Shape, ...]
    input: Shape
    is_channels_last: bool  # the input, of four dimensions
    with_input_gradient: bool
    with_weight_gradients: bool


def layer_call(module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> TimedLayer | None:
    """Describe a call of a layer; None for any other module, a packed input, and one that is not in float32."""
    import torch

    values = object.__getattribute__(module, "__dict__")
    kind = type(module).__bases__[0] if _parametrized_weight(values) else type(module)
    describe = _products_with_rows if is_transformers_linear(kind) else _describers().get(kind)
    tensor = arguments[0] if arguments else None
    if describe is None or not is_tensor(type(tensor)) or not is_dense_float32(tensor):
        return None
    if torch.is_autocast_enabled("cpu"):
        return None
    parameters = _weights_in(values)
    if not parameters or not all([is_tensor(type(value)) and is_dense_float32(value) for value in parameters]):
        return None
    layer_options = describe(_Call(values, parameters, tensor, arguments, options))
    if layer_options is None or not all([_is_simple(option) for option in layer_options.values]):
        return None
    return _layer_call(layer_options, parameters, tensor)


def has_plain_weights(module: Any) -> bool:
    """Whether a layer computes with its parameters themselves, not with weights that it normalizes before each call."""
    values = object.__getattribute__(module, "__dict__")
    return not _parametrized_weight(values) and not any([name in values["_parameters"] for name in _NORMALIZED])


def _weights_in(values: dict[str, Any]) -> list[Any]:
    """Return the weights of a layer; of one that is normalized before each call, a parameter of the same shape."""
    parameters = values.get("_parameters", {})
    normalized = _parametrized_weight(values) or [parameters[name] for name in _NORMALIZED if name in parameters]
    weights = [normalized[-1], parameters.get("bias")] if normalized else list(parameters.values())
    return [value for value in weights if value is not None]


def _parametrized_weight(values: dict[str, Any]) -> list[Any]:
    """Return the parameters of a weight with a parametrization of PyTorch's; the last one has the weight's shape."""
    parametrizations = values.get("_modules", {}).get("parametrizations")
    weight = None if parametrizations is None else _parts_of(parametrizations, "_modules").get("weight")
    if weight is None:
        return []
    if not all([type(part).__module__ == _OF_PYTORCH for part in _parts_of(weight, "_modules").values()]):
        return []
    return list(_parts_of(weight, "_parameters").values())


def _parts_of(module: Any, name: str) -> dict[str, Any]:
    parts: dict[str, Any] = object.__getattribute__(module, "__dict__")[name]
    return parts


class _Call(NamedTuple):
    """A call of a module: its `__dict__`, its parameters, and what it gets."""

    module: dict[str, Any]
    parameters: list[Any]
    input: Any
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class _Options(NamedTuple):
    kind: str
    values: tuple[Any, ...]


_Describer = Callable[[_Call], _Options | None]


@functools.cache
def _describers() -> dict[type, _Describer]:
    from torch import nn

    return {
        nn.Linear: _linear,
        nn.Conv1d: _convolution,
        nn.Conv2d: _convolution,
        nn.Conv3d: _convolution,
        nn.ConvTranspose1d: _transposed_convolution,
        nn.ConvTranspose2d: _transposed_convolution,
        nn.ConvTranspose3d: _transposed_convolution,
        nn.LSTM: _lstm,
        nn.GRU: _gru,
        nn.MultiheadAttention: _attention,
    }


def _linear(call: _Call) -> _Options | None:
    return _Options(LINEAR, ())


def _products_with_rows(call: _Call) -> _Options | None:
    return _Options(ROW_PRODUCTS, ())


def _convolution(call: _Call) -> _Options | None:
    if call.module.get("padding_mode") != "zeros":
        return None
    return _Options(CONVOLUTION, _values(call, _CONVOLUTION_OPTIONS))


def _transposed_convolution(call: _Call) -> _Options | None:
    return _Options(TRANSPOSED_CONVOLUTION, _values(call, _TRANSPOSED_OPTIONS))


def _lstm(call: _Call) -> _Options | None:
    if call.module.get("proj_size") or len(shape_of(call.input)) != 3:
        return None
    return _Options(LSTM, _values(call, _RECURRENT_OPTIONS))


def _gru(call: _Call) -> _Options | None:
    return _Options(GRU, _values(call, _RECURRENT_OPTIONS)) if len(shape_of(call.input)) == 3 else None


def _attention(call: _Call) -> _Options | None:
    """Describe attention whose queries, keys and values have one size."""
    keys = call.arguments[1] if len(call.arguments) > 1 else call.options.get("key")
    if len(shape_of(call.input)) != 3 or not is_tensor(type(keys)) or call.module.get("bias_k") is not None:
        return None
    heads, batch_first, dropout, is_training = _values(call, ("num_heads", "batch_first", "dropout", "training"))
    width, key_shape = shape_of(call.input)[2], shape_of(keys)
    if shape_of(call.parameters[0]) != (3 * width, width) or len(key_shape) != 3:
        return None
    with_weights = call.options.get("need_weights", True)
    values = heads, batch_first, dropout if is_training else 0.0, with_weights, key_shape[1 if batch_first else 0]
    return _Options(ATTENTION, values)


def _layer_call(options: _Options, parameters: list[Any], tensor: Any) -> TimedLayer:
    import torch

    kind_of_tensor: Any = torch.Tensor
    with_gradients = torch.is_grad_enabled()
    is_image = kind_of_tensor.dim(tensor) == 4
    return TimedLayer(
        options.kind,
        options.values,
        tuple([shape_of(value) for value in parameters]),
        shape_of(tensor),
        is_image and kind_of_tensor.is_contiguous(tensor, memory_format=torch.channels_last),
        with_gradients and bool(kind_of_tensor.requires_grad.__get__(tensor)),
        with_gradients and any([bool(kind_of_tensor.requires_grad.__get__(value)) for value in parameters]),
    )


def _values(call: _Call, names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple([call.module.get(name) for name in names])


def _is_simple(option: Any) -> bool:
    parts = option if type(option) is tuple else (option,)
    return all([type(part) in _SIMPLE_TYPES for part in parts])


def shape_of(tensor: Any) -> Shape:
    """Return the shape of a tensor, without code of the user's."""
    import torch

    return tuple([int(size) for size in torch.Tensor.size(tensor)])


def is_dense_float32(tensor: Any) -> bool:
    """Whether a tensor is dense, in float32 and in the memory of the CPU."""
    import torch
    from torch.nn.parameter import UninitializedParameter

    kind: Any = torch.Tensor
    return (
        not issubclass(type(tensor), UninitializedParameter)
        and not kind.is_nested.__get__(tensor)
        and kind.layout.__get__(tensor) is torch.strided
        and kind.dtype.__get__(tensor) is torch.float32
        and bool(kind.is_cpu.__get__(tensor))
    )
