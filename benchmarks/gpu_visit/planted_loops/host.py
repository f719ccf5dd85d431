"""Planted causes on the host: synchronisation, Python, dispatch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.gpu_visit.planted_loops.settings import LoopSettings, PlantedLoop


def train_with_logged_norms(settings: LoopSettings) -> None:
    """Loss and gradient norms are read with .item() in every step, or kept on the device until the end."""
    width = settings.size(2048, 16)
    model = _layers(settings, width, settings.size(20, 2))
    inputs = torch.randn(settings.size(4096, 4), width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    history: list[list[float]] = []
    history_on_device: list[Tensor] = []
    for _ in range(settings.steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(inputs), inputs)
        loss.backward()
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        if settings.fixed:
            history_on_device.append(torch.stack([loss.detach(), *(gradient.norm() for gradient in gradients)]))
        else:
            history.append([loss.item(), *(gradient.norm().item() for gradient in gradients)])
        optimizer.step()
        settings.step_done()
    if history_on_device:
        history = torch.stack(history_on_device).tolist()


def train_on_python_features(settings: LoopSettings) -> None:
    """Features counted in Python in every step, or once before the loop."""
    batch, length = settings.size(64, 2), settings.size(600, 8)
    texts = [[(7 * row + 13 * place) % 251 for place in range(length)] for row in range(batch)]
    model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 256)).to(settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    counted = count_codes(texts).to(settings.device) if settings.fixed else None
    for _ in range(settings.steps):
        features = count_codes(texts).to(settings.device) if counted is None else counted
        optimizer.zero_grad()
        nn.functional.mse_loss(model(features), features).backward()
        optimizer.step()
        settings.step_done()


def count_codes(texts: list[list[int]]) -> Tensor:
    """How often each code occurs in each text."""
    rows = []
    for text in texts:
        counts = [0.0] * 256
        for code in text:
            counts[code] += 1 / len(text)
        rows.append(counts)
    return torch.tensor(rows)


def train_tiny_layers(settings: LoopSettings) -> None:
    """A deep, narrow perceptron, launched kernel by kernel or as one CUDA graph."""
    model = _layers(settings, 64, settings.size(40, 2))
    inputs = torch.randn(settings.size(32, 2), 64, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)

    def compute() -> None:
        nn.functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()

    def compute_eagerly() -> None:
        optimizer.zero_grad()
        compute()

    step = _captured(compute, optimizer) if settings.fixed and settings.device == "cuda" else compute_eagerly
    for _ in range(settings.steps):
        step()
        settings.step_done()


def _captured(compute: Callable[[], None], optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """The work as a CUDA graph: warm it up on another stream, capture it, and return its replay."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            compute()
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad(set_to_none=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    return graph.replay


def train_with_noise(settings: LoopSettings) -> None:
    """Noise drawn on the CPU and copied in every step, or drawn on the device."""
    width = settings.size(4096, 16)
    model = _layers(settings, width, 3)
    inputs = torch.randn(settings.size(2048, 4), width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for _ in range(settings.steps):
        noise = torch.randn(*inputs.shape, device=settings.device if settings.fixed else "cpu")
        noisy = inputs + 0.1 * noise.to(settings.device).to(inputs.dtype)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(noisy), inputs).backward()
        optimizer.step()
        settings.step_done()


def _layers(settings: LoopSettings, width: int, depth: int) -> nn.Module:
    """Linear layers with ReLU."""
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers).to(settings.device, settings.dtype)


HOST = (
    PlantedLoop(
        name="item_every_step",
        about="loss and 40 gradient norms read with .item() in every step",
        fix="kept on the device until the end",
        rules=("host_syncs",),
        run=train_with_logged_norms,
        steps=60,
    ),
    PlantedLoop(
        name="python_in_the_loop",
        about="features counted in Python in every step",
        fix="counted once, before the loop",
        rules=("host_python",),
        run=train_on_python_features,
    ),
    PlantedLoop(
        name="tiny_layers",
        about="40 layers of width 64, launched one by one",
        fix="the step as one CUDA graph",
        rules=("dispatch_bound",),
        run=train_tiny_layers,
        steps=200,
    ),
    PlantedLoop(
        name="noise_from_cpu",
        about="noise drawn on the CPU and copied in every step",
        fix="drawn on the GPU",
        rules=("cpu_tensor_creation",),
        run=train_with_noise,
    ),
)
