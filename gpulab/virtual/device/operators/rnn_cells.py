"""LSTMCell and GRUCell as PyTorch runs them on a GPU: two GEMMs and one fused kernel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def kernels() -> dict[str, Callable[..., Any]]:
    """Return the cell operators by aten name."""
    return {"lstm_cell": _lstm, "gru_cell": _gru}


def _gates(input: Any, state: Any, input_weight: Any, state_weight: Any) -> tuple[Any, Any]:
    import torch

    return torch.nn.functional.linear(input, input_weight), torch.nn.functional.linear(state, state_weight)


def _lstm(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    import torch

    gates = _gates(input, hx[0], w_ih, w_hh)
    return torch.ops.aten._thnn_fused_lstm_cell(*gates, hx[1], b_ih, b_hh)[:2]


def _gru(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    import torch

    gates = _gates(input, hx, w_ih, w_hh)
    return torch.ops.aten._thnn_fused_gru_cell(*gates, hx, b_ih, b_hh)[0]


def overrides() -> dict[Any, Any]:
    """Return the implementations of the fused kernels, by operator."""
    import torch

    aten = torch.ops.aten
    return {
        aten._thnn_fused_lstm_cell.default: _lstm_forward,
        aten._thnn_fused_lstm_cell_backward_impl.default: _lstm_backward,
        aten._thnn_fused_gru_cell.default: _gru_forward,
        aten._thnn_fused_gru_cell_backward.default: _gru_backward,
    }


def _record_fused(mode: Any, func: Any, args: Any, like: Any, *sizes: Any) -> tuple[Any, ...]:
    results = tuple(None if each is None else mode.allocate(like, each) for each in sizes)
    mode.recorder.op(func.name(), args, {}, [each for each in results if each is not None])
    return results


def _lstm_forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    gates, cell = args[0], args[2]
    return _record_fused(mode, func, args, cell, tuple(cell.shape), tuple(cell.shape), tuple(gates.shape))


def _lstm_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    cell, saved_gates, bias = args[2], args[4], args[5]
    sizes = tuple(saved_gates.shape)
    return _record_fused(mode, func, args, cell, sizes, tuple(cell.shape), sizes[1:] if bias else None)


def _gru_forward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    state = args[2]
    batch, hidden = state.shape
    return _record_fused(mode, func, args, state, (batch, hidden), (batch, 5 * hidden))


def _gru_backward(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    grad, bias = args[0], args[2]
    batch, hidden = grad.shape
    bias_shape = (3 * hidden,) if bias else None
    return _record_fused(
        mode, func, args, grad, (batch, 3 * hidden), (batch, 3 * hidden), (batch, hidden), bias_shape, bias_shape
    )
