"""What of torch's insides must give way for fake tensors to stand on cuda:0 without CUDA."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.operators.autocast import Autocast
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type, gpu
from gpulab.virtual.device.torch_api.patches import extend, swap

_KEPT: dict[Any, Any] = {}  # PyTorch's cache of shapes, ours from one virtual GPU to the next


def install(stack: ExitStack, autocast: Autocast) -> None:
    """Until the stack is closed."""
    import torch
    import torch.utils.flop_counter  # complains where it meets CUDA without Triton: to be there before
    from torch._subclasses import fake_tensor
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    make = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        keys = kwargs.get("device_for_backend_keys")
        if keys is not None and torch.device(keys).type == "cuda":
            kwargs["dispatch_device"] = False  # C++ then sees meta, which needs no CUDA
        return make(cls, data, *args, **kwargs)

    swap(stack, torch.Tensor, _make_subclass=staticmethod(make_subclass))
    counted = {"cache_hits": 0, "cache_misses": 0, "cache_bypasses": defaultdict(int)}
    swap(stack, fake_tensor.FakeTensorMode, cache=_KEPT, **counted)
    swap(stack, fake_tensor.log, disabled=True)  # it would print pages for a program's own mistake
    # The second is its name before torch 2.6.
    swap(stack, fake_tensor, init_gpu_context=lambda device: None, init_cuda_context=lambda: None)
    for listed in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        extend(stack, listed, fake_tensor_type())
    group = torch._C._group_tensors_by_device_and_dtype

    def grouped(*args: Any, **kwargs: Any) -> Any:
        found = group(*args, **kwargs)
        return {(gpu() if device.type == "meta" else device, dtype): each for (device, dtype), each in found.items()}

    swap(stack, torch._C, _group_tensors_by_device_and_dtype=grouped)
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        autocast.clear()
        clear()

    swap(stack, torch, clear_autocast_cache=clear_autocast_cache)
    swap(stack, torch, Generator=_generator_type())


def whole(kernels: Mapping[str, Callable[..., Any]]) -> dict[Any, Any]:
    """Operators that PyTorch takes apart, kept in one piece where they reach us so, as in inference mode."""
    import torch

    made = {}
    for name, kernel in kernels.items():
        packet, _, overload = name.partition(".")
        made[getattr(getattr(torch.ops.aten, packet), overload or "default")] = _again(kernel)
    return made


def _again(kernel: Any) -> Any:
    def special(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        mode._inner.depth = 0
        with mode:
            return kernel(*args, **kwargs)

    return special


def _generator_type() -> Any:
    """torch.Generator, also for cuda."""
    import torch

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch._C.Generator)

    class OnGpu(torch._C.Generator):
        device = property(lambda self: gpu())

    class Generator(metaclass=Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            return OnGpu() if torch.device(device).type == "cuda" else torch._C.Generator(device=device)

    return Generator
