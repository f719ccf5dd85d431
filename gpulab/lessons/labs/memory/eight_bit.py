"""Adam whose state is stored in 8 bits, with functions for quantising that a learner writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 64  # numbers that share one scale
Quantize = Callable[["Tensor"], tuple["Tensor", "Tensor"]]  # blocks (rows) of float32 -> int8 and a scale for each row
Dequantize = Callable[["Tensor", "Tensor"], "Tensor"]


class BlockAdam:
    """Adam that keeps both moments in blocks of 64 numbers; `quantize` says how. Of the second, it stores the root.

    `quantize=None` keeps them in float32.
    """

    def __init__(
        self,
        parameters: Iterable[Any],
        lr: float,
        quantize: Quantize | None = None,
        dequantize: Dequantize | None = None,
    ) -> None:
        self.parameters = list(parameters)
        self.lr, self.steps = lr, 0
        self._quantize, self._dequantize = quantize, dequantize
        self._moments: dict[int, list[Any]] = {}

    def zero_grad(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    def step(self) -> None:
        """Update all parameters by Adam's formula (betas 0.9 and 0.999)."""
        import torch

        self.steps += 1
        with torch.no_grad():
            for index, parameter in enumerate(self.parameters):
                first, root = self._read(index, parameter)
                first = 0.9 * first + 0.1 * parameter.grad
                second = 0.999 * root.square() + 0.001 * parameter.grad.square()
                self._moments[index] = [self._store(first), self._store(second.sqrt())]
                denominator = (second / (1 - 0.999**self.steps)).sqrt() + 1e-8
                parameter -= self.lr * first / (1 - 0.9**self.steps) / denominator

    @property
    def state_bytes(self) -> int:
        """Bytes of all moments, with their scales."""
        stored = [part for moments in self._moments.values() for moment in moments for part in moment]
        return sum(part.numel() * part.element_size() for part in stored)

    def _read(self, index: int, parameter: Any) -> list[Any]:
        import torch

        if index not in self._moments:
            return [torch.zeros_like(parameter), torch.zeros_like(parameter)]
        return [self._load(moment, parameter) for moment in self._moments[index]]

    def _store(self, moment: Any) -> tuple[Any, ...]:
        import torch

        if self._quantize is None:
            return (moment,)
        flat = moment.flatten()
        blocks = torch.nn.functional.pad(flat, (0, -len(flat) % BLOCK)).reshape(-1, BLOCK)
        return self._quantize(blocks)

    def _load(self, moment: tuple[Any, ...], parameter: Any) -> Any:
        if self._dequantize is None:
            return moment[0]
        return self._dequantize(*moment).flatten()[: parameter.numel()].reshape(parameter.shape)
