"""Word statistics updated during training: in a thread, or in a separate process."""

from __future__ import annotations

import functools
import multiprocessing
import threading
from collections import Counter
from typing import Any

from gpulab.workloads.training import loss_values, perceptron, random_normal, run_optimizer_steps, torch_threads
from gpulab.workloads.workload import Workload

WIDTH, LAYERS, BATCH = 256, 6, 256
TEXT = "the loop asks for the next batch while the statistics of the last one are counted word by word"


def count_words_until(ended: Any) -> None:
    """Count words in pure Python without a pause, until the event is set."""
    while not ended.is_set():
        counts: Counter[str] = Counter()
        for _ in range(20):
            for word in TEXT.split():
                for letter in word:
                    counts[letter] += 1


def train_with_statistics(*, device: str = "cpu", steps: int = 40, in_process: bool = False) -> list[float]:
    """Train a small perceptron while another thread or process counts statistics."""
    ended: Any = multiprocessing.Event() if in_process else threading.Event()
    worker_class: Any = multiprocessing.Process if in_process else threading.Thread
    counter = worker_class(target=count_words_until, args=(ended,), daemon=True)
    counter.start()
    try:
        # One thread, so that the statistics have the other core.
        with torch_threads(1):
            return _train(device, steps)
    finally:
        ended.set()
        counter.join()


def _train(device: str, steps: int) -> list[float]:
    import torch
    from torch import nn

    samples = random_normal(BATCH, WIDTH).to(device)
    model = perceptron(*[WIDTH] * LAYERS).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return loss_values(
        run_optimizer_steps(optimizer, lambda _: nn.functional.mse_loss(model(samples), samples), range(steps))
    )


METRICS = (
    Workload(
        name="metrics_thread",
        about="Statistics counted in a Python thread during training: the loop waits for the GIL.",
        run=train_with_statistics,
        rule="gil_contention",
        twin="metrics_process",
    ),
    Workload(
        name="metrics_process",
        about="The same statistics, counted in a separate process.",
        run=functools.partial(train_with_statistics, steps=400, in_process=True),
        rule=None,
    ),
)
