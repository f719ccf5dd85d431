"""LSTM, GRU and plain recurrent layers as cuDNN runs them: one call forward, one backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_MODES = {"rnn_relu": 0, "rnn_tanh": 1, "lstm": 2, "gru": 3}
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
# What cuDNN keeps for backward, in hidden states for each step, layer and direction: gates, and the cell of an LSTM.
_KEPT = {0: 1, 1: 1, 2: 6, 3: 5}


def kernels() -> dict[str, Callable[..., Any]]:
    """The operators of recurrent layers, by their names in aten, each as one cuDNN call."""
    made: dict[str, Callable[..., Any]] = {}
    for name in _MODES:
        made[f"{name}.input"] = _whole(name)
        made[f"{name}.data"] = _packed(name)
    return made


def _whole(name: str) -> Callable[..., Any]:
    def layer(
        input: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float, train: bool,
        bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        how = (num_layers, batch_first, dropout, train, bidirectional)
        return _called(name, input, hx, params, has_biases, how, None)

    return layer


def _packed(name: str) -> Callable[..., Any]:
    def layer(
        data: Any, batch_sizes: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, dropout: float,
        train: bool, bidirectional: bool,
    ) -> Any:  # fmt: skip
        how = (num_layers, False, dropout, train, bidirectional)
        return _called(name, data, hx, params, has_biases, how, batch_sizes.tolist())

    return layer


def _called(name: str, data: Any, hx: Any, params: Any, biases: bool, how: Any, sizes: list[int] | None) -> Any:
    import torch

    lstm = name == "lstm"
    state, cell = (hx[0], hx[1]) if lstm else (hx, None)
    layers, batch_first, dropout, train, both_ways = how
    if torch.is_autocast_enabled("cuda"):  # autocast has a cuDNN layer run in its type
        dtype = torch.get_autocast_dtype("cuda")
        data, state = data.to(dtype), state.to(dtype)
        cell = None if cell is None else cell.to(dtype)
        params = [each.to(dtype) for each in params]
    hidden = int(params[0].shape[0]) // _GATES[_MODES[name]]
    projected = int(state.shape[2]) if lstm and state.shape[2] != hidden else 0
    stride = (4 if biases else 2) + bool(projected)
    out, last, last_cell, _, _ = torch.ops.aten._cudnn_rnn(
        data, params, stride, None, state, cell, _MODES[name], hidden, projected, layers, batch_first, dropout, train,
        both_ways, sizes or [], None,
    )  # fmt: skip
    return (out, last, last_cell) if lstm else (out, last)


def specials() -> dict[Any, Any]:
    """The two operators of cuDNN, with what is done for each."""
    import torch

    aten = torch.ops.aten
    return {aten._cudnn_rnn.default: _forward, aten._cudnn_rnn_backward.default: _backward}


def _forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    import torch

    data, weights, _, _, state, cell, kind, hidden, projected, layers, _, _, train, both_ways, sizes, _ = args
    ways = 2 if both_ways else 1
    steps = _places(data, sizes)
    out = mode.allocate(data, (*data.shape[:-1], (projected or hidden) * ways))
    last = mode.allocate(data, tuple(state.shape))
    last_cell = mode.allocate(data, tuple(cell.shape) if cell is not None else (0,))
    kept = _KEPT[kind] * steps * hidden * ways * layers * data.element_size() if train else 0
    reserve = mode.allocate(data, (kept,), torch.uint8)
    buffer = mode.allocate(data, (0,))  # nn.LSTM keeps its weights in one piece for cuDNN: no second one is made
    told = _details(kind, hidden, layers, ways, steps, weights, times=1)
    mode.recorder.op("aten::_cudnn_rnn", args, {}, (out, last, last_cell, reserve), details=told)
    return out, last, last_cell, reserve, buffer


def _backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    data, weights, state, cell = args[0], args[1], args[4], args[5]
    kind, hidden, layers, both_ways, sizes = args[10], args[11], args[13], args[17], args[18]
    of_data = mode.allocate(data, tuple(data.shape))
    of_state = mode.allocate(data, tuple(state.shape))
    of_cell = mode.allocate(data, tuple(cell.shape)) if cell is not None else None
    of_weights = [mode.allocate(each, tuple(each.shape)) for each in weights]
    told = _details(kind, hidden, layers, 2 if both_ways else 1, _places(data, sizes), weights, times=2)
    made = (of_data, of_state, *([of_cell] if of_cell is not None else []), *of_weights)
    mode.recorder.op("aten::_cudnn_rnn_backward", args, {}, made, details=told)
    return of_data, of_state, of_cell, of_weights


def _places(data: Any, sizes: Any) -> int:
    """How many inputs the layer reads: steps times sequences."""
    return sum(sizes) if sizes else int(data.shape[0] * data.shape[1])


def _details(kind: int, hidden: int, layers: int, ways: int, places: int, weights: Any, *, times: int) -> Any:
    # torch's counter counts nothing here, on a GPU neither; the products are told beside.
    elements = sum(each.numel() for each in weights if each.dim() == 2)
    name = next(each for each, number in _MODES.items() if number == kind)
    told = {"kind": name, "hidden": hidden, "layers": layers, "directions": ways, "gates": _GATES[kind]}
    return tuple((key, str(value)) for key, value in {**told, "flops": 2 * elements * places * times}.items())
