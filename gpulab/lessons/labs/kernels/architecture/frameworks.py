"""The same CNN and LSTM as plain array code, which NumPy and JAX run, and as PyTorch modules, eager and compiled.

Images have 8 x 8 pixels; for the LSTM, a row of pixels is one of eight time steps.
"""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

CHANNELS = (16, 32)
HIDDEN = 64
CLASSES = 10
CALLS, CALLS_S = 7, 0.15  # timed calls: at least as many, for at least as long

Weights = Mapping[str, Any]
Logits = Callable[[Any, Any, Weights], Any]  # array module, images, weights -> logits


def modules() -> dict[str, Any]:
    """Build the CNN and the LSTM in PyTorch, with the same weights every time."""
    import torch
    from torch import Tensor, nn

    class RowLstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, HIDDEN, batch_first=True), nn.Linear(HIDDEN, CLASSES)

        def forward(self, images: Tensor) -> Tensor:
            result: Tensor = self.head(self.lstm(images[:, 0])[0][:, -1])
            return result

    torch.manual_seed(0)
    first, second = nn.Conv2d(1, CHANNELS[0], 3, padding=1), nn.Conv2d(*CHANNELS, 3, padding=1)
    cnn = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten(), nn.Linear(CHANNELS[1] * 64, CLASSES))
    return {"CNN": cnn, "LSTM": RowLstm()}


def weight_arrays(module: Any) -> dict[str, Any]:
    """Return the weights of a module as NumPy arrays by name."""
    return {name: tensor.numpy() for name, tensor in module.state_dict().items()}


def patches(xp: Any, images: Any) -> Any:
    """Return the 3 x 3 neighbourhood of every pixel, with zeros beyond the edge, in any array module.

    `images` has shape (rows, channels, 8, 8); the result (rows, 64, channels * 9), in the order of a PyTorch weight.
    """
    rows, channels = images.shape[:2]
    padded = xp.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)))
    shifted = [padded[:, :, y : y + 8, x : x + 8] for y in range(3) for x in range(3)]
    return xp.stack(shifted, axis=2).reshape(rows, channels * 9, 64).transpose(0, 2, 1)


def cnn_logits(xp: Any, images: Any, weights: Weights, convolve: Callable[[Any, Any, Any], Any]) -> Any:
    """Compute the CNN. `convolve` multiplies patches by a matrix of weights, and adds a bias."""
    x = images
    for name in ("0", "2"):
        kernel = weights[f"{name}.weight"]
        flat = kernel.reshape(kernel.shape[0], -1)
        result = xp.maximum(convolve(patches(xp, x), flat, weights[f"{name}.bias"]), 0)
        x = result.transpose(0, 2, 1).reshape(len(images), -1, 8, 8)
    return x.reshape(len(images), -1) @ weights["5.weight"].T + weights["5.bias"]


def lstm_logits(xp: Any, images: Any, weights: Weights) -> Any:
    """Compute the LSTM, step by step."""

    def sigmoid(values: Any) -> Any:
        return 1 / (1 + xp.exp(-values))

    hidden = cell = xp.zeros((len(images), HIDDEN), dtype=np.float32)
    bias = weights["lstm.bias_ih_l0"] + weights["lstm.bias_hh_l0"]
    for row in range(8):
        sums = images[:, 0, row] @ weights["lstm.weight_ih_l0"].T + hidden @ weights["lstm.weight_hh_l0"].T + bias
        gates = [sums[:, HIDDEN * gate : HIDDEN * (gate + 1)] for gate in range(4)]  # input, forget, cell, output
        cell = sigmoid(gates[1]) * cell + sigmoid(gates[0]) * xp.tanh(gates[2])
        hidden = sigmoid(gates[3]) * xp.tanh(cell)
    return hidden @ weights["head.weight"].T + weights["head.bias"]


def cross_entropy(logits: Any, labels: Any) -> float:
    """Return the mean cross-entropy, in float64."""
    values = np.asarray(logits, dtype=np.float64)
    values = values - values.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(values).sum(axis=1))
    return float(np.mean(log_sums - values[np.arange(len(values)), np.asarray(labels)]))


@dataclass(frozen=True, kw_only=True)
class FrameworkResult:
    """The loss that a framework computes, and how fast it runs."""

    loss: float
    samples_per_s: float
    first_call_s: float  # with compilation, if there is one


def measure_framework(run: Callable[[], Any], labels: Any) -> FrameworkResult:
    """Time a first call, and the fastest of further ones. `run` returns the logits."""
    start = time.perf_counter()
    logits = run()
    first_call_s = time.perf_counter() - start
    times_s: list[float] = []
    begin = time.perf_counter()
    while len(times_s) < CALLS or time.perf_counter() - begin < CALLS_S:
        start = time.perf_counter()
        run()
        times_s.append(time.perf_counter() - start)
    return FrameworkResult(
        loss=cross_entropy(logits, labels),
        samples_per_s=len(labels) / min(times_s),
        first_call_s=first_call_s,
    )


def jax_runner(logits: Logits, images: Any, weights: Weights) -> Callable[[], Any] | None:
    """Return a call that runs array code compiled by JAX on the default device, or None if JAX is not installed."""
    if importlib.util.find_spec("jax") is None:
        return None
    jax: Any = importlib.import_module("jax")
    compiled = jax.jit(lambda x, w: logits(jax.numpy, x, w))
    arguments = jax.device_put((np.asarray(images), dict(weights)))
    return lambda: compiled(*arguments).block_until_ready()
