"""What notebook 08 counts: activations kept for backward, operators dispatched, wide numbers made, work by layer.

Nothing here reads a clock. Layers are read from a run, and are as good as the run: measured, or worked out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab.analysis.kernels.roofline import sized
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.errors import RunError
from gpulab.hardware.lookup import spec_of
from gpulab.lessons.labs.host.operators import Called, counts, saved, watching
from gpulab.lessons.labs.steps.throughput import step_ms
from gpulab.run import Run

if TYPE_CHECKING:
    import torch

# What the layers of the network of notebook 08 are called, by the operators that compute them.
LAYERS: Mapping[str, str] = {
    "linear, forward": r"aten::addmm",
    "linear, backward": r"aten::mm",
    "batch normalisation": r"aten::\w*batch_norm(?:_legit|_with_update)?",
    "ReLU": r"aten::(?:relu|clamp_min)_?",
    "pooling": r"aten::max_pool2d_with_indices",
    "optimizer": r"aten::_fused_adamw_",
}
PRODUCTS = ("linear, forward", "linear, backward")
PASSES = ("batch normalisation", "ReLU", "pooling")


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What a forward pass keeps for the backward pass."""

    activation_bytes: int  # of tensors with one row for each sample
    weight_bytes: int  # of others that are no parameter themselves: copies of weights in a narrow type


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One call of a layer's operator, its largest."""

    ms: float
    bytes: float  # that must move at least, by the sizes of its tensors


def kept(model: torch.nn.Module, inputs: torch.Tensor, dtype: torch.dtype | None = None) -> Kept:
    """Run a model forward, under autocast where `dtype` is given, and count what it keeps; each memory once."""
    import torch

    kind = inputs.device.type
    sizes = {True: 0, False: 0}
    with torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        for tensor in saved(lambda: model(inputs), model):
            sizes[tensor.dim() > 0 and tensor.shape[0] == inputs.shape[0]] += tensor.untyped_storage().nbytes()
    return Kept(activation_bytes=sizes[True], weight_bytes=sizes[False])


def dispatched(step: Callable[[], object]) -> dict[str, int]:
    """The operators that a step dispatches, and how often each."""
    return dict(counts(step))


def wide_elements(compute: Callable[[], object]) -> int:
    """How many numbers of 32 bits and more a computation writes."""
    import torch

    written = 0

    def count(called: Called) -> None:
        nonlocal written
        for each in called.result if isinstance(called.result, list | tuple) else (called.result,):
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.element_size() >= 4:
                written += each.numel()

    with watching(count):
        compute()
    return written


# Read from a run.


def half_peak_frac(run: Run, operations: float) -> float:
    """The share of its GPU's peak in half precision that a step of so many operations reaches.

    Raises RunError for a run without steps, or on a GPU whose peaks are not known.
    """
    spec = spec_of(run.machine.gpus[0]) if run.machine.gpus else None
    if spec is None:
        raise RunError(
            f"The peaks of the GPU of run {run.name} are not known.",
            why=f"it ran on {run.source.device}",
            fix="gpulab.hardware.gpus lists the GPUs that are",
        )
    return operations / (step_ms(run) / 1e3) / spec.half_flops_per_s


def layers(run: Run) -> dict[str, Layer]:
    """One call of each of LAYERS, as far as a run tells: of the sizes that take most of its time."""
    found = steps(run)
    accounts = ledger(run, found)
    if accounts is None:
        return {}
    told: dict[str, Layer] = {}
    for work in sized(run, found, accounts):  # most time first
        for name, pattern in LAYERS.items():
            if name not in told and work.bytes is not None and re.fullmatch(pattern, work.op):
                told[name] = Layer(ms=work.total_ns / work.count / 1e6, bytes=work.bytes)
    return told
