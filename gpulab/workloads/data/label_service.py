"""Labels from a service, batch by batch: the loop waits for each response, or requests it one batch earlier."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gpulab.workloads.training import loss_values, perceptron, random_normal, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, BATCH = 768, 256
ANSWER_S = 0.006  # a network round trip; shorter than the compute of a step, so that it can be hidden completely


def request_labels(step: int) -> Tensor:
    """Return a batch of labels from the service, after one round trip."""
    import torch

    time.sleep(ANSWER_S)
    return torch.randint(0, 10, (BATCH,), generator=torch.Generator().manual_seed(step))


def prefetch_labels(request: Callable[[int], Tensor], steps: Iterable[int]) -> Iterator[Tensor]:
    """Request the next response while the model works on the current one."""
    with ThreadPoolExecutor(1) as pool:
        pending: Future[Any] | None = None
        for step in steps:
            future = pool.submit(request, step)
            if pending is not None:
                yield pending.result()
            pending = future
        if pending is not None:
            yield pending.result()


def train_on_service_labels(*, device: str = "cpu", steps: int = 60, beforehand: bool = False) -> list[float]:
    """Train a perceptron on labels from a service; `beforehand`: request them one batch earlier."""
    responses = prefetch_labels(request_labels, range(steps)) if beforehand else map(request_labels, range(steps))
    with torch_threads(1):
        return _train(device, responses)


def _train(device: str, responses: Iterable[Tensor]) -> list[float]:
    import torch
    from torch import nn

    samples = random_normal(BATCH, WIDTH).to(device)
    model = perceptron(WIDTH, 2 * WIDTH, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(samples), labels.to(device))

    return loss_values(run_optimizer_steps(optimizer, loss_of, responses))


LABELS = (
    Workload(
        name="labels",
        about="Labels from a service: the loop waits for each response, and nothing else runs.",
        run=train_on_service_labels,
        rule="unexplained_idle",
        twin="labels_ahead",
    ),
    Workload(
        name="labels_ahead",
        about="The same labels, requested while the model works on the previous batch.",
        run=functools.partial(train_on_service_labels, beforehand=True),
        rule=None,
    ),
)
