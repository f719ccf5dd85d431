"""What travels between host and GPU in every step, and need not, or need not be waited for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpulab.workloads.training import listed, noise, number_on, optimizer_steps, perceptron
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

# On an H100: 268 MB in bfloat16, copied in 5 ms where it is pinned, and about 12 ms of matrix products on it.
BATCH, WIDTHS = 16384, (8192, 8192, 2048, 16)
SMALL_BATCH, SMALL_WIDTHS = 512, (256, 256, 64, 16)
# 64 MB of results in each step, and about 10 ms of matrix products.
RESULTS, SMALL_RESULTS = 2048, 64


def train_from_host(*, device: str = "cpu", steps: int = 60, pinned: bool = True, ahead: bool = True) -> list[float]:
    """Train on batches that lie ready in the host's memory; `ahead`: the next one is copied meanwhile."""
    import torch
    from torch import nn

    samples = _batches(device, pinned and device != "cpu")
    model = _model(device, *(SMALL_WIDTHS if device == "cpu" else WIDTHS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    following = (samples[step % len(samples)] for step in range(steps))
    batches = _copied_ahead(following, device) if ahead else _copied(following, device)
    return listed(
        optimizer_steps(optimizer, lambda inputs: nn.functional.mse_loss(model(inputs), inputs[:, :16]), batches)
    )


def train_and_keep(*, device: str = "cpu", steps: int = 30, fetched: bool = False) -> list[float]:
    """Train a classifier and keep what it predicts; `fetched`: each step's predictions are fetched at once."""
    import torch
    from torch import nn

    width, classes, count = (256, SMALL_RESULTS, 256) if device == "cpu" else (8192, RESULTS, 16384)
    inputs = noise(count, width).to(device, number_on(device))
    model = _model(device, width, width, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = (torch.arange(count) % classes).to(device)
    kept = []

    def loss_of(_: int) -> Tensor:
        outputs = model(inputs)
        kept.append(outputs.detach().cpu() if fetched else outputs.detach())
        return nn.functional.cross_entropy(outputs, labels)

    losses = list(optimizer_steps(optimizer, loss_of, range(steps)))
    torch.cat(kept).cpu()
    return listed(losses)


def train_on_noise(*, device: str = "cpu", steps: int = 40, on_host: bool = False) -> list[float]:
    """Train a denoiser; `on_host`: the noise of each step is drawn by the CPU and copied."""
    import torch
    from torch import nn

    count, width = (256, 256) if device == "cpu" else (4096, 4096)
    source = "cpu" if on_host else device
    chance = torch.Generator(source).manual_seed(0)
    samples = noise(count, width).to(device, number_on(device))
    model = _model(device, width, width, width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noises = (torch.randn(count, width, generator=chance, device=source).to(device) for _ in range(steps))

    def loss_of(added: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(samples + 0.1 * added.to(samples.dtype)), samples)

    return listed(optimizer_steps(optimizer, loss_of, noises))


def train_where_it_lies(*, device: str = "cpu", steps: int = 12, moved: bool = True) -> list[float]:
    """Train on the device, or, where the model was not moved there, on the CPU beside it."""
    import torch
    from torch import nn

    place = device if moved else "cpu"
    count, width = (256, 512) if device == "cpu" else (4096, 4096)
    inputs = noise(count, width).to(place)
    model = perceptron(width, width, width).to(place)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        with torch.autocast(torch.device(place).type, torch.bfloat16, enabled=device != "cpu"):
            return nn.functional.mse_loss(model(inputs), inputs)

    return listed(optimizer_steps(optimizer, loss_of, range(steps)))


def _copied(batches: Iterable[Tensor], device: str) -> Iterator[Tensor]:
    """Each batch on the device, copied when it is its turn."""
    for batch in batches:
        yield batch.to(device, non_blocking=True)


def _copied_ahead(batches: Iterable[Tensor], device: str) -> Iterator[Tensor]:
    """Each batch on the device, copied on a stream of its own while the one before is computed on."""
    import torch

    if device == "cpu":
        yield from batches
        return
    side, rest = torch.cuda.Stream(), iter(batches)

    def copied() -> Tensor | None:
        with torch.cuda.stream(side):
            batch = next(rest, None)
            return None if batch is None else batch.to(device, non_blocking=True)

    following = copied()
    while following is not None:
        torch.cuda.current_stream().wait_stream(side)
        following.record_stream(torch.cuda.current_stream())
        batch, following = following, copied()
        yield batch


def _batches(device: str, pinned: bool) -> list[Tensor]:
    """Two batches in the host's memory, each of the same few samples over and over."""
    count, width = (SMALL_BATCH, SMALL_WIDTHS[0]) if device == "cpu" else (BATCH, WIDTHS[0])
    few = noise(count // 16, width).to(number_on(device))
    batches = [few.repeat(16, 1), few.flip(0).repeat(16, 1)]
    return [batch.pin_memory() for batch in batches] if pinned else batches


def _model(device: str, *widths: int) -> nn.Module:
    return perceptron(*widths).to(device, number_on(device))


TRANSFERS = (
    Workload(
        name="copies_pageable",
        about="Large batches copied to the GPU from memory that is not pinned.",
        run=functools.partial(train_from_host, pinned=False, ahead=False),
        rule="pageable_copies",
        twin="copies_ahead",
        needs_gpu=True,
    ),
    Workload(
        name="unoverlapped_copies",
        about="Large batches copied from pinned memory, each when it is its turn: compute waits.",
        run=functools.partial(train_from_host, ahead=False),
        rule="unoverlapped_copies",
        twin="copies_ahead",
        needs_gpu=True,
    ),
    Workload(
        name="copies_ahead",
        about="The same batches, pinned, and each copied while the one before is computed on.",
        run=train_from_host,
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="results_fetched",
        about="Predictions fetched from the GPU in every step, to be looked at after the last.",
        run=functools.partial(train_and_keep, fetched=True),
        rule="host_syncs",
        twin="results_kept",
        needs_gpu=True,
    ),
    Workload(
        name="results_kept",
        about="The same predictions kept on the GPU and fetched once.",
        run=train_and_keep,
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="noise_on_host",
        about="Noise drawn by the CPU in every step, then copied to the GPU.",
        run=functools.partial(train_on_noise, on_host=True),
        rule="cpu_tensor_creation",
        twin="noise_on_device",
        needs_gpu=True,
    ),
    Workload(
        name="noise_on_device",
        about="The same noise drawn where it is used.",
        run=train_on_noise,
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="left_on_cpu",
        about="A model that was never moved to the GPU beside it.",
        run=functools.partial(train_where_it_lies, moved=False),
        rule="model_on_cpu",
        twin="moved_to_gpu",
        needs_gpu=True,
    ),
    Workload(
        name="moved_to_gpu",
        about="The same model on the GPU.",
        run=train_where_it_lies,
        rule=None,
        needs_gpu=True,
    ),
)
