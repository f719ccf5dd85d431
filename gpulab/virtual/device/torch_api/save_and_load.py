"""torch.save and torch.load: what is on the virtual GPU has nothing to write, what is read is read for real."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.device.recorder import Recorder
from gpulab.virtual.device.tensors import tensor_info
from gpulab.virtual.device.torch_api.patches import swap
from gpulab.virtual.op_log.ops import Way

_DEEPEST = 20


def install(stack: ExitStack, assumptions: Assumptions, recorder: Recorder) -> None:
    """Until the stack is closed."""
    import torch

    swap(stack, torch, save=_save(assumptions, recorder), load=_load())


def _save(assumptions: Assumptions, recorder: Recorder) -> Callable[..., None]:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    plain = torch.save

    def save(obj: Any, f: Any, *args: Any, **kwargs: Any) -> None:
        found = on_gpu(obj)
        if not found:
            with _disable_current_modes():
                plain(obj, f, *args, **kwargs)
            return
        recorder.entered()
        for tensor in found:
            recorder.copy("aten::copy_", Way.TO_HOST, tensor.numel() * tensor.element_size())
        recorder.left()
        assumptions.take("files that torch.save would write of tensors on the GPU", "none: nothing is written")
        warnings.warn(
            "torch.save wrote nothing: tensors on the virtual GPU have no numbers. "
            "Their copies to the host are counted.",
            stacklevel=2,
        )

    return save


def _load() -> Callable[..., Any]:
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    plain = torch.load

    def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        to_gpu: set[int] = set()
        wanted = str(map_location) if isinstance(map_location, str | torch.device) else None

        def placed(storage: Any, location: str) -> Any:
            target = location if wanted is None else wanted
            if isinstance(map_location, dict):
                target = str(map_location.get(location, location))
            if target.startswith("cuda"):
                to_gpu.add(storage._cdata)
            return storage

        with _disable_current_modes():
            found = plain(f, placed, *args, **kwargs)
        return _moved(found, to_gpu, 0) if to_gpu else found

    return load


def _moved(value: Any, to_gpu: set[int], depth: int) -> Any:
    """The same, with tensors that belong on the GPU there."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.cuda() if value.untyped_storage()._cdata in to_gpu else value
    if isinstance(value, torch.nn.Module):
        return value.cuda()
    if depth > _DEEPEST:
        return value
    if isinstance(value, dict):
        for key in value:
            value[key] = _moved(value[key], to_gpu, depth + 1)
    elif type(value) in (list, tuple):
        return type(value)(_moved(each, to_gpu, depth + 1) for each in value)
    return value


def on_gpu(value: Any, depth: int = 0) -> list[Any]:
    """The tensors on the GPU in what is to be stored, each once."""
    import torch

    if tensor_info.on_gpu(value):
        return [value]
    if isinstance(value, torch.nn.Module):
        return on_gpu(list(value.state_dict().values()), depth)
    if depth > _DEEPEST or isinstance(value, str | bytes | torch.Tensor):
        return []
    if isinstance(value, dict):
        value = list(value.values())
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        value = list(vars(value).values())
    if not isinstance(value, list | tuple | set):
        return []
    found: dict[int, Any] = {}
    for each in value:
        found.update({id(one): one for one in on_gpu(each, depth + 1)})
    return list(found.values())
