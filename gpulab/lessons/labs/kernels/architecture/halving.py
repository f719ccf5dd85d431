"""A grid of trainings, all of them to the end, and asynchronous successive halving (ASHA), which stops most early.

ASHA is by Li and others (2020), "A System for Massively Parallel Hyperparameter Tuning". A rung holds the accuracies of
the configurations that trained as many epochs; from it, the best may continue to the next rung.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpulab.errors import GpulabError
from gpulab.lessons.labs.steps.large_batches import PATTERNS, PIXELS, PatternImages, correct_frac, shuffled_batches

WIDTH = 128
Standing = tuple[float, "Configuration"]  # an accuracy, and the configuration that reached it
Promote = Callable[[list[Standing]], Sequence[Standing]]


@dataclass(frozen=True, kw_only=True, order=True)
class Configuration:
    """Hyperparameters of one training with AdamW."""

    lr: float
    batch: int
    weight_decay: float

    def __str__(self) -> str:
        return f"lr {self.lr:g}, batch {self.batch}, weight decay {self.weight_decay:g}"


def grid_of(rates: Sequence[float], batches: Sequence[int], decays: Sequence[float]) -> list[Configuration]:
    """Return all combinations, in a random order that is the same every time."""
    combinations = [
        Configuration(lr=lr, batch=batch, weight_decay=decay)
        for lr, batch, decay in itertools.product(rates, batches, decays)
    ]
    order = np.random.default_rng(0).permutation(len(combinations))
    return [combinations[index] for index in order]


def grid_classifier() -> Any:
    """Build the network that is tuned, with the same initial weights every time."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    widths = (PIXELS, WIDTH, WIDTH, PATTERNS)
    layers = [[nn.Linear(a, b), nn.ReLU()] for a, b in itertools.pairwise(widths)]
    return nn.Sequential(*itertools.chain(*layers))[:-1]


@dataclass(kw_only=True)
class Trainings:
    """Trainings that can be continued, with the epochs and seconds that they took together."""

    data: PatternImages
    epochs: int = 0  # of all trainings together
    seconds: dict[int, float] = field(default_factory=dict)  # by batch size
    samples: dict[int, int] = field(default_factory=dict)  # trained with, by batch size
    _states: dict[Configuration, tuple[Any, Any, int]] = field(default_factory=dict, repr=False)

    def train(self, configuration: Configuration, epochs: int) -> float:
        """Train a configuration up to this number of epochs, and return its accuracy on the validation images."""
        import torch

        model, optimizer, done = self._states.get(configuration) or (grid_classifier(), None, 0)
        optimizer = optimizer or torch.optim.AdamW(
            model.parameters(), lr=configuration.lr, weight_decay=configuration.weight_decay
        )
        for epoch in range(done, epochs):
            self._train_epoch(model, optimizer, configuration.batch, epoch)
        self.epochs += max(0, epochs - done)
        self._states[configuration] = model, optimizer, max(done, epochs)
        return correct_frac(model, self.data.test_inputs, self.data.test_labels)

    def _train_epoch(self, model: Any, optimizer: Any, batch: int, epoch: int) -> None:
        from torch.nn import functional

        inputs, labels, start = self.data.inputs, self.data.labels, time.perf_counter()
        for indices in shuffled_batches(len(inputs), batch, 1, seed=epoch):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[indices]), labels[indices]).backward()
            optimizer.step()
        self.seconds[batch] = self.seconds.get(batch, 0.0) + time.perf_counter() - start
        self.samples[batch] = self.samples.get(batch, 0) + len(inputs)

    def samples_per_s(self, batch: int) -> float:
        """Return the throughput of all epochs with this batch size."""
        return self.samples[batch] / self.seconds[batch]


@dataclass(frozen=True, kw_only=True)
class HalvingResult:
    """What ASHA ran: by epochs of a rung, the accuracies of the configurations that reached it."""

    rungs: Mapping[int, Mapping[Configuration, float]]

    @property
    def best(self) -> Standing | None:
        """The best configuration of the last rung, with its accuracy; None if none reached it."""
        last = self.rungs[max(self.rungs)]
        return max(((accuracy, each) for each, accuracy in last.items()), default=None)


def run_asha(
    configurations: Sequence[Configuration],
    promotable: Promote,
    train: Callable[[Configuration, int], float],
    rung_epochs: Sequence[int] = (1, 3, 9),
) -> HalvingResult:
    """Run ASHA with one worker: whenever it is free, it continues a promotable configuration, or starts a new one.

    `promotable`: returns, for the standings of a rung, best first, those that may continue. It is asked again after
    each training, so a configuration may continue before others have started. Raises GpulabError if it returns
    something else.
    """
    rungs: dict[int, dict[Configuration, float]] = {epochs: {} for epochs in rung_epochs}
    waiting = list(configurations)
    while job := _next_job(rungs, waiting, promotable):
        configuration, epochs = job
        rungs[epochs][configuration] = train(configuration, epochs)
    return HalvingResult(rungs=rungs)


def _next_job(
    rungs: dict[int, dict[Configuration, float]], waiting: list[Configuration], promotable: Promote
) -> tuple[Configuration, int] | None:
    for lower, upper in reversed(list(itertools.pairwise(rungs))):
        standings = sorted(((accuracy, each) for each, accuracy in rungs[lower].items()), reverse=True)
        promoted = promotable(list(standings))
        if not isinstance(promoted, Sequence) or not all(standing in standings for standing in promoted):
            raise GpulabError(
                "The function that selects standings returned something else.",
                why=f"it has to return some of the pairs (accuracy, combination) that it gets, not {promoted!r:.60}",
                fix="return a part of them: standings[:1] is the best one",
            )
        for _, configuration in promoted:
            if configuration not in rungs[upper]:
                return configuration, upper
    return (waiting.pop(0), next(iter(rungs))) if waiting else None
