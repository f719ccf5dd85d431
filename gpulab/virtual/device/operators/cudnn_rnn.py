"""LSTM, GRU and simple RNN layers as cuDNN runs them: one call in forward, one in backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
# Hidden states that cuDNN saves for backward, per time step, layer and direction: the gates, and an LSTM's cell.
_SAVED_STATES = {0: 1, 1: 1, 2: 6, 3: 5}


def kernels() -> dict[str, Callable[..., Any]]:
    """Return the recurrent layer operators by aten name, each as one cuDNN call."""
    kernels_by_name: dict[str, Callable[..., Any]] = {}
    for name in _MODES:
        kernels_by_name[f"{name}.input"] = _padded(name)
        kernels_by_name[f"{name}.data"] = _packed(name)
    return kernels_by_name


def _padded(name: str) -> Callable[..., Any]:
    def layer(
        input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        options = (num_layers, batch_first, dropout, train, bidirectional)
        return _call_cudnn(name, input, hx, params, has_biases, options, None)

    return layer


def _packed(name: str) -> Callable[..., Any]:
    def layer(
        data: Any, batch_sizes: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        options = (num_layers, False, dropout, train, bidirectional)
        return _call_cudnn(name, data, hx, params, has_biases, options, batch_sizes.tolist())

    return layer


def _call_cudnn(name: str, data: Any, hx: Any, params: Any, biases: bool, options: Any, sizes: list[int] | None) -> Any:
    import torch

    lstm = name == "lstm"
    state, cell = (hx[0], hx[1]) if lstm else (hx, None)
    layers, batch_first, dropout, train, bidirectional = options
    if torch.is_autocast_enabled("cuda"):  # under autocast, cuDNN layers run in the autocast dtype
        dtype = torch.get_autocast_dtype("cuda")
        data, state = data.to(dtype), state.to(dtype)
        cell = None if cell is None else cell.to(dtype)
        params = [each.to(dtype) for each in params]
    hidden = int(params[0].shape[0]) // _GATES[_MODES[name]]
    projected = int(state.shape[2]) if lstm and state.shape[2] != hidden else 0
    stride = (4 if biases else 2) + bool(projected)
    out, last, last_cell, _, _ = torch.ops.aten._cudnn_rnn(
        data, params, stride, None, state, cell, _MODES[name], hidden, projected, layers, batch_first, dropout, train,
        bidirectional, sizes or [], None,
    )  # fmt: skip
    return (out, last, last_cell) if lstm else (out, last)


def overrides() -> dict[Any, Any]:
    """Return the implementations of the two cuDNN operators, by operator."""
    import torch

    aten = torch.ops.aten
    return {aten._cudnn_rnn.default: _forward, aten._cudnn_rnn_backward.default: _backward}


def _forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    import torch

    data, weights, _, _, state, cell, kind, hidden, projected, layers, _, _, train, bidirectional, sizes, _ = args
    directions = 2 if bidirectional else 1
    steps = _input_count(data, sizes)
    out = mode.allocate(data, (*data.shape[:-1], (projected or hidden) * directions))
    last = mode.allocate(data, tuple(state.shape))
    last_cell = mode.allocate(data, tuple(cell.shape) if cell is not None else (0,))
    reserve_bytes = _SAVED_STATES[kind] * steps * hidden * directions * layers * data.element_size() if train else 0
    reserve = mode.allocate(data, (reserve_bytes,), torch.uint8)
    buffer = mode.allocate(data, (0,))  # nn.LSTM already stores its weights as one flat buffer
    details = _details(kind, hidden, layers, directions, steps, weights, times=1)
    mode.recorder.op("aten::_cudnn_rnn", args, {}, (out, last, last_cell, reserve), details=details)
    return out, last, last_cell, reserve, buffer


def _backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    data, weights, state, cell = args[0], args[1], args[4], args[5]
    kind, hidden, layers, bidirectional, sizes = args[10], args[11], args[13], args[17], args[18]
    grad_data = mode.allocate(data, tuple(data.shape))
    grad_state = mode.allocate(data, tuple(state.shape))
    grad_cell = mode.allocate(data, tuple(cell.shape)) if cell is not None else None
    grad_weights = [mode.allocate(each, tuple(each.shape)) for each in weights]
    details = _details(kind, hidden, layers, 2 if bidirectional else 1, _input_count(data, sizes), weights, times=2)
    gradients = (grad_data, grad_state, *([grad_cell] if grad_cell is not None else []), *grad_weights)
    mode.recorder.op("aten::_cudnn_rnn_backward", args, {}, gradients, details=details)
    return grad_data, grad_state, grad_cell, grad_weights


def _input_count(data: Any, sizes: Any) -> int:
    """Return the number of inputs of the layer: time steps times sequences."""
    return sum(sizes) if sizes else int(data.shape[0] * data.shape[1])


def _details(kind: int, hidden: int, layers: int, directions: int, inputs: int, weights: Any, *, times: int) -> Any:
    # torch's FLOP counter does not know this operator, on a GPU either; the FLOPs go into the details.
    elements = sum(each.numel() for each in weights if each.dim() == 2)
    name = next(each for each, mode in _MODES.items() if mode == kind)
    details = {"kind": name, "hidden": hidden, "layers": layers, "directions": directions, "gates": _GATES[kind]}
    return tuple((key, str(value)) for key, value in {**details, "flops": 2 * elements * inputs * times}.items())
