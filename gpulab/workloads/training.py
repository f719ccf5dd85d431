"""Models and the training loop that several workloads share."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

Batch = TypeVar("Batch")


def image_classifier(channels: int, classes: int = 10) -> nn.Module:
    """Return a small image classifier with fixed initial weights; `channels` sets its cost."""
    from torch import nn

    with _seeded():
        return nn.Sequential(
            *(nn.Conv2d(3, channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(channels, 2 * channels, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(2 * channels, 4 * channels, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * channels, classes)),
        )


def audio_classifier(channels: int, classes: int = 10) -> nn.Module:
    """Return a small audio classifier with fixed initial weights; `channels` sets its cost."""
    from torch import nn

    with _seeded():
        return nn.Sequential(
            *(nn.Conv1d(1, channels, 9, stride=2), nn.ReLU()),
            *(nn.Conv1d(channels, 2 * channels, 9, stride=4), nn.ReLU()),
            *(nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2 * channels, classes)),
        )


def perceptron(*widths: int) -> nn.Module:
    """Return linear layers with ReLU between them, with fixed initial weights."""
    from torch import nn

    layers: list[nn.Module] = []
    with _seeded():
        for inputs, outputs in itertools.pairwise(widths):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def deep_narrow_model(width: int, depth: int) -> nn.Module:
    """Return many layers that each take a few microseconds, with fixed initial weights."""
    from torch import nn

    with _seeded():
        layers = [(nn.Linear(width, width), nn.LayerNorm(width), nn.Tanh()) for _ in range(depth)]
        return nn.Sequential(*(part for layer in layers for part in layer), nn.Linear(width, 1))


def train_classifier(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], device: str) -> list[float]:
    """Train on every batch once; return the loss of each step.

    The losses stay on the device until the end: reading one in each step would make the loop wait.
    """
    import torch
    from torch import nn

    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        inputs, labels = (tensor.to(device, non_blocking=True) for tensor in batch)
        return nn.functional.cross_entropy(model(inputs), labels)

    return loss_values(run_optimizer_steps(optimizer, loss_of, batches))


def run_optimizer_steps(
    optimizer: Optimizer, loss_of: Callable[[Batch], Tensor], batches: Iterable[Batch]
) -> Iterator[Tensor]:
    """Take one optimizer step per batch; yield a copy of the loss of each step, which stays on the device.

    A copy, because `mse_loss` computes the mean in place: its result of one number holds the memory of all elements.
    """
    for batch in batches:
        optimizer.zero_grad()
        loss = loss_of(batch)
        loss.backward()
        optimizer.step()
        yield loss.detach().clone()


def batch_loader(
    dataset: Any, batch_size: int, device: str, *, workers: int = 0, persistent: bool = False
) -> DataLoader[Any]:
    """A DataLoader that shuffles in the same order every time; a dataset need not subclass torch's Dataset."""
    import torch
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=workers,
        persistent_workers=persistent,
        pin_memory=device != "cpu",
        generator=torch.Generator().manual_seed(0),
    )


def random_normal(*sizes: int, seed: int = 0) -> Tensor:
    """Return normally distributed numbers, the same every time."""
    import torch

    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed))


def fast_dtype(device: str) -> dtype:
    """Return the dtype for which a GPU has fast matrix units; on a CPU float32."""
    import torch

    return torch.float32 if device == "cpu" else torch.bfloat16


def loss_values(losses: Iterable[Tensor]) -> list[float]:
    """Return the losses as numbers, copied from the device at once."""
    import torch

    return [float(loss) for loss in torch.stack(list(losses)).tolist()]


@contextlib.contextmanager
def torch_threads(threads: int | None) -> Iterator[None]:
    """Compute on this many threads inside, and restore the number afterwards; None changes nothing."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Seed the weights created inside, without changing the caller's random state."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield
