"""Features that the virtual GPU does not support: each raises an error with a fix, or is ignored with an assumption."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.torch_api.distributed import REASON, forward_on_one_gpu
from gpulab.virtual.device.torch_api.patches import patch_attributes


def unsupported_feature(feature: str, why: str, fix: str) -> Callable[..., Any]:
    """Return a function that raises CaptureError for an unsupported feature."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CaptureError(f"{feature} is not supported on the virtual GPU.", why=why, fix=fix)

    return refuse


def install(stack: ExitStack, assumptions: Assumptions) -> None:
    """Patch the unsupported features until the stack is closed; torch.compile returns the model unchanged."""
    import torch

    patch_attributes(stack, torch.nn.parallel.DataParallel, forward=forward_on_one_gpu)
    patch_attributes(stack, torch, compile=_compile(assumptions))
    patch_attributes(stack, torch.nn.Module, compile=_compile_module(assumptions))
    _refuse_fsdp(stack)
    _refuse_graphs(stack)
    _refuse_history(stack)
    _refuse_sensors(stack)


def _refuse_fsdp(stack: ExitStack) -> None:
    import torch

    if not torch.distributed.is_available():
        return
    from torch.distributed import fsdp

    fix = "run the unwrapped model on one virtual GPU; FSDP would shard the memory that it shows"
    patch_attributes(stack, fsdp.FullyShardedDataParallel, __init__=unsupported_feature("FSDP", REASON, fix))
    if hasattr(fsdp, "fully_shard"):
        patch_attributes(stack, fsdp, fully_shard=unsupported_feature("fully_shard", REASON, fix))


def _refuse_graphs(stack: ExitStack) -> None:
    import torch

    graphs = unsupported_feature(
        "A CUDA graph",
        "capturing one needs a real GPU",
        "run the same code without the graph; gpulab's what-if 'cuda_graphs' estimates the speed-up",
    )
    # The classes stay what they are: programs use them in annotations and with isinstance.
    patch_attributes(stack, torch.cuda.CUDAGraph, __new__=graphs)
    patch_attributes(stack, torch.cuda.graph, __init__=graphs)
    patch_attributes(stack, torch.cuda, make_graphed_callables=graphs)


def _refuse_sensors(stack: ExitStack) -> None:
    import torch

    fix = "leave it out; the report estimates GPU utilisation"
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used"):
        if hasattr(torch.cuda, name):
            sensor = unsupported_feature(f"torch.cuda.{name}", "there is no GPU with sensors to read", fix)
            patch_attributes(stack, torch.cuda, **{name: sensor})


def _refuse_history(stack: ExitStack) -> None:
    import torch

    history = unsupported_feature(
        "CUDA's memory history",
        "PyTorch's CUDA allocator writes it, and it is not used here",
        "leave it out; the run records every allocation, and gpulab's report shows them",
    )
    names = ("_record_memory_history", "_snapshot", "_dump_snapshot")
    patch_attributes(stack, torch.cuda.memory, **{name: history for name in names if hasattr(torch.cuda.memory, name)})


def _compile(assumptions: Assumptions) -> Callable[..., Any]:
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda model: compile(model, **options)
        assumptions.add("how torch.compile changes a model", "not at all: the model runs uncompiled")
        return model

    return compile


def _compile_module(assumptions: Assumptions) -> Callable[..., None]:
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        assumptions.add("how torch.compile changes a model", "not at all: the model runs uncompiled")

    return compile
