"""Patches of torch internals that fake tensors on cuda:0 need without CUDA."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.device.operators.autocast import AutocastKernels
from gpulab.virtual.device.tensors.fake_tensors import fake_tensor_type, virtual_device
from gpulab.virtual.device.torch_api.patches import patch_attributes, patch_list

_SHAPE_CACHE: dict[Any, Any] = {}  # replaces PyTorch's cache of fake tensor shapes; shared by all virtual GPUs


def install(stack: ExitStack, autocast: AutocastKernels) -> None:
    """Patch the internals until the stack is closed."""
    import torch
    import torch.utils.flop_counter  # import now: it complains if it finds CUDA without Triton
    from torch._subclasses import fake_tensor
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    original_make_subclass = torch.Tensor._make_subclass

    def make_subclass(cls: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        keys = kwargs.get("device_for_backend_keys")
        if keys is not None and torch.device(keys).type == "cuda":
            kwargs["dispatch_device"] = False  # C++ then sees the meta device, which needs no CUDA
        return original_make_subclass(cls, data, *args, **kwargs)

    patch_attributes(stack, torch.Tensor, _make_subclass=staticmethod(make_subclass))
    counters = {"cache_hits": 0, "cache_misses": 0, "cache_bypasses": defaultdict(int)}
    patch_attributes(stack, fake_tensor.FakeTensorMode, cache=_SHAPE_CACHE, **counters)
    patch_attributes(stack, fake_tensor.log, disabled=True)  # it prints pages of output for an error of the program
    # init_cuda_context is the name before torch 2.6.
    patch_attributes(stack, fake_tensor, init_gpu_context=lambda device: None, init_cuda_context=lambda: None)
    for supported_types in (optimizer._foreach_supported_types, _foreach_utils._foreach_supported_types):
        patch_list(stack, supported_types, fake_tensor_type())
    original_group = torch._C._group_tensors_by_device_and_dtype

    def grouped(*args: Any, **kwargs: Any) -> Any:
        groups = original_group(*args, **kwargs)
        return {
            (virtual_device() if device.type == "meta" else device, dtype): each
            for (device, dtype), each in groups.items()
        }

    patch_attributes(stack, torch._C, _group_tensors_by_device_and_dtype=grouped)
    original_clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        autocast.clear()
        original_clear()

    patch_attributes(stack, torch, clear_autocast_cache=clear_autocast_cache)
    patch_attributes(stack, torch, Generator=_generator_type())


def undecomposed_overrides(kernels: Mapping[str, Callable[..., Any]]) -> dict[Any, Any]:
    """Return dispatch implementations of operators that reach the mode undecomposed, as in inference mode."""
    import torch

    implementations = {}
    for name, kernel in kernels.items():
        packet, _, overload = name.partition(".")
        implementations[getattr(getattr(torch.ops.aten, packet), overload or "default")] = _run_kernel(kernel)
    return implementations


def _run_kernel(kernel: Any) -> Any:
    def special(mode: Any, func: Any, args: Any, kwargs: Any) -> Any:
        mode._inner.depth = 0
        with mode:
            return kernel(*args, **kwargs)

    return special


def _generator_type() -> Any:
    """Return torch.Generator with support for cuda."""
    import torch

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch._C.Generator)

    class OnGpu(torch._C.Generator):
        device = property(lambda self: virtual_device())

    class Generator(metaclass=Kind):
        def __new__(cls, device: Any = "cpu") -> Any:
            return OnGpu() if torch.device(device).type == "cuda" else torch._C.Generator(device=device)

    return Generator
