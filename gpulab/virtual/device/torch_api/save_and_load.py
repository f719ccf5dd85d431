"""torch.save and torch.load: tensors on the virtual GPU have no values to save; files are loaded for real."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.device.tensors import tensor_info
from gpulab.virtual.device.torch_api.patches import patch_attributes
from gpulab.virtual.op_log.ops import CopyDirection

_MAX_DEPTH = 20


def install(stack: ExitStack, assumptions: Assumptions, recorder: OpRecorder) -> None:
    """Patch torch.save and torch.load until the stack is closed."""
    import torch

    patch_attributes(stack, torch, save=_save(assumptions, recorder), load=_load())


def _save(assumptions: Assumptions, recorder: OpRecorder) -> Callable[..., None]:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    original = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        tensors = gpu_tensors(obj)
        if not tensors:
            with _disable_current_modes():
                original(obj, f, *args, **kwargs)
            return
        recorder.entered()
        for tensor in tensors:
            recorder.copy("aten::copy_", CopyDirection.DEVICE_TO_HOST, tensor.numel() * tensor.element_size())
        recorder.left()
        assumptions.add("files that torch.save writes of tensors on the GPU", "none: nothing is written")
        warnings.warn(
            "torch.save wrote nothing: tensors on the virtual GPU have no values. "
            "The time of their copies to the host is included.",
            stacklevel=2,
        )

    return save


def _load() -> Callable[..., Any]:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    original = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        to_gpu: set[int] = set()
        location_override = str(map_location) if isinstance(map_location, str | torch.device) else None

        def note_location(storage: Any, location: str) -> Any:
            target = location if location_override is None else location_override
            if isinstance(map_location, dict):
                target = str(map_location.get(location, location))
            if target.startswith("cuda"):
                to_gpu.add(storage._cdata)
            return storage

        with _disable_current_modes():
            value = original(f, note_location, *args, **kwargs)
        return _move_to_gpu(value, to_gpu, 0) if to_gpu else value

    return load


def _move_to_gpu(value: Any, to_gpu: set[int], depth: int) -> Any:
    """Return the value with the tensors of these storages moved to the GPU."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.cuda() if value.untyped_storage()._cdata in to_gpu else value
    if isinstance(value, torch.nn.Module):
        return value.cuda()
    if depth > _MAX_DEPTH:
        return value
    if isinstance(value, dict):
        for key in value:
            value[key] = _move_to_gpu(value[key], to_gpu, depth + 1)
    elif type(value) in (list, tuple):
        return type(value)(_move_to_gpu(each, to_gpu, depth + 1) for each in value)
    return value


def gpu_tensors(value: Any, depth: int = 0) -> list[Any]:
    """Return the GPU tensors in a value that is saved, each once."""
    import torch

    if tensor_info.is_gpu_tensor(value):
        return [value]
    if isinstance(value, torch.nn.Module):
        return gpu_tensors(list(value.state_dict().values()), depth)
    if depth > _MAX_DEPTH or isinstance(value, str | bytes | torch.Tensor):
        return []
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        value = list(vars(value).values())
    if not isinstance(value, list | tuple | set):
        return []
    tensors: dict[int, Any] = {}
    for item in value:
        tensors.update({id(tensor): tensor for tensor in gpu_tensors(item, depth + 1)})
    return list(tensors.values())
