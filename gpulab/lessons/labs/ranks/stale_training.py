"""Workers that train together without waiting for each other: gradients of old weights, and gossip in a ring."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

ROWS = 64


@dataclass(frozen=True, kw_only=True)
class WorkerClock:
    """The simulated clock of workers that send gradients to one server."""

    gradients_per_s: float
    wait_frac: float  # share of the workers' time in which they wait
    mean_staleness: float  # updates between reading the weights and using the gradient


def clock_of_workers(periods_ms: Sequence[float], needed: int, gradients: int = 2000) -> WorkerClock:
    """Simulate workers that need `periods_ms` per gradient, and a server that updates after `needed` gradients.

    A worker that has sent its gradient gets new weights at the next update, and waits until then.
    """
    queue = [(period, worker) for worker, period in enumerate(periods_ms)]
    heapq.heapify(queue)
    versions, arrivals = [0] * len(periods_ms), [(0.0, 0)] * 0
    version, count, wait_ms, staleness, now = 0, 0, 0.0, 0, 0.0
    while count < gradients:
        now, worker = heapq.heappop(queue)
        count += 1
        staleness += version - versions[worker]
        arrivals.append((now, worker))
        if len(arrivals) < needed:
            continue
        version += 1
        for arrival_ms, sender in arrivals:
            wait_ms += now - arrival_ms
            versions[sender] = version
            heapq.heappush(queue, (now + periods_ms[sender], sender))
        arrivals = []
    return WorkerClock(
        gradients_per_s=1000 * count / now,
        wait_frac=wait_ms / (now * len(periods_ms)),
        mean_staleness=staleness / count,
    )


def loss_with_staleness(staleness: int, learning_rate: float, updates: int = 300) -> float:
    """Train with gradients computed at the weights of `staleness` updates ago; return the loss on all rows."""
    import torch

    weights, gradient_of, loss_of = _problem()
    recent = [weights]
    for update in range(updates):
        gradient = gradient_of(recent[0], update)
        weights = weights - learning_rate * gradient
        recent = [*recent, weights][-(staleness + 1) :]
    loss = loss_of(weights)
    return loss if torch.isfinite(torch.tensor(loss)) else float("inf")


def loss_with_mixing(mix: Callable[[list[Any]], list[Any]], workers: int, steps: int) -> tuple[float, float]:
    """Train `workers` copies, each on its own batches; after each step, `mix` gets their weights and returns new ones.

    Return the loss of the mean of the weights, and the largest distance of a copy from it, relative to its norm.
    """
    import torch

    weights, gradient_of, loss_of = _problem()
    copies = [weights.clone() for _ in range(workers)]
    for step in range(steps):
        copies = [copy - 0.3 * gradient_of(copy, step * workers + w) for w, copy in enumerate(copies)]
        copies = mix(copies)
    mean = torch.stack(copies).mean(dim=0)
    spread = max((copy - mean).norm().item() for copy in copies) / mean.norm().item()
    return loss_of(mean), spread


def _problem() -> tuple[Any, Callable[[Any, int], Any], Callable[[Any], float]]:
    """Return flat weights of a small classifier, its gradient on a batch by number, and its loss on all rows."""
    import torch
    from torch import nn
    from torch.func import functional_call
    from torch.nn import functional
    from torch.nn.utils import parameters_to_vector

    from gpulab import synthetic

    torch.manual_seed(0)
    inputs, labels = map(torch.as_tensor, synthetic.table(2048, 32))
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 4))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def loss(weights: Any, rows: slice) -> Any:
        parts = weights.split([shape.numel() for shape in shapes.values()])
        parameters = {name: part.view(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}
        return functional.cross_entropy(functional_call(model, parameters, (inputs[rows],)), labels[rows])

    def gradient_of(weights: Any, batch: int) -> Any:
        first = batch * ROWS % len(inputs)
        leaf = weights.detach().requires_grad_()
        return torch.autograd.grad(loss(leaf, slice(first, first + ROWS)), leaf)[0]

    def loss_of(weights: Any) -> float:
        with torch.no_grad():
            return float(loss(weights, slice(None)))

    return parameters_to_vector(model.parameters()).detach(), gradient_of, loss_of
