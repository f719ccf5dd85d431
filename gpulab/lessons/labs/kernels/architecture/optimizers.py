"""Optimizers compared: accuracy at their learning rates, bytes of state per parameter, operators per tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.lessons.labs.kernels.architecture.halving import grid_classifier
from gpulab.lessons.labs.kernels.fusion import count_dispatches
from gpulab.lessons.labs.steps.large_batches import PatternImages, correct_frac, shuffled_batches

MakeOptimizer = Callable[[Any, float], Any]  # parameters, learning rate -> optimizer
BATCH = 64


def _sgd(parameters: Any, lr: float) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=lr, foreach=False)


def _momentum(parameters: Any, lr: float) -> Any:
    import torch

    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, foreach=False)


def _adamw(parameters: Any, lr: float) -> Any:
    import torch

    return torch.optim.AdamW(parameters, lr=lr, foreach=False)


def _adafactor(parameters: Any, lr: float) -> Any:
    import torch

    return torch.optim.Adafactor(parameters, lr=lr, foreach=False)


def _lars(parameters: Any, lr: float) -> Any:
    import torch

    class TrustRatioSgd(torch.optim.Optimizer):
        """LARS without weight decay, as in notebook 04: SGD with momentum, and a trust ratio for each matrix."""

        def __init__(self) -> None:
            super().__init__(parameters, {"lr": lr})

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for weight in group["params"]:
                    trust = weight.norm() / weight.grad.norm() if weight.dim() > 1 else 1.0
                    if "velocity" not in self.state[weight]:
                        self.state[weight]["velocity"] = torch.zeros_like(weight)
                    velocity = self.state[weight]["velocity"]
                    velocity.mul_(0.9).add_(weight.grad * trust, alpha=group["lr"])
                    weight.sub_(velocity)

    return TrustRatioSgd()


OPTIMIZERS: Mapping[str, MakeOptimizer] = {
    "SGD": _sgd,
    "SGD with momentum": _momentum,
    "LARS": _lars,
    "AdamW": _adamw,
    "Adafactor": _adafactor,
}


@dataclass(frozen=True, kw_only=True)
class OptimizerCounts:
    """What an optimizer stores and runs for one weight matrix."""

    state_bytes: float  # per parameter
    operators: int  # of one step for one tensor, dispatched one by one (foreach=False)


def optimizer_cost(make: MakeOptimizer, side: int = 1024) -> OptimizerCounts:
    """Count the state and the operators of one step for a matrix of `side` x `side` numbers in float32."""
    import torch

    weight = torch.ones(side, side, requires_grad=True)
    optimizer = make([weight], 1e-3)
    weight.grad = torch.ones_like(weight)
    optimizer.step()
    tensors = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    stored = sum(tensor.nbytes for tensor in tensors if tensor.dim())
    return OptimizerCounts(state_bytes=stored / weight.numel(), operators=count_dispatches(optimizer.step))


def accuracy_by_rate(
    make: MakeOptimizer, rates: Sequence[float], data: PatternImages, epochs: int = 2
) -> dict[float, float]:
    """Train the same network with each learning rate, and return the accuracy on the test images."""
    from torch.nn import functional

    accuracies = {}
    for lr in rates:
        model = grid_classifier()
        optimizer = make(model.parameters(), lr)
        for indices in shuffled_batches(len(data.inputs), BATCH, epochs):
            optimizer.zero_grad()
            functional.cross_entropy(model(data.inputs[indices]), data.labels[indices]).backward()
            optimizer.step()
        accuracies[lr] = correct_frac(model, data.test_inputs, data.test_labels)
    return accuracies
