"""What the virtual GPU does not do: each is refused by name with a way out, or left out with an assumption."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.torch_api.patches import swap


def refusal(what: str, why: str, fix: str) -> Callable[..., Any]:
    """A function that raises."""

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise CaptureError(f"{what} does not run on the virtual GPU.", why=why, fix=fix)

    return refuse


def install(stack: ExitStack, assumptions: Assumptions) -> None:
    """Until the stack is closed. torch.compile gives back what it is given."""
    import torch

    swap(stack, torch.nn.parallel.DataParallel, forward=_on_one_gpu)
    swap(stack, torch, compile=_compile(assumptions))
    swap(stack, torch.nn.Module, compile=_compile_module(assumptions))
    _refuse_many_gpus(stack)
    _refuse_graphs(stack)
    _refuse_history(stack)
    _refuse_sensors(stack)


def _refuse_many_gpus(stack: ExitStack) -> None:
    import torch

    one = "there is one virtual GPU, and nothing that GPUs would send each other is simulated"
    alone = refusal("DistributedDataParallel", one, "run the bare model: its step on one GPU, without communication")
    swap(stack, torch.nn.parallel.DistributedDataParallel, __init__=alone)
    if not torch.distributed.is_available():
        return
    group = torch.distributed.init_process_group

    def init_process_group(backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        if backend is None or "nccl" in str(backend) or "cuda" in str(backend):
            raise CaptureError(
                "torch.distributed with NCCL does not run on the virtual GPU.",
                why=one,
                fix="leave out init_process_group, or ask for backend='gloo' to coordinate CPU processes",
            )
        return group(backend, *args, **kwargs)

    swap(stack, torch.distributed, init_process_group=init_process_group)
    from torch.distributed import fsdp

    fix = "run the bare model on one virtual GPU: its memory there is the sum that FSDP would share out"
    swap(stack, fsdp.FullyShardedDataParallel, __init__=refusal("FSDP", one, fix))
    if hasattr(fsdp, "fully_shard"):
        swap(stack, fsdp, fully_shard=refusal("fully_shard", one, fix))


def _refuse_graphs(stack: ExitStack) -> None:
    import torch

    graphs = refusal(
        "A CUDA graph",
        "capturing one needs CUDA itself",
        "run the same code without the graph; gpulab's what-if 'cuda_graphs' estimates what capturing would gain",
    )
    swap(stack, torch.cuda, CUDAGraph=graphs, graph=graphs, make_graphed_callables=graphs)


def _refuse_sensors(stack: ExitStack) -> None:
    import torch

    fix = "leave it out; the report estimates how busy the GPU would be"
    for name in ("utilization", "memory_usage", "temperature", "power_draw", "clock_rate", "device_memory_used"):
        if hasattr(torch.cuda, name):
            sensor = refusal(f"torch.cuda.{name}", "there is no GPU whose sensors could be read", fix)
            swap(stack, torch.cuda, **{name: sensor})


def _refuse_history(stack: ExitStack) -> None:
    import torch

    history = refusal(
        "CUDA's memory history",
        "it is written by CUDA's own allocator",
        "leave it out: the run's memory tables tell every allocation, and gpulab's report shows them",
    )
    names = ("_record_memory_history", "_snapshot", "_dump_snapshot")
    swap(stack, torch.cuda.memory, **{name: history for name in names if hasattr(torch.cuda.memory, name)})


def _compile(assumptions: Assumptions) -> Callable[..., Any]:
    def compile(model: Any = None, **options: Any) -> Any:
        if model is None:
            return lambda model: compile(model, **options)
        assumptions.take("what torch.compile makes of a model", "the model as it is, not compiled")
        return model

    return compile


def _compile_module(assumptions: Assumptions) -> Callable[..., None]:
    def compile(self: Any, *args: Any, **kwargs: Any) -> None:
        assumptions.take("what torch.compile makes of a model", "the model as it is, not compiled")

    return compile


def _on_one_gpu(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    import torch
    from torch.utils._pytree import tree_map_only

    inputs, kwargs = tree_map_only(torch.Tensor, lambda each: each.cuda(), (inputs, kwargs))
    return self.module(*inputs, **kwargs)
