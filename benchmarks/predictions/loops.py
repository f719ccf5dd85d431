"""Small training loops with one setting each: the change that a what-if predicts, applied for real.

Each is ordinary seeded PyTorch on one thread without gpulab calls; gpulab.workloads has more of them.
"""

from __future__ import annotations

import gc
import math
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gpulab.workloads.training import deep_narrow_model, image_classifier, perceptron, train_classifier

PIECES, PIECE, SHORT = 32, 48, 512  # pieces of a sample, numbers in each; samples on the disk
WORDS_PER_TEXT = 1200  # in a text


class Pieces(Dataset[Any]):
    """Samples made of many small files, opened one after the other, or slices of one file that is mapped."""

    def __init__(self, folder: Path, length: int, *, mapped: bool) -> None:
        self.folder, self.length = folder, length
        self.all = np.load(folder / "all.npy", mmap_mode="r") if mapped else None

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        which = index % SHORT
        if self.all is not None:
            return torch.from_numpy(np.array(self.all[which])), which % 10
        files = (self.folder / f"{which % 16}.{piece}.npy" for piece in range(PIECES))
        return torch.from_numpy(np.stack([np.load(file) for file in files])), which % 10


class Digests(Dataset[Any]):
    """Samples that cost so many rounds of pure Python each."""

    def __init__(self, length: int, rounds: int) -> None:
        self.length, self.rounds = length, rounds

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.from_numpy(digest(index, self.rounds)), index % 10


class Rows(Dataset[Any]):
    """Samples as lists of Python numbers, as a table read row by row gives them."""

    def __init__(self, length: int, width: int = 256) -> None:
        self.length = length
        self.rows = np.random.default_rng(0).normal(0, 1, (64, width)).tolist()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[list[float], int]:
        return self.rows[index % 64], index % 10


def digest(seed: int, rounds: int, width: int = 256) -> NDArray[np.float32]:
    """Numbers that take `rounds` passes of Python to work out."""
    values = [0.0] * width
    state = seed
    for turn in range(rounds):
        for place in range(width):
            state = zlib.crc32(bytes((place & 255, turn & 255)), state)
            values[place] += (state & 1023) / 1023 - 0.5
    return np.array(values, np.float32)


def slow_collate(samples: list[tuple[list[float], int]]) -> tuple[Tensor, Tensor]:
    """Numbers put into a tensor one row after the other, each copied as often as rows follow."""
    together = torch.empty(0, len(samples[0][0]))
    for row, _ in samples:
        together = torch.cat((together, torch.tensor([[float(value) for value in row]])))
    return together, torch.tensor([label for _, label in samples])


def plain_collate(samples: list[tuple[list[float], int]]) -> tuple[Tensor, Tensor]:
    """All of them at once."""
    return torch.from_numpy(np.array([row for row, _ in samples], np.float32)), torch.tensor([y for _, y in samples])


def loading(dataset: Any, size: int, workers: int = 0, **more: Any) -> DataLoader[Any]:
    """Batches in order."""
    return DataLoader(dataset, batch_size=size, num_workers=workers, **more)


def pieces(folder: Path, steps: int, *, mapped: bool) -> DataLoader[Any]:
    """Batches of samples in pieces; the files are written where they are not there."""
    if not (folder / "all.npy").exists():
        noise = np.random.default_rng(0).normal(0, 1, (SHORT, PIECES, PIECE)).astype(np.float32)
        for which in range(16):
            for piece in range(PIECES):
                np.save(folder / f"{which}.{piece}.npy", noise[which, piece])
        np.save(folder / "all.npy", noise)
    return loading(Pieces(folder, 8 * steps, mapped=mapped), 8)


def train_on_pieces(*, mapped: bool, steps: int = 60) -> None:
    """A perceptron on samples in pieces."""
    with tempfile.TemporaryDirectory() as folder:
        model = nn.Sequential(nn.Flatten(), perceptron(PIECES * PIECE, 1024, 10))
        train(model, pieces(Path(folder), steps, mapped=mapped))


def train_on_digests(*, rounds: int, workers: int = 0, batch: int = 16, steps: int = 60) -> None:
    """A perceptron on samples worked out in Python."""
    train(perceptron(256, 2048, 512, 10), loading(Digests(batch * steps, rounds), batch, workers))


def train_on_rows(*, quick: bool, steps: int = 60) -> None:
    """A perceptron on rows of a table."""
    collate = plain_collate if quick else slow_collate
    train(perceptron(256, 2048, 256, 10), loading(Rows(128 * steps), 128, collate_fn=collate))


def train(model: nn.Module, batches: Iterable[Any]) -> None:
    """Train on every batch once, on one thread."""
    torch.set_num_threads(1)
    train_classifier(model, batches, "cpu")


def fit(
    model: nn.Module,
    inputs: Callable[[int], Tensor],
    *,
    steps: int,
    optimizer: Callable[[Any], torch.optim.Optimizer] | None = None,
    after: Callable[[int], None] | None = None,
    threads: int = 1,
) -> None:
    """Train to give the mean of a sample; inputs are made, and something done after a step, in the loop itself."""
    torch.set_num_threads(threads)
    updating = optimizer(model.parameters()) if optimizer else torch.optim.SGD(model.parameters(), lr=0.001)
    for step in range(steps):
        samples = inputs(step)
        updating.zero_grad()
        loss = nn.functional.mse_loss(model(samples), samples.mean(1, keepdim=True))
        loss.backward()
        updating.step()
        if after:
            after(step)


