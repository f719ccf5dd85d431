"""Planted causes in kernels: precision, optimizer, memory format, elementwise operators."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from benchmarks.gpu_visit.planted_loops.settings import LoopSettings, PlantedLoop


def train_without_tf32(settings: LoopSettings) -> None:
    """Float32 products, with TF32 off or on."""
    with _products("high" if settings.fixed else "highest"):
        _train_products(settings, lambda: contextlib.nullcontext())


def train_without_autocast(settings: LoopSettings) -> None:
    """TF32 products, or bfloat16 products under autocast."""

    def autocast() -> contextlib.AbstractContextManager[object]:
        return torch.autocast(settings.device, torch.bfloat16, enabled=settings.fixed)

    with _products("high"):
        _train_products(settings, autocast)


def _train_products(settings: LoopSettings, cast: Callable[[], contextlib.AbstractContextManager[object]]) -> None:
    width = settings.size(4096, 16)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(3))).to(settings.device)
    inputs = torch.randn(settings.size(8192, 4), width, device=settings.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        with cast():
            loss = nn.functional.mse_loss(model(inputs).float(), inputs)
        loss.backward()
        optimizer.step()
        settings.step_done()


@contextlib.contextmanager
def _products(precision: str) -> Iterator[None]:
    """Set the precision of float32 products inside."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def train_many_tensors(settings: LoopSettings) -> None:
    """AdamW over many parameter tensors, one by one or fused."""
    width = settings.size(1024, 16)
    layers = [nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width)) for _ in range(settings.size(40, 2))]
    model = nn.Sequential(*layers).to(settings.device, settings.dtype)
    inputs = torch.randn(settings.size(2048, 4), width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False, fused=settings.fixed)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), inputs).backward()
        optimizer.step()
        settings.step_done()


def train_convolutions(settings: LoopSettings) -> None:
    """A convolutional network in NCHW or in channels_last."""
    form = torch.channels_last if settings.fixed else torch.contiguous_format
    channels, side = settings.size(128, 4), settings.size(56, 8)
    blocks = [
        nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU())
        for _ in range(settings.size(12, 2))
    ]
    model = nn.Sequential(*blocks).to(settings.device, settings.dtype, memory_format=form)  # type: ignore[call-overload]
    images = torch.randn(settings.size(128, 2), channels, side, side, device=settings.device, dtype=settings.dtype)
    images = images.to(memory_format=form)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(images), images).backward()
        optimizer.step()
        settings.step_done()


class WrittenOut(nn.Module):
    """GELU and layer normalisation as formulas of elementwise operators, or as PyTorch's functions."""

    def __init__(self, width: int, *, fused: bool) -> None:
        super().__init__()
        self.linear, self.scale, self.fused = nn.Linear(width, width), nn.Parameter(torch.ones(width)), fused

    def forward(self, inputs: Tensor) -> Tensor:
        """The layer."""
        state: Tensor = self.linear(inputs)
        if self.fused:
            state = nn.functional.gelu(state, approximate="tanh")
            return nn.functional.layer_norm(state, state.shape[-1:], self.scale, eps=1e-5)
        state = 0.5 * state * (1 + torch.tanh(math.sqrt(2 / math.pi) * (state + 0.044715 * state**3)))
        centred = state - state.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * self.scale


def train_written_out_layers(settings: LoopSettings) -> None:
    """Elementwise formulas in eager mode; compiled, or as PyTorch's functions where there is no compiler."""
    width = settings.size(1024, 16)
    is_compiled = settings.fixed and settings.can_compile
    layers = [WrittenOut(width, fused=settings.fixed and not is_compiled) for _ in range(settings.size(6, 2))]
    model = nn.Sequential(*layers).to(settings.device, settings.dtype)
    compute = torch.compile(model) if is_compiled else model
    inputs = torch.randn(settings.size(32768, 4), width, device=settings.device, dtype=settings.dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(settings.steps):
        optimizer.zero_grad()
        nn.functional.mse_loss(compute(inputs), inputs).backward()
        optimizer.step()
        settings.step_done()


KERNELS = (
    PlantedLoop(
        name="tf32_off",
        about="large float32 products with TF32 off",
        fix='torch.set_float32_matmul_precision("high")',
        rules=("no_tf32",),
        run=train_without_tf32,
    ),
    PlantedLoop(
        name="no_autocast",
        about="large TF32 products",
        fix="bfloat16 autocast",
        rules=("no_mixed_precision",),
        run=train_without_autocast,
    ),
    PlantedLoop(
        name="unfused_optimizer",
        about="AdamW over 160 tensors with foreach=False",
        fix="fused=True",
        rules=("unfused_optimizer",),
        run=train_many_tensors,
    ),
    PlantedLoop(
        name="channels_first",
        about="bfloat16 convolutions in NCHW",
        fix="channels_last",
        rules=("layout_conversions",),
        run=train_convolutions,
    ),
    PlantedLoop(
        name="written_out_layers",
        about="GELU and layer normalisation as elementwise formulas",
        fix="torch.compile, or PyTorch's functions without a compiler",
        rules=("unfused_elementwise",),
        run=train_written_out_layers,
    ),
)
