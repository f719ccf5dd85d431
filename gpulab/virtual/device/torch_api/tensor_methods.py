"""Methods of tensors that name devices or read values, as on a machine with a GPU."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.device.tensors.error_messages import forked_process, invalid_device_index
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type, virtual_device
from gpulab.virtual.device.tensors.pinned import PinnedStorages
from gpulab.virtual.device.tensors.storages import StorageMemory
from gpulab.virtual.device.torch_api.patches import patch_attributes

_GPU_PROCESS = [0]  # id of the process with the virtual GPU; forked processes cannot use it


def claim_process() -> None:
    """Make this the process with the virtual GPU."""
    _GPU_PROCESS[0] = os.getpid()


def device_with_index(device: Any) -> Any:
    """Return the device; for the GPU with its index, which C++ would otherwise ask CUDA for."""
    import torch

    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        return device
    resolved = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if resolved.type != "cuda":
        return resolved
    if resolved.index not in (None, 0):
        raise invalid_device_index()
    if os.getpid() != _GPU_PROCESS[0]:
        raise forked_process()
    return virtual_device()


def install(stack: ExitStack, storages: StorageMemory, pinned: PinnedStorages) -> None:
    """Patch the methods until the stack is closed."""
    import torch

    claim_process()
    patch_attributes(stack, torch.Tensor, **_methods_of_all(pinned))
    patch_attributes(stack, fake_tensor_type(), **_methods_of_gpu_tensors(storages))
    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = device_with_index(kwargs["device"])
        return parse(*[device_with_index(each) for each in args], **kwargs)

    patch_attributes(stack, torch._C._nn, _parse_to=parse_to)


def _methods_of_all(pinned: PinnedStorages) -> dict[str, Any]:
    """Return the patched methods of all tensors."""
    import torch

    original_to, fake_type = torch.Tensor.to, fake_tensor_type()

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif isinstance(kwargs.get("other"), torch.Tensor):
            other = kwargs.pop("other")
            kwargs |= {"device": other.device, "dtype": other.dtype}
        args = tuple(device_with_index(each) if isinstance(each, str | int | torch.device) else each for each in args)
        if "device" in kwargs:
            kwargs["device"] = device_with_index(kwargs["device"])
        if isinstance(self, fake_type):  # C++ does not know that it is already on cuda:0
            if args and args[0] == virtual_device():
                dtype = args[1] if len(args) > 1 else None
                rest = args[2:] if dtype is None or isinstance(dtype, torch.dtype) else args[1:]
                args = (dtype if isinstance(dtype, torch.dtype) else self.dtype, *rest)
            if kwargs.get("device") == virtual_device():
                kwargs = {name: each for name, each in kwargs.items() if name != "device"}
                kwargs.setdefault("dtype", self.dtype)
        return original_to(self, *args, **kwargs)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        target = virtual_device() if device is None else device_with_index(device)
        options = {} if memory_format is None else {"memory_format": memory_format}
        return self.to(target, non_blocking=non_blocking, **options)

    def pin_memory(self: Any, device: Any = None) -> Any:
        if isinstance(self, fake_type):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if pinned.has(self):
            return self
        copy = self.clone(memory_format=torch.preserve_format) if self.numel() else self.detach()
        pinned.add(copy)
        return copy

    def is_pinned(self: Any, device: Any = None) -> bool:
        return not isinstance(self, fake_type) and pinned.has(self)

    return {"to": to, "cuda": cuda, "pin_memory": pin_memory, "is_pinned": is_pinned}


def _methods_of_gpu_tensors(storages: StorageMemory) -> dict[str, Any]:
    """Return the methods of GPU tensors."""
    import torch

    def new_tensor(self: Any, data: Any, **kwargs: Any) -> Any:
        return torch.tensor(data, **{"dtype": self.dtype, "device": virtual_device(), **kwargs})

    def numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def repr_(self: Any, **kwargs: Any) -> str:
        return _tensor_repr(self)

    def format_(self: Any, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def type_(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = str(self.dtype)[6:]
        if dtype is None:
            return f"torch.cuda.{_LEGACY_TYPES.get(name, name.capitalize())}Tensor"
        if isinstance(dtype, str):
            dtype = _dtype(dtype)
        return self.to(dtype)

    return {
        "is_cuda": property(lambda self: True),
        "is_cpu": property(lambda self: False),
        "is_meta": property(lambda self: False),
        "get_device": lambda self: 0,
        "data_ptr": lambda self: storages.address(self),
        "tolist": lambda self: self.detach().cpu().tolist(),
        "record_stream": lambda self, stream: None,
        "new_tensor": new_tensor,
        "numpy": numpy,
        "type": type_,
        "__repr__": repr_,
        "__format__": format_,
        "__deepcopy__": _deepcopy,
        "__reduce_ex__": _refuse_pickling,
        "__dlpack__": _refuse_sharing,
        "__cuda_array_interface__": property(_refuse_sharing),
    }


_LEGACY_TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
          "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}  # fmt: skip


def _dtype(name: str) -> Any:
    import torch

    type_name = name.rpartition(".")[2].removesuffix("Tensor")
    return getattr(
        torch, next((each for each, legacy_name in _LEGACY_TYPES.items() if legacy_name == type_name), "float32")
    )


def _tensor_repr(tensor: Any) -> str:
    """Format a tensor as PyTorch does; with more than one element only the sizes, as there are no values."""
    import torch

    with torch._C.DisableTorchFunction():
        grad = ""
        if tensor.grad_fn is not None:
            grad = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
        elif tensor.requires_grad:
            grad = ", requires_grad=True"
        dtype = "" if tensor.dtype in (torch.float32, torch.int64, torch.bool) else f", dtype={tensor.dtype}"
        if tensor.numel() == 1 and not tensor.is_complex():
            value = str(tensor.detach().cpu()).removeprefix("tensor(").partition(")")[0].partition(", dtype")[0]
            return f"tensor({value}, device='{tensor.device}'{dtype}{grad})"
        return f"tensor(..., device='{tensor.device}', size={tuple(tensor.shape)}{dtype}{grad})"


def _deepcopy(self: Any, memo: dict[int, Any]) -> Any:
    import copy

    import torch

    if not self.is_leaf:
        raise RuntimeError(
            "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
            "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
            "see https://github.com/pytorch/pytorch/pull/103001"
        )
    if id(self) in memo:
        return memo[id(self)]
    with torch.no_grad():
        copied = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, requires_grad=self.requires_grad)
    else:
        copied.requires_grad_(self.requires_grad)
    if self.grad is not None:
        copied.grad = copy.deepcopy(self.grad, memo)
    memo[id(self)] = copied
    return copied


def _refuse_pickling(self: Any, protocol: Any) -> Any:
    raise CaptureError(
        "A tensor on the virtual GPU cannot be pickled.",
        why="it has sizes but no values",
        fix="pickle a CPU tensor instead; torch.save of a state_dict works but writes nothing",
    )


def _refuse_sharing(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise CaptureError(
        "A tensor on the virtual GPU cannot be passed to another library.",
        why="it has sizes but neither values nor memory",
        fix="pass a CPU tensor to the library, or leave this part out of the virtual run",
    )
