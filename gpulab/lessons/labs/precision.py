"""What notebook 08 counts: activations kept for backward, operators dispatched, wide numbers made, work by layer.

Nothing here reads a clock. Layers are read from a run, and are as good as the run: measured, or worked out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulab.analysis.interior import interior
from gpulab.analysis.ledger import ledger
from gpulab.analysis.peaks import peaks_of
from gpulab.analysis.roofline import sized
from gpulab.analysis.steps import steps
from gpulab.errors import RunError
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

    seen = {each.untyped_storage().data_ptr() for each in model.parameters()}
    held: list[torch.Tensor] = []  # an address may not be used again before all are counted
    sizes = {True: 0, False: 0}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        memory = tensor.untyped_storage()
        if memory.data_ptr() not in seen:
            seen.add(memory.data_ptr())
            held.append(tensor)
            sizes[tensor.dim() > 0 and tensor.shape[0] == inputs.shape[0]] += memory.nbytes()
        return tensor

    kind = inputs.device.type
    narrow = torch.autocast(kind, dtype=dtype or torch.bfloat16, enabled=dtype is not None)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), narrow:
        model(inputs)
    return Kept(activation_bytes=sizes[True], weight_bytes=sizes[False])


def dispatched(step: Callable[[], object]) -> dict[str, int]:
    """The operators that a step dispatches, and how often each."""
    counts: dict[str, int] = {}

    def count(name: str, result: object) -> None:
        counts[name] = counts.get(name, 0) + 1

    _watched(step, count)
    return counts


def wide_elements(compute: Callable[[], object]) -> int:
    """How many numbers of 32 bits and more a computation writes."""
    import torch

    written = 0

    def count(name: str, result: object) -> None:
        nonlocal written
        for each in result if isinstance(result, list | tuple) else (result,):
            if isinstance(each, torch.Tensor) and each.is_floating_point() and each.element_size() >= 4:
                written += each.numel()

    _watched(compute, count)
    return written


def _watched(body: Callable[[], object], told: Callable[[str, object], None]) -> None:
    """Run a function, telling of each operator that is dispatched in it by name and result."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            told(str(func.overloadpacket), result)
            return result

    with Watch():
        body()


# Read from a run.


def step_ms(run: Run) -> float:
    """A typical step. Raises RunError for a run without one."""
    found = steps(run).step_ns
    if found is None:
        raise RunError(f"Run {run.name} has no step.", why="none was seen to its end", fix="record more steps")
    return found / 1e6


def half_peak_frac(run: Run, operations: float) -> float:
    """The share of its GPU's peak in half precision that a step of so many operations reaches.

    Raises RunError for a run without steps, or on a GPU whose peaks are not known.
    """
    peaks = peaks_of(run.machine.gpus[0]) if run.machine.gpus else None
    if peaks is None:
        raise RunError(
            f"The peaks of the GPU of run {run.name} are not known.",
            why=f"it ran on {run.source.device}",
            fix="gpulab.analysis.peaks lists the GPUs that are",
        )
    return operations / (step_ms(run) / 1e3) / peaks.half


def kernels_per_step(run: Run) -> float:
    """Pieces of work that the device does in a typical step. Raises RunError for a run without any."""
    found = steps(run)
    accounts = ledger(run, found)
    kernels = None if accounts is None else interior(run, found, accounts)
    if kernels is None:
        raise RunError(
            f"Run {run.name} has no kernels.",
            why="nothing that a GPU did was recorded in it",
            fix='record it with `with L.gpu("name"):`',
        )
    return len(kernels) / kernels.many


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
