"""Labels that a service gives, batch by batch: the loop waits for the answer, or has asked for it beforehand."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from gpulab.workloads.training import computing_on, listed, noise, optimizer_steps, perceptron
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor

WIDTH, BATCH = 768, 256
ANSWER_S = 0.015  # a round trip over the network; less than a step computes, so that it can be hidden wholly


def labels_of(step: int) -> Tensor:
    """What the service answers: another round trip, another batch of labels."""
    import torch

    time.sleep(ANSWER_S)
    return torch.randint(0, 10, (BATCH,), generator=torch.Generator().manual_seed(step))


def ahead(ask: Callable[[int], Tensor], questions: Iterable[int]) -> Iterator[Tensor]:
    """Ask for the next answer while the model works on this one."""
    with ThreadPoolExecutor(1) as pool:
        pending: Future[Any] | None = None
        for question in questions:
            asked = pool.submit(ask, question)
            if pending is not None:
                yield pending.result()
            pending = asked
        if pending is not None:
            yield pending.result()


def train_on_answers(*, device: str = "cpu", steps: int = 60, beforehand: bool = False) -> list[float]:
    """Train a perceptron on labels that a service gives."""
    answers = ahead(labels_of, range(steps)) if beforehand else map(labels_of, range(steps))
    with computing_on(1):
        return _train(device, answers)


def _train(device: str, answers: Iterable[Tensor]) -> list[float]:
    import torch
    from torch import nn

    samples = noise(BATCH, WIDTH).to(device)
    model = perceptron(WIDTH, 2 * WIDTH, 10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(model(samples), labels.to(device))

    return listed(optimizer_steps(optimizer, loss_of, answers))


LABELS = (
    Workload(
        name="labels",
        about="Labels from a service: the loop waits for each answer, and nothing at all runs meanwhile.",
        run=train_on_answers,
        rule="unexplained_idle",
        twin="labels_ahead",
    ),
    Workload(
        name="labels_ahead",
        about="The same labels, asked for while the model works on the batch before.",
        run=functools.partial(train_on_answers, beforehand=True),
        rule=None,
    ),
)
