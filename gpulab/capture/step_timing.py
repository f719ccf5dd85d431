"""Time parts of the watched step again after the recorded code has ended: in bfloat16, and with sparse matrices."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.capture.hooks.models.module_watch import ModuleWatch
from gpulab.capture.layer_timing import time_layers
from gpulab.capture.product_timing import timed_operands
from gpulab.capture.protection.guard import Guard
from gpulab.run import LayerTimes, SparseOperand

_LAYERS_NS, _MAX_LAYERS_NS = 1_000_000_000, 5_000_000_000


@dataclass(frozen=True, kw_only=True)
class FormatTimes:
    """What was timed."""

    layers: LayerTimes | None = None
    operands: tuple[SparseOperand, ...] = ()


def time_step(modules: ModuleWatch, recorded_ns: int, has_bfloat16: bool, guard: Guard) -> FormatTimes:
    """Time layers, if the CPU has instructions for bfloat16, and products with matrices of mostly zeros."""
    budget_ns = min(max(_LAYERS_NS, recorded_ns // 50), _MAX_LAYERS_NS)
    layers, operands = None, tuple[SparseOperand, ...]()
    if modules.layers and has_bfloat16:
        layers = guard.call("layer times", time_layers, None, modules.layers, budget_ns)
    if modules.products:
        operands = guard.call("sparse products", timed_operands, (), modules.products, budget_ns)
    return FormatTimes(layers=layers, operands=operands)
