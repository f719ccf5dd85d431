"""Sixteen bits at their limits: a detector of rare defects, where autocast leaves its results, an exercise's judge."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpulab.lessons.labs.kernels.mixed_precision import wide_elements
from gpulab.wording import percent

if TYPE_CHECKING:
    import torch

FEATURES, ROWS, COLUMNS = 8, 256, 1024
CLOSE_FRAC = 0.01  # of the right result: 16 bits alone are off by a tenth of that
WIDE_PAR = 4 * ROWS  # a few wide numbers for each row, where all of it in float32 is a thousand

WIDENS = "a float16 tensor times or over a float32 one is float32: make the number of each row float16 before"

# Operators to ask autocast about, by name; each gets half-precision input.
ASKED = ("matmul", "linear", "relu", "add", "exp", "pow", "sum", "softmax", "layer_norm", "norm", "mse_loss")


def defects(pixels: int, rate: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Pixels with a few features each, and which of them are defects: a share `rate` of all."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    features = torch.randn(pixels, FEATURES, generator=chance)
    return features, (torch.rand(pixels, generator=chance) < rate).float()


def detector(rate: float, seed: int = 0) -> torch.nn.Sequential:
    """A small classifier of pixels that begins by expecting as many defects as there are, as such models are begun."""
    import torch
    from torch import nn

    chance = torch.Generator().manual_seed(seed)
    hidden, last = nn.Linear(FEATURES, 16), nn.Linear(16, 1)
    with torch.no_grad():
        for layer, spread in ((hidden, 0.3), (last, 0.01)):
            layer.weight.normal_(0, spread, generator=chance)
            layer.bias.zero_()
        last.bias.fill_(math.log(rate / (1 - rate)))
    return nn.Sequential(hidden, nn.ReLU(), last)


def landings(device: str, dtype: torch.dtype) -> dict[str, str]:
    """The type in which each of ASKED comes out of autocast on a device, given input of type `dtype`."""
    import torch
    from torch.nn import functional

    given = torch.ones(8, 8, device=device, dtype=dtype)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "matmul": lambda: given @ given,
        "linear": lambda: functional.linear(given, given),
        "relu": lambda: torch.relu(given),
        "add": lambda: given + given,
        "exp": lambda: torch.exp(given),
        "pow": lambda: torch.pow(given, 2),
        "sum": lambda: torch.sum(given),
        "softmax": lambda: torch.softmax(given, dim=1),
        "layer_norm": lambda: functional.layer_norm(given, (8,)),
        "norm": lambda: torch.norm(given, 2, dim=1),
        "mse_loss": lambda: functional.mse_loss(given, given),
    }
    with torch.autocast(device, dtype=dtype):
        return {name: str(calls[name]().dtype).removeprefix("torch.") for name in ASKED}


def rows_to_normalise(seed: int = 0) -> torch.Tensor:
    """float16 rows of a root mean square from 0.0001 to 600: the squares of both ends are lost."""
    import torch

    chance = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-4, math.log10(600), ROWS).unsqueeze(1)
    return (torch.randn(ROWS, COLUMNS, generator=chance) * sizes).half()


def judged(normalise: Callable[[Any], Any], seed: int = 0) -> tuple[int | None, str]:
    """Wide numbers that a normalisation of float16 rows writes, or None and what is wrong with its result.

    Right is float16, finite, and each row over its root mean square, as float64 computes it. Where a right result took
    a whole wide tensor, that is said too.
    """
    import torch

    given = rows_to_normalise(seed)
    before = given.clone()
    results: list[Any] = []
    count = wide_elements(lambda: results.append(normalise(given)))
    result = results[0]
    if not isinstance(result, torch.Tensor) or result.shape != given.shape:
        return None, f"the result is no tensor of {ROWS} rows of {COLUMNS}"
    if result.dtype != torch.float16:
        return None, f"the result is {str(result.dtype).removeprefix('torch.')}; {WIDENS}"
    if not torch.equal(before, given):
        return None, "it changes the rows it was given"
    if not bool(torch.isfinite(result).all()):
        return None, "the result holds inf or nan"
    right = before.double() / before.double().square().mean(dim=1, keepdim=True).sqrt()
    off = ((result.double() - right).abs().amax(dim=1) / right.abs().amax(dim=1)).max()
    if float(off) > CLOSE_FRAC:
        return None, f"a row is off by more than {percent(CLOSE_FRAC)} of its largest value"
    return count, f"right, but all of it was wide on the way; {WIDENS}" if count >= given.numel() else ""


def shown(value: torch.Tensor) -> str:
    """The numbers of a small tensor, to five digits."""
    return ", ".join(f"{each:.5g}" for each in value.flatten().tolist())
