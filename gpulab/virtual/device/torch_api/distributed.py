"""torch.distributed with one rank: collectives on the virtual GPU give back what the rank itself contributes.

More ranks are refused: communication between GPUs is not simulated. The process group uses gloo, which serves tensors
on the CPU; collectives on GPU tensors are copies on the GPU or nothing, as with NCCL and one rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.torch_api.patches import patch_attributes

REASON = "there is one virtual GPU, and communication between GPUs is not simulated"
NCCL_VERSION = (2, 27, 3)
_OF_OBJECTS = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
               "send_object_list", "recv_object_list")  # fmt: skip
_IN_PLACE = ("allreduce_", "allreduce_coalesced_", "broadcast_", "reduce_", "barrier")
_FROM_INPUT = ("_allgather_base_", "_reduce_scatter_base_", "allgather_", "allgather_coalesced_", "gather_", "scatter_",
               "allgather_into_tensor_coalesced_", "alltoall_", "alltoall_base_", "reduce_scatter_",
               "reduce_scatter_tensor_coalesced_")  # fmt: skip


def install(stack: ExitStack, assumptions: Assumptions) -> None:
    """Patch torch.distributed until the stack is closed."""
    import torch

    ddp: Any = torch.nn.parallel.DistributedDataParallel
    patch_attributes(
        stack, ddp, __init__=_ddp_init(assumptions), forward=forward_on_one_gpu, _get_ddp_logging_data=lambda self: {},
        register_comm_hook=lambda self, state, hook: None, _set_static_graph=lambda self: None,
    )  # fmt: skip
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    functions: dict[str, Callable[..., Any]] = {
        "init_process_group": _init_process_group(distributed_c10d.init_process_group),
        "new_group": _new_group(distributed_c10d.new_group),
        "get_backend": _get_backend(distributed_c10d.get_backend),
        "is_nccl_available": lambda: True,
    }
    names = [name for name in _OF_OBJECTS if hasattr(distributed_c10d, name)]
    functions |= {name: _on_plain_torch(getattr(distributed_c10d, name)) for name in names}
    for module in (torch.distributed, distributed_c10d):
        patch_attributes(stack, module, **functions)
    patch_attributes(stack, torch.cuda.nccl, version=lambda: NCCL_VERSION)


def overrides() -> dict[Any, Any]:
    """Return the implementations of collectives on GPU tensors, by operator."""
    import torch

    if not torch.distributed.is_available() or not hasattr(torch._C._distributed_c10d, "FakeWork"):
        return {}
    operators = torch.ops.c10d
    implementations = dict.fromkeys(_IN_PLACE, _in_place) | dict.fromkeys(_FROM_INPUT, _from_input)
    return {
        getattr(operators, name).default: each for name, each in implementations.items() if hasattr(operators, name)
    }


def _in_place(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    return _result(func, args)


def _from_input(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
    targets, sources = _flat(args[0]), _flat(args[1])
    if hasattr(mode, "_inner"):
        mode._inner.depth = 0
    with mode:
        for target, source in zip(targets, sources, strict=True):
            target.copy_(source.reshape(target.shape))
    return _result(func, args)


def _result(func: Any, args: Any) -> Any:
    """Return the result of a collective; raises CaptureError if the group has more ranks."""
    import torch

    group = next(each for each in args if isinstance(each, torch.ScriptObject))
    size = torch.distributed.ProcessGroup.unbox(group).size() if hasattr(torch.distributed.ProcessGroup, "unbox") else 1
    if size > 1:
        raise more_ranks()
    work = torch._C._distributed_c10d.FakeWork().boxed()
    return (args[0], work) if len(func._schema.returns) == 2 else work


def _flat(value: Any) -> list[Any]:
    return [tensor for each in value for tensor in _flat(each)] if isinstance(value, list | tuple) else [value]


def more_ranks() -> CaptureError:
    """Return the error for a process group of several ranks with NCCL."""
    return CaptureError(
        "torch.distributed with NCCL and several ranks is not supported on the virtual GPU.",
        why=REASON,
        fix="use one rank (WORLD_SIZE=1), or backend='gloo' to coordinate CPU processes",
    )


def _on_plain_torch(original: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a collective of Python objects: these travel as bytes in CPU tensors, which must be real."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def collective(*args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            return original(*args, **kwargs)

    return collective


def _is_nccl(backend: Any) -> bool:
    return backend is None or "nccl" in str(backend) or "cuda" in str(backend)


def _init_process_group(original: Callable[..., None]) -> Callable[..., None]:
    def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> None:
        if not _is_nccl(backend):
            return original(backend, init_method, *args, **kwargs)
        ranks = kwargs.get("world_size", args[1] if len(args) > 1 else -1)
        if (ranks if ranks is not None and ranks > 0 else int(os.environ.get("WORLD_SIZE", "1"))) != 1:
            raise more_ranks()
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        original("gloo", init_method, *args, **kwargs)
        _nccl_groups().add(_default_group())
        return None

    return init_process_group


def _new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    def new_group(ranks: Any = None, timeout: Any = None, backend: Any = None, *args: Any, **kwargs: Any) -> Any:
        nccl = _default_group() in _nccl_groups() if backend is None else _is_nccl(backend)
        if not nccl:
            return original(ranks, timeout, backend, *args, **kwargs)
        kwargs.pop("device_id", None)
        kwargs.pop("pg_options", None)
        group = original(ranks, timeout, "gloo", **kwargs)
        _nccl_groups().add(group)
        return group

    return new_group


def _get_backend(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_backend(group: Any = None) -> Any:
        backend = original(group)
        return "nccl" if (group or _default_group()) in _nccl_groups() else backend

    return get_backend


def _default_group() -> Any:
    import torch

    return torch.distributed.group.WORLD


def _nccl_groups() -> set[Any]:
    """Return the groups that stand for NCCL; they live as long as torch.distributed keeps them."""
    _NCCL_GROUPS.intersection_update(_all_groups())
    return _NCCL_GROUPS


_NCCL_GROUPS: set[Any] = set()


def _all_groups() -> list[Any]:
    from torch.distributed import distributed_c10d

    return list(distributed_c10d._world.pg_map)


class _Reducer:
    """The part of DistributedDataParallel that sums gradients over ranks: nothing with one rank."""

    def prepare_for_backward(self, outputs: list[Any]) -> None:
        """Do nothing: all gradients are those of this rank."""

    def _rebuild_buckets(self) -> bool:
        return False


def _ddp_init(assumptions: Assumptions) -> Callable[..., None]:
    import torch

    def init(self: Any, module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        if not torch.distributed.is_available() or not torch.distributed.is_initialized():
            raise ValueError("Default process group has not been initialized, please make sure to call "
                             "init_process_group.")  # fmt: skip
        group = kwargs.get("process_group") or _default_group()
        if group.size() > 1:
            raise CaptureError(
                "DistributedDataParallel with several ranks is not supported on the virtual GPU.",
                why=REASON,
                fix="run the unwrapped model; this gives its step on one GPU, without communication",
            )
        torch.nn.Module.__init__(self)
        self.module, self.process_group, self.device_ids = module, group, device_ids
        self.device, self.dim = next(module.parameters()).device, kwargs.get("dim", 0)
        self.require_backward_grad_sync = self.require_forward_param_sync = True
        self.find_unused_parameters, self.static_graph = kwargs.get("find_unused_parameters", False), False
        self._use_replicated_tensor_module = False
        self.reducer, self.logger = _Reducer(), None
        assumptions.add("what DistributedDataParallel adds on one rank", "nothing: gradients are not put into buckets")

    return init


def forward_on_one_gpu(self: Any, *inputs: Any, **kwargs: Any) -> Any:
    """Forward of a parallel wrapper: move the inputs to the GPU and call the module."""
    import torch
    from torch.utils._pytree import tree_map_only

    inputs, kwargs = tree_map_only(torch.Tensor, lambda tensor: tensor.cuda(), (inputs, kwargs))
    return self.module(*inputs, **kwargs)
