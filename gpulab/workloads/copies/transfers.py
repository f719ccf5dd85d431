"""Copies between host and GPU that are avoidable, or that the loop need not wait for."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from gpulab.workloads.training import fast_dtype, loss_values, perceptron, random_normal, run_optimizer_steps
from gpulab.workloads.workload import Workload

if TYPE_CHECKING:
    from torch import Tensor, nn

# On an H100: 268 MB in bfloat16, copied in 5 ms from pinned memory, and about 12 ms of matrix products.
BATCH, WIDTHS = 16384, (8192, 8192, 2048, 16)
SMALL_BATCH, SMALL_WIDTHS = 512, (256, 256, 64, 16)
# 64 MB of results per step, and about 10 ms of matrix products.
CLASSES, SMALL_RESULTS = 2048, 64


def train_from_host(*, device: str = "cpu", steps: int = 60, pinned: bool = True, prefetch: bool = True) -> list[float]:
    """Train on batches in host memory; `prefetch`: copy the next batch while the current one is computed."""
    import torch
    from torch import nn

    samples = _batches(device, pinned and device != "cpu")
    model = _model(device, *(SMALL_WIDTHS if device == "cpu" else WIDTHS))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples_in_order = (samples[step % len(samples)] for step in range(steps))
    batches = _prefetch(samples_in_order, device) if prefetch else _copy_in_order(samples_in_order, device)
    return loss_values(
        run_optimizer_steps(optimizer, lambda inputs: nn.functional.mse_loss(model(inputs), inputs[:, :16]), batches)
    )


def train_and_keep_predictions(*, device: str = "cpu", steps: int = 30, fetch_each_step: bool = False) -> list[float]:
    """Train a classifier and collect its predictions; `fetch_each_step`: copy them to the host in each step."""
    import torch
    from torch import nn

    width, classes, count = (256, SMALL_RESULTS, 256) if device == "cpu" else (8192, CLASSES, 16384)
    inputs = random_normal(count, width).to(device, fast_dtype(device))
    model = _model(device, width, width, classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    labels = (torch.arange(count) % classes).to(device)
    predictions = []

    def loss_of(_: int) -> Tensor:
        outputs = model(inputs)
        predictions.append(outputs.detach().cpu() if fetch_each_step else outputs.detach())
        return nn.functional.cross_entropy(outputs, labels)

    losses = list(run_optimizer_steps(optimizer, loss_of, range(steps)))
    torch.cat(predictions).cpu()
    return loss_values(losses)


def train_on_noise(*, device: str = "cpu", steps: int = 40, on_host: bool = False) -> list[float]:
    """Train a denoiser; `on_host`: generate the noise of each step on the CPU and copy it."""
    import torch
    from torch import nn

    count, width = (256, 256) if device == "cpu" else (4096, 4096)
    source = "cpu" if on_host else device
    generator = torch.Generator(source).manual_seed(0)
    samples = random_normal(count, width).to(device, fast_dtype(device))
    model = _model(device, width, width, width, width)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    noises = (torch.randn(count, width, generator=generator, device=source).to(device) for _ in range(steps))

    def loss_of(added: Tensor) -> Tensor:
        return nn.functional.mse_loss(model(samples + 0.1 * added.to(samples.dtype)), samples)

    return loss_values(run_optimizer_steps(optimizer, loss_of, noises))


def train_on_device_or_cpu(*, device: str = "cpu", steps: int = 12, move_model: bool = True) -> list[float]:
    """Train on the device; with `move_model=False` on the CPU, because the model was never moved."""
    import torch
    from torch import nn

    model_device = device if move_model else "cpu"
    count, width = (256, 512) if device == "cpu" else (4096, 4096)
    inputs = random_normal(count, width).to(model_device)
    model = perceptron(width, width, width).to(model_device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def loss_of(_: int) -> Tensor:
        with torch.autocast(torch.device(model_device).type, torch.bfloat16, enabled=device != "cpu"):
            return nn.functional.mse_loss(model(inputs), inputs)

    return loss_values(run_optimizer_steps(optimizer, loss_of, range(steps)))


def _copy_in_order(batches: Iterable[Tensor], device: str) -> Iterator[Tensor]:
    """Yield each batch on the device, copied when it is needed."""
    for batch in batches:
        yield batch.to(device, non_blocking=True)


def _prefetch(batches: Iterable[Tensor], device: str) -> Iterator[Tensor]:
    """Yield each batch on the device, copied on a separate stream while the previous one is computed."""
    import torch

    if device == "cpu":
        yield from batches
        return
    copy_stream, remaining = torch.cuda.Stream(), iter(batches)

    def next_copied() -> Tensor | None:
        with torch.cuda.stream(copy_stream):
            batch = next(remaining, None)
            return None if batch is None else batch.to(device, non_blocking=True)

    next_batch = next_copied()
    while next_batch is not None:
        torch.cuda.current_stream().wait_stream(copy_stream)
        next_batch.record_stream(torch.cuda.current_stream())
        batch, next_batch = next_batch, next_copied()
        yield batch


def _batches(device: str, pinned: bool) -> list[Tensor]:
    """Return two batches in host memory, each a few samples repeated."""
    count, width = (SMALL_BATCH, SMALL_WIDTHS[0]) if device == "cpu" else (BATCH, WIDTHS[0])
    samples = random_normal(count // 16, width).to(fast_dtype(device))
    batches = [samples.repeat(16, 1), samples.flip(0).repeat(16, 1)]
    return [batch.pin_memory() for batch in batches] if pinned else batches


def _model(device: str, *widths: int) -> nn.Module:
    return perceptron(*widths).to(device, fast_dtype(device))


TRANSFERS = (
    Workload(
        name="copies_pageable",
        about="Large batches copied to the GPU from pageable memory.",
        run=functools.partial(train_from_host, pinned=False, prefetch=False),
        rule="pageable_copies",
        twin="copies_ahead",
        needs_gpu=True,
    ),
    Workload(
        name="unoverlapped_copies",
        about="Large batches copied from pinned memory, but not prefetched: kernels wait for each copy.",
        run=functools.partial(train_from_host, prefetch=False),
        rule="unoverlapped_copies",
        twin="copies_ahead",
        needs_gpu=True,
    ),
    Workload(
        name="copies_ahead",
        about="The same batches, pinned, and each copied while the previous one is computed.",
        run=train_from_host,
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="results_fetched",
        about="Predictions copied to the host in every step, although they are used only after the last.",
        run=functools.partial(train_and_keep_predictions, fetch_each_step=True),
        rule="host_syncs",
        twin="results_kept",
        needs_gpu=True,
    ),
    Workload(
        name="results_kept",
        about="The same predictions kept on the GPU and copied once.",
        run=train_and_keep_predictions,
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="noise_on_host",
        about="Noise generated on the CPU in every step, then copied to the GPU.",
        run=functools.partial(train_on_noise, on_host=True),
        rule="cpu_tensor_creation",
        twin="noise_on_device",
        needs_gpu=True,
    ),
    Workload(
        name="noise_on_device",
        about="The same noise generated on the GPU.",
        run=train_on_noise,
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="left_on_cpu",
        about="A model that was never moved to the GPU.",
        run=functools.partial(train_on_device_or_cpu, move_model=False),
        rule="model_on_cpu",
        twin="moved_to_gpu",
        needs_gpu=True,
    ),
    Workload(
        name="moved_to_gpu",
        about="The same model on the GPU.",
        run=train_on_device_or_cpu,
        rule=None,
        needs_gpu=True,
    ),
)
