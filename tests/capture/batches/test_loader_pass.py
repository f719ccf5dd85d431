"""The live panel's "step 12 of 40": real DataLoaders, with epochs, accumulation, evaluation, and unknown lengths."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import gpulab
from gpulab.capture.hooks.loader_pass import LoaderPass
from gpulab.capture.session import Session
from gpulab.views.live.panel_content import PanelContentBuilder
from tests.support.front_end.live_panel import live_state

DATA = TensorDataset(torch.ones(40, 4))
Look = Callable[[], None]


class Stream(IterableDataset):
    """Batches whose number nobody knows."""

    def __iter__(self):
        return iter(torch.ones(12, 4))


class Training:
    """A model that is trained on batches."""

    def __init__(self) -> None:
        self.model = torch.nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def backward(self, batch: torch.Tensor) -> None:
        """Compute gradients."""
        self.model(batch).sum().backward()

    def update(self, batch: torch.Tensor) -> None:
        """Compute gradients and change the weights."""
        self.backward(batch)
        self.optimizer.step()
        self.optimizer.zero_grad()


def progress_of(loop: Callable[[Training, Look], None]) -> list[LoaderPass | None]:
    """The progress at every look of the loop."""
    session, looks = Session("run", level="sensors"), []
    session.start()
    try:
        loop(Training(), lambda: looks.append(session.live().loader_pass))
    finally:
        session.abandon()
    return looks


def two_epochs(training: Training, look: Look) -> None:
    loader = DataLoader(DATA, batch_size=10)
    for _ in range(2):
        for _, (batch,) in enumerate(loader):
            training.update(batch)
            look()


def test_each_step_is_counted_within_its_epoch() -> None:
    assert progress_of(two_epochs) == [LoaderPass(step, 4, epoch) for epoch in (1, 2) for step in (1, 2, 3, 4)]


def test_batches_whose_gradients_are_accumulated_are_one_step() -> None:
    def accumulating(training: Training, look: Look) -> None:
        for number, (batch,) in enumerate(DataLoader(DATA, batch_size=2), start=1):
            training.backward(batch)
            if number % 4 == 0:
                training.optimizer.step()
                look()

    assert progress_of(accumulating) == [LoaderPass(step, 5, 1) for step in (1, 2, 3, 4, 5)]


def test_a_look_at_the_first_batch_is_no_epoch_and_an_evaluation_changes_nothing() -> None:
    def with_evaluation(training: Training, look: Look) -> None:
        loader, evaluation = DataLoader(DATA, batch_size=10), DataLoader(DATA, batch_size=20)
        next(iter(loader))
        for _ in range(2):
            for (batch,) in loader:
                training.update(batch)
            look()
            for (batch,) in evaluation:
                training.model(batch)
                look()

    last = [LoaderPass(4, 4, epoch) for epoch in (1, 2)]
    assert progress_of(with_evaluation) == [*[last[0]] * 3, *[last[1]] * 3]


def stream(training: Training, look: Look) -> None:
    for batch in DataLoader(Stream(), batch_size=4):
        training.update(batch)
        look()


def no_loader(training: Training, look: Look) -> None:
    for _ in range(3):
        training.update(torch.ones(2, 4))
        look()


def user_steps(training: Training, look: Look) -> None:
    for (batch,) in DataLoader(DATA, batch_size=20):
        gpulab.step()
        training.update(batch)
        gpulab.step()
        look()


@pytest.mark.parametrize("loop", [stream, no_loader, user_steps])
def test_without_a_known_length_there_is_no_total(loop: Callable[[Training, Look], None]) -> None:
    assert set(progress_of(loop)) == {None}


@pytest.mark.parametrize(
    ("loader_pass", "text"),
    [
        (None, "step 52"),
        (LoaderPass(12, 40, 1), "step 12 of 40"),
        (LoaderPass(12, 40, 2), "step 52 (epoch 2: 12 of 40)"),
    ],
)
def test_the_panel_shows_the_total_if_it_is_known_and_the_epoch_if_there_are_several(
    loader_pass: LoaderPass | None, text: str
) -> None:
    assert PanelContentBuilder("run").build(live_state(steps=52, loader_pass=loader_pass)).progress[0] == text