def ready(batch: int, width: int) -> Callable[[int], Tensor]:
    """Samples that lie ready."""
    samples = torch.randn(8, batch, width, generator=torch.Generator().manual_seed(0))
    return lambda step: samples[step % 8]


def train_on_digested(*, rounds: int, beforehand: bool = False, steps: int = 60) -> None:
    """Samples worked out in the loop's own Python, or before it began."""
    batches = [torch.from_numpy(np.stack([digest(8 * i + k, rounds) for k in range(8)])) for i in range(4 * beforehand)]

    def inputs(step: int) -> Tensor:
        if beforehand:
            return batches[step % 4]
        return torch.from_numpy(np.stack([digest(8 * (step % 4) + k, rounds) for k in range(8)]))

    fit(perceptron(256, 1536, 512, 1), inputs, steps=steps)


def train_with_log(*, every: int, steps: int = 80) -> None:
    """After a step, histograms of all weights are counted for a log."""
    model = perceptron(512, 512, 512, 512, 1)
    weights = [parameter.detach().numpy() for parameter in model.parameters()]

    def log(step: int) -> None:
        if step % every == 0:
            [np.histogram(weight, 64) for weight in weights]

    fit(model, ready(256, 512), steps=steps, after=log)


def train_deep(*, batch: int, steps: int = 80, width: int = 64, depth: int = 60) -> None:
    """Many layers of little work."""
    fit(deep_narrow_model(width, depth), ready(batch, width), steps=steps)


def train_wide(*, batch: int, steps: int = 60) -> None:
    """Few layers of much work."""
    fit(perceptron(1024, 1024, 1024, 1), ready(batch, 1024), steps=steps)


def train_images(*, batch: int, steps: int = 60) -> None:
    """Convolutions on images that lie ready."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, 48, 48, generator=generator)
    labels = torch.arange(batch) % 10
    train(image_classifier(16), ((images, labels) for _ in range(steps)))


def train_updating(kind: str, *, width: int, depth: int, batch: int = 8, steps: int = 60, **how: Any) -> None:
    """Layers updated by some optimizer, one parameter at a time unless `how` says otherwise."""
    chosen = {"foreach": False, **how}
    many = getattr(torch.optim, kind)
    fit(
        deep_narrow_model(width, depth),
        ready(batch, width),
        steps=steps,
        optimizer=lambda p: many(p, lr=1e-4, **chosen),
    )


class Elementwise(nn.Module):
    """An activation in many steps, each a pass over memory."""

    def forward(self, state: Tensor) -> Tensor:
        """Any shape; the same shape."""
        inner = math.sqrt(2 / math.pi) * (state + 0.044715 * state * state * state)
        return 0.5 * state * (1 + torch.tanh(inner)) + torch.sigmoid(state) * 0.1


def train_elementwise(*, compiled: bool, batch: int, width: int = 128, layers: int = 3, steps: int = 60) -> None:
    """Layers with that activation between them, compiled or not."""
    parts: Iterator[Any] = ((nn.Linear(width, width), Elementwise()) for _ in range(layers))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: Any = nn.Sequential(*(part for pair in parts for part in pair), nn.Linear(width, 1))
    if compiled:
        model = torch.compile(model)
    fit(model, ready(batch, width), steps=steps)


def train_collating(*, collected: bool, steps: int = 40) -> None:
    """Batches put together of thousands of tiny samples, with the garbage collector at work or switched off."""
    samples = torch.randn(4096 * steps, 20, generator=torch.Generator().manual_seed(0))
    if not collected:
        gc.collect()
        gc.freeze()
        gc.disable()
    train(nn.Linear(20, 10), loading(TensorDataset(samples, torch.arange(len(samples)) % 10), 4096))


def train_convolving_with(kind: str, *, batch: int = 4, steps: int = 80, **how: Any) -> None:
    """Convolutions and wide layers, by some optimizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten())
        model = nn.Sequential(nn.Unflatten(1, (3, 24, 24)), *layers, nn.Linear(1600, 512), nn.ReLU(), nn.Linear(512, 1))
    chosen = {"foreach": False, **how}
    many = getattr(torch.optim, kind)
    fit(model, ready(batch, 3 * 24 * 24), steps=steps, optimizer=lambda p: many(p, lr=1e-4, **chosen))


def train_by_hand_compiled(*, steps: int) -> None:
    """gpulab.workloads.kernels.handwritten_layers with its formulas compiled."""
    from gpulab.workloads.kernels import handwritten_layers

    gelu, normalised = (
        torch.compile(handwritten_layers.gelu_by_hand),
        torch.compile(handwritten_layers.layer_norm_by_hand),
    )
    handwritten_layers.gelu_by_hand, handwritten_layers.layer_norm_by_hand = gelu, normalised
    handwritten_layers.train_feed_forward(steps=steps)
