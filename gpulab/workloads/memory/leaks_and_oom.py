"""GPU memory: retained autograd graphs, a batch that is too large, an emptied cache, fragmentation."""

from __future__ import annotations

import functools

from gpulab.workloads.memory.simulated_card import limited_memory
from gpulab.workloads.training import (
    fast_dtype,
    loss_values,
    perceptron,
    random_normal,
    run_optimizer_steps,
    torch_threads,
)
from gpulab.workloads.workload import Workload

WIDTH = 512
PROBES = 96  # held-out samples for the loss that each step records
CARD_BYTES = 48 * 2**20
BATCH, GROWS_BY = 2048, 256


def train_with_history(*, device: str = "cpu", steps: int = 240, keep_graphs: bool = True) -> list[float]:
    """Train, and record the loss on held-out samples in each step: as a number, or as a tensor with its graph."""
    with torch_threads(1):
        return _with_history(device, steps, keep_graphs)


def _with_history(device: str, steps: int, keep_graphs: bool) -> list[float]:
    import torch
    from torch import nn

    samples, held_out = random_normal(BATCH // 16, WIDTH).to(device), random_normal(PROBES, WIDTH, seed=1).to(device)
    model = perceptron(WIDTH, WIDTH, WIDTH, WIDTH).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses, history = [], []
    for loss in run_optimizer_steps(optimizer, lambda _: nn.functional.mse_loss(model(samples), samples), range(steps)):
        losses.append(loss.item())  # as tensors, they would fragment the memory of the process
        progress = nn.functional.mse_loss(model(held_out), held_out)
        history.append(progress if keep_graphs else progress.item())
    return losses


def train_with_limited_memory(*, device: str = "cpu", steps: int = 12, parts: int = 1) -> list[float]:
    """Train on a GPU of 48 MiB with growing batches, each in `parts` micro-batches with accumulated gradients."""
    with torch_threads(1), limited_memory(CARD_BYTES):
        return _accumulated(device, steps, parts)


def _accumulated(device: str, steps: int, parts: int) -> list[float]:
    import torch
    from torch import nn

    samples = random_normal(BATCH, WIDTH).to(device)
    model = perceptron(WIDTH, *[WIDTH] * 6).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        total = torch.zeros((), device=device)
        for part in samples[: GROWS_BY * (step + 1)].chunk(parts):
            loss = nn.functional.mse_loss(model(part), part) / parts
            loss.backward()
            total += loss.detach()
        optimizer.step()
        losses.append(total)
    return loss_values(losses)


def train_with_empty_cache(*, device: str = "cpu", steps: int = 60, empty: bool = True) -> list[float]:
    """Train with torch.cuda.empty_cache() after each step."""
    import torch
    from torch import nn

    width = WIDTH if device == "cpu" else 4096
    samples = random_normal(width, width).to(device, fast_dtype(device))
    model = perceptron(width, *[width] * 4).to(device, fast_dtype(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for loss in run_optimizer_steps(optimizer, lambda _: nn.functional.mse_loss(model(samples), samples), range(steps)):
        losses.append(loss)
        if empty:
            torch.cuda.empty_cache()
    return loss_values(losses)


def train_on_cached_features(*, device: str = "cpu", steps: int = 60, preallocate: bool = False) -> list[float]:
    """Compute features of every batch once, keep them on the GPU, and train on them.

    Computing them needs twice their size. If features are kept one by one, each is allocated inside the block that its
    computation freed, and the other half of that block fits no later request. Allocated together in advance, they leave
    no such gaps.
    """
    import torch

    # On a GPU, all steps together need six sevenths of the free memory one by one, and half of that in advance.
    numbers = 2**20 if device == "cpu" else torch.cuda.mem_get_info()[0] // 70 // 4
    # A little more than half of it, also after PyTorch rounds allocations up to 2 MiB.
    count = numbers // 2 // WIDTH + (64 if device == "cpu" else 2048)
    storage = torch.empty(steps, count, WIDTH, device=device) if preallocate else None
    stored = []
    model, generator = perceptron(WIDTH, 1).to(device), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step in range(steps):
        scale = torch.rand((), generator=generator).item()
        temporary = torch.full((numbers,), scale, device=device)
        del temporary
        features = torch.empty(count, WIDTH, device=device) if storage is None else storage[step]
        stored.append(features.fill_(scale))
        optimizer.zero_grad()
        loss = model(features[:64]).square().mean() + scale
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return loss_values(losses)


MEMORY = (
    Workload(
        name="kept_graphs",
        about="A list of loss tensors that keeps each autograd graph alive: memory grows in every step.",
        run=train_with_history,
        rule="memory_growth",
        twin="kept_numbers",
    ),
    Workload(
        name="kept_numbers",
        about="The same list with Python numbers.",
        run=functools.partial(train_with_history, keep_graphs=False),
        rule=None,
    ),
    Workload(
        name="large_batch",
        about="Batches that grow until their activations do not fit into a simulated GPU of 48 MiB.",
        run=train_with_limited_memory,
        rule="out_of_memory",
        twin="accumulated_batch",
    ),
    Workload(
        name="accumulated_batch",
        about="The same batches as eight micro-batches with accumulated gradients: the same training in less memory.",
        run=functools.partial(train_with_limited_memory, parts=8),
        rule=None,
    ),
    Workload(
        name="kept_features",
        about="Features kept on the GPU one by one, each inside the block that its computation needed.",
        run=train_on_cached_features,
        rule="fragmentation",
        twin="placed_features",
        needs_gpu=True,
    ),
    Workload(
        name="placed_features",
        about="The same features, written to memory allocated in advance.",
        run=functools.partial(train_on_cached_features, preallocate=True),
        rule=None,
        needs_gpu=True,
    ),
    Workload(
        name="emptied_cache",
        about="torch.cuda.empty_cache() in every step: cudaFree and cudaMalloc each time.",
        run=train_with_empty_cache,
        rule="allocator_thrash",
        twin="kept_cache",
        needs_gpu=True,
    ),
    Workload(
        name="kept_cache",
        about="The same training without it: PyTorch reuses its cached memory.",
        run=functools.partial(train_with_empty_cache, empty=False),
        rule=None,
        needs_gpu=True,
    ),
)
