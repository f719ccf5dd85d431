"""Limits of half precision: a detector of rare defects, result dtypes under autocast, and the check of an exercise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpulab.lessons.labs.kernels.mixed_precision import wide_elements
from gpulab.wording import percent

if TYPE_CHECKING:
    import torch

FEATURES, ROWS, COLUMNS = 8, 256, 1024
TOLERANCE_FRAC = 0.01  # relative error; the error of 16-bit arithmetic alone is a tenth of it
WIDE_TARGET = 4 * ROWS  # float32 elements: a few per row; a full float32 copy has a thousand per row

PROMOTION_HINT = (
    "a float16 tensor multiplied or divided by a float32 tensor gives float32: convert the scale of each row to float16"
    " first"
)

# Operators whose result dtype under autocast is shown; each gets half-precision input.
AUTOCAST_OPS = ("matmul", "linear", "relu", "add", "exp", "pow", "sum", "softmax", "layer_norm", "norm", "mse_loss")


def defect_pixels(pixels: int, rate: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels with a few features each, and labels: a fraction `rate` of them are defects."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(pixels, FEATURES, generator=generator)
    return features, (torch.rand(pixels, generator=generator) < rate).float()


def defect_detector(rate: float, seed: int = 0) -> torch.nn.Sequential:
    """Return a small pixel classifier whose last bias is initialised to the rate of defects, as is usual."""
    import torch
    from torch import nn

    generator = torch.Generator().manual_seed(seed)
    hidden, last = nn.Linear(FEATURES, 16), nn.Linear(16, 1)
    with torch.no_grad():
        for layer, spread in ((hidden, 0.3), (last, 0.01)):
            layer.weight.normal_(0, spread, generator=generator)
            layer.bias.zero_()
        last.bias.fill_(math.log(rate / (1 - rate)))
    return nn.Sequential(hidden, nn.ReLU(), last)


def autocast_dtypes(device: str, dtype: torch.dtype) -> dict[str, str]:
    """Return the result dtype of each of AUTOCAST_OPS under autocast on a device, for input of type `dtype`."""
    import torch
    from torch.nn import functional

    inputs = torch.ones(8, 8, device=device, dtype=dtype)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "matmul": lambda: inputs @ inputs,
        "linear": lambda: functional.linear(inputs, inputs),
        "relu": lambda: torch.relu(inputs),
        "add": lambda: inputs + inputs,
        "exp": lambda: torch.exp(inputs),
        "pow": lambda: torch.pow(inputs, 2),
        "sum": lambda: torch.sum(inputs),
        "softmax": lambda: torch.softmax(inputs, dim=1),
        "layer_norm": lambda: functional.layer_norm(inputs, (8,)),
        "norm": lambda: torch.norm(inputs, 2, dim=1),
        "mse_loss": lambda: functional.mse_loss(inputs, inputs),
    }
    with torch.autocast(device, dtype=dtype):
        return {name: str(calls[name]().dtype).removeprefix("torch.") for name in AUTOCAST_OPS}


def rows_to_normalise(seed: int = 0) -> torch.Tensor:
    """Return float16 rows with a root mean square from 0.0001 to 600; squares underflow or overflow at the two ends."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    sizes = torch.logspace(-4, math.log10(600), ROWS).unsqueeze(1)
    return (torch.randn(ROWS, COLUMNS, generator=generator) * sizes).half()


def check_normalise(normalise: Callable[[Any], Any], seed: int = 0) -> tuple[int | None, str]:
    """Check a normalisation of float16 rows: the float32 elements that it writes, or None and the error in its result.

    A correct result is float16, finite, and each row divided by its root mean square, compared with float64. The
    message also says if a correct result needed a full float32 tensor.
    """
    import torch

    rows = rows_to_normalise(seed)
    original = rows.clone()
    results: list[Any] = []
    count = wide_elements(lambda: results.append(normalise(rows)))
    result = results[0]
    if not isinstance(result, torch.Tensor) or result.shape != rows.shape:
        return None, f"the result is not a tensor of shape ({ROWS}, {COLUMNS})"
    if result.dtype != torch.float16:
        return None, f"the result is {str(result.dtype).removeprefix('torch.')}; {PROMOTION_HINT}"
    if not torch.equal(original, rows):
        return None, "it modifies its input in place"
    if not bool(torch.isfinite(result).all()):
        return None, "the result contains inf or nan"
    expected = original.double() / original.double().square().mean(dim=1, keepdim=True).sqrt()
    error = ((result.double() - expected).abs().amax(dim=1) / expected.abs().amax(dim=1)).max()
    if float(error) > TOLERANCE_FRAC:
        return None, f"the error of a row is more than {percent(TOLERANCE_FRAC)} of its largest value"
    return (
        count,
        f"correct, but a full float32 copy was made on the way; {PROMOTION_HINT}" if count >= rows.numel() else "",
    )


def format_tensor(value: torch.Tensor) -> str:
    """Format the numbers of a small tensor with five digits."""
    return ", ".join(f"{each:.5g}" for each in value.flatten().tolist())
