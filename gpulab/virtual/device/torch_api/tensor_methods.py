"""Methods of tensors that name devices or read numbers, as they are on a machine with a GPU."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Any

from gpulab.errors import CaptureError
from gpulab.virtual.device.tensors.error_messages import forked, no_such_device
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type, gpu
from gpulab.virtual.device.tensors.pinned import Pinned
from gpulab.virtual.device.tensors.storages import Storages
from gpulab.virtual.device.torch_api.patches import swap

_HOME = [0]  # the process of the virtual GPU; processes forked from it have none


def at_home() -> None:
    """This process has the GPU."""
    _HOME[0] = os.getpid()


def full_device(device: Any) -> Any:
    """The device with its index, where it is the GPU: C++ would ask CUDA for the index."""
    import torch

    if isinstance(device, bool) or not isinstance(device, str | int | torch.device):
        return device
    found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    if found.type != "cuda":
        return found
    if found.index not in (None, 0):
        raise no_such_device()
    if os.getpid() != _HOME[0]:
        raise forked()
    return gpu()


def install(stack: ExitStack, storages: Storages, pinned: Pinned) -> None:
    """Until the stack is closed."""
    import torch

    at_home()
    swap(stack, torch.Tensor, **_everywhere(pinned))
    swap(stack, fake_tensor_type(), **_on_gpu(storages))
    parse = torch._C._nn._parse_to

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = full_device(kwargs["device"])
        return parse(*[full_device(each) for each in args], **kwargs)

    swap(stack, torch._C._nn, _parse_to=parse_to)


def _everywhere(pinned: Pinned) -> dict[str, Any]:
    """Methods of all tensors."""
    import torch

    plain_to, fake_type = torch.Tensor.to, fake_tensor_type()

    def to(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], torch.Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        elif isinstance(kwargs.get("other"), torch.Tensor):
            other = kwargs.pop("other")
            kwargs |= {"device": other.device, "dtype": other.dtype}
        args = tuple(full_device(each) if isinstance(each, str | int | torch.device) else each for each in args)
        if "device" in kwargs:
            kwargs["device"] = full_device(kwargs["device"])
        if isinstance(self, fake_type):  # for C++ it is not on cuda:0 already
            if args and args[0] == gpu():
                given = args[1] if len(args) > 1 else None
                after = args[2:] if given is None or isinstance(given, torch.dtype) else args[1:]
                args = (given if isinstance(given, torch.dtype) else self.dtype, *after)
            if kwargs.get("device") == gpu():
                kwargs = {name: each for name, each in kwargs.items() if name != "device"}
                kwargs.setdefault("dtype", self.dtype)
        return plain_to(self, *args, **kwargs)

    def cuda(self: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Any:
        where = gpu() if device is None else full_device(device)
        given = {} if memory_format is None else {"memory_format": memory_format}
        return self.to(where, non_blocking=non_blocking, **given)

    def pin_memory(self: Any, device: Any = None) -> Any:
        if isinstance(self, fake_type):
            raise RuntimeError(f"cannot pin '{self.type()}' only dense CPU tensors can be pinned")
        if pinned.has(self):
            return self
        made = self.clone(memory_format=torch.preserve_format) if self.numel() else self.detach()
        pinned.add(made)
        return made

    def is_pinned(self: Any, device: Any = None) -> bool:
        return not isinstance(self, fake_type) and pinned.has(self)

    return {"to": to, "cuda": cuda, "pin_memory": pin_memory, "is_pinned": is_pinned}


def _on_gpu(storages: Storages) -> dict[str, Any]:
    """Methods of tensors on the GPU."""
    import torch

    def new_tensor(self: Any, data: Any, **kwargs: Any) -> Any:
        return torch.tensor(data, **{"dtype": self.dtype, "device": gpu(), **kwargs})

    def numpy(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        raise TypeError(
            f"can't convert {self.device} device type tensor to numpy. "
            "Use Tensor.cpu() to copy the tensor to host memory first."
        )

    def described(self: Any, **kwargs: Any) -> str:
        return _described(self)

    def formatted(self: Any, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def typed(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = str(self.dtype)[6:]
        if dtype is None:
            return f"torch.cuda.{_TYPES.get(name, name.capitalize())}Tensor"
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
        "type": typed,
        "__repr__": described,
        "__format__": formatted,
        "__deepcopy__": _deepcopy,
        "__reduce_ex__": _refuse_pickling,
        "__dlpack__": _refuse_sharing,
        "__cuda_array_interface__": property(_refuse_sharing),
    }


_TYPES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long",
          "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool"}  # fmt: skip


def _dtype(name: str) -> Any:
    import torch

    bare = name.rpartition(".")[2].removesuffix("Tensor")
    return getattr(torch, next((each for each, told in _TYPES.items() if told == bare), "float32"))


def _described(tensor: Any) -> str:
    """As PyTorch prints a tensor; of more than one number only the sizes, for there are none."""
    import torch

    with torch._C.DisableTorchFunction():
        grad = ""
        if tensor.grad_fn is not None:
            grad = f", grad_fn=<{type(tensor.grad_fn).__name__}>"
        elif tensor.requires_grad:
            grad = ", requires_grad=True"
        dtype = "" if tensor.dtype in (torch.float32, torch.int64, torch.bool) else f", dtype={tensor.dtype}"
        if tensor.numel() == 1 and not tensor.is_complex():
            told = str(tensor.detach().cpu()).removeprefix("tensor(").partition(")")[0].partition(", dtype")[0]
            return f"tensor({told}, device='{tensor.device}'{dtype}{grad})"
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
        made = self.detach().clone()
    if isinstance(self, torch.nn.Parameter):
        made = torch.nn.Parameter(made, requires_grad=self.requires_grad)
    else:
        made.requires_grad_(self.requires_grad)
    if self.grad is not None:
        made.grad = copy.deepcopy(self.grad, memo)
    memo[id(self)] = made
    return made


def _refuse_pickling(self: Any, protocol: Any) -> Any:
    raise CaptureError(
        "A tensor on the virtual GPU cannot be pickled.",
        why="it has sizes but no numbers",
        fix="send or store CPU tensors; torch.save of a state_dict is imitated and writes nothing",
    )


def _refuse_sharing(self: Any, *args: Any, **kwargs: Any) -> Any:
    raise CaptureError(
        "A tensor on the virtual GPU cannot be handed to another library.",
        why="it has sizes but no numbers, and no memory behind it",
        fix="leave this part out of the virtual run, or give the library a CPU tensor",
    )
