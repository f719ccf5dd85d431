"""Time parts of the watched step again after the recorded code has ended: in other formats, and joined."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.capture.hooks.models.module_watch import ModuleWatch
from gpulab.capture.protection.guard import Guard
from gpulab.capture.timing.dropout_timing import time_dropout
from gpulab.capture.timing.joined_layers import timed_modules
from gpulab.capture.timing.layer_timing import time_layers
from gpulab.capture.timing.product_timing import timed_operands
from gpulab.run import DropoutTimes, LayerTimes, SeparateModules, SparseOperand

_LAYERS_NS, _MAX_LAYERS_NS = 1_000_000_000, 5_000_000_000


@dataclass(frozen=True, kw_only=True)
class TimedParts:
    """What was timed, as fields of a Run."""

    layer_times: LayerTimes | None = None
    dropout_times: DropoutTimes | None = None
    sparse_operands: tuple[SparseOperand, ...] = ()
    separate_modules: tuple[SeparateModules, ...] = ()


def time_step(modules: ModuleWatch, recorded_ns: int, has_bfloat16: bool, guard: Guard) -> TimedParts:
    """Time dropout, sparse products, modules that can be joined, and layers if the CPU has bfloat16 instructions."""
    budget_ns = min(max(_LAYERS_NS, recorded_ns // 50), _MAX_LAYERS_NS)
    layers, operands, separate = None, tuple[SparseOperand, ...](), tuple[SeparateModules, ...]()
    if modules.layers and has_bfloat16:
        layers = guard.call("layer times", time_layers, None, modules.layers, budget_ns)
    dropout = guard.call("dropout times", time_dropout, None, modules.dropouts, budget_ns) if modules.dropouts else None
    if modules.products:
        operands = guard.call("sparse products", timed_operands, (), modules.products, budget_ns)
    if modules.separate:
        separate = guard.call("joined modules", timed_modules, (), modules.separate, budget_ns)
    return TimedParts(layer_times=layers, dropout_times=dropout, sparse_operands=operands, separate_modules=separate)
