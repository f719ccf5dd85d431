"""Counters for notebook 08: activations saved for backward, dispatched operators, float32 elements, time by layer.

Nothing here reads a clock. Layer times come from a run, and are measured or estimated like the run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpulab.analysis.kernels.roofline import operator_work_of_run
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError
from gpulab.hardware.lookup import spec_of
from gpulab.lessons.labs.host.operators import OperatorCall, count_operators, observe_operators, saved_tensors
from gpulab.lessons.labs.steps.throughput import step_ms
from gpulab.run import Run

if TYPE_CHECKING:
    import torch

# Layers of the network in notebook 08, and the operators that compute them.
LAYER_PATTERNS: Mapping[str, str] = {
    "linear, forward": r"aten::addmm",
    "linear, backward": r"aten::mm",
    "batch normalisation": r"aten::\w*batch_norm(?:_legit|_with_update)?",
    "ReLU": r"aten::(?:relu|clamp_min)_?",
    "pooling": r"aten::max_pool2d_with_indices",
    "optimizer": r"aten::_fused_adamw_",
}
MATMUL_LAYERS = ("linear, forward", "linear, backward")
ELEMENTWISE_LAYERS = ("batch normalisation", "ReLU", "pooling")


@dataclass(frozen=True, kw_only=True)
class SavedBytes:
    """Bytes that a forward pass saves for the backward pass."""

    activation_bytes: int  # tensors with one row per sample
    weight_bytes: int  # other tensors that are not parameters: 16-bit copies of weights


@dataclass(frozen=True, kw_only=True)
class LayerCall:
    """One call of a layer's operator: the one with the largest total time."""

    ms: float
    bytes: float  # minimum memory traffic, from the sizes of its tensors


def count_saved_bytes(model: torch.nn.Module, inputs: torch.Tensor, dtype: torch.dtype | None = None) -> SavedBytes:
    """Run a forward pass, under autocast if `dtype` is given, and count the bytes saved for backward, by storage."""
    import torch

    device_type = inputs.device.type
    saved_bytes = {True: 0, False: 0}
    with torch.autocast(device_type, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        for tensor in saved_tensors(lambda: model(inputs), model):
            saved_bytes[tensor.dim() > 0 and tensor.shape[0] == inputs.shape[0]] += tensor.untyped_storage().nbytes()
    return SavedBytes(activation_bytes=saved_bytes[True], weight_bytes=saved_bytes[False])


def operator_counts(step: Callable[[], object]) -> dict[str, int]:
    """Count the operators that a step dispatches, by name."""
    return dict(count_operators(step))


def wide_elements(compute: Callable[[], object]) -> int:
    """Count the floating-point elements of 32 bits or more that a computation writes."""
    import torch

    written = 0

    def count(call: OperatorCall) -> None:
        nonlocal written
        for tensor in call.result if isinstance(call.result, list | tuple) else (call.result,):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and tensor.element_size() >= 4:
                written += tensor.numel()

    with observe_operators(count):
        compute()
    return written


# Read from a run.


def half_peak_frac(run: Run, operations: float) -> float:
    """Return the fraction of its GPU's half-precision peak that a step with `operations` FLOPs reaches.

    Raises RunError for a run without steps, or on a GPU whose peak rates are unknown.
    """
    spec = spec_of(run.machine.gpus[0]) if run.machine.gpus else None
    if spec is None:
        raise RunError(
            f"The peak rates of the GPU of run {run.name} are unknown.",
            why=f"it ran on {run.source.device}",
            fix="use a run on one of the GPUs in gpulab.hardware.gpus",
        )
    return operations / (step_ms(run) / 1e3) / spec.half_flops_per_s


def layer_calls(run: Run) -> dict[str, LayerCall]:
    """Return one call of each of LAYERS that a run contains: the one with the sizes that take the most time."""
    run_steps = find_steps(run)
    step_ledger = build_ledger(run, run_steps)
    if step_ledger is None:
        return {}
    layer_calls: dict[str, LayerCall] = {}
    for work in operator_work_of_run(run, run_steps, step_ledger):  # longest total time first
        for name, pattern in LAYER_PATTERNS.items():
            if name not in layer_calls and work.bytes is not None and re.fullmatch(pattern, work.op):
                layer_calls[name] = LayerCall(ms=work.total_ns / work.count / 1e6, bytes=work.bytes)
    return layer_calls
