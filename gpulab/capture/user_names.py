"""What the user calls their loader, model and optimizer, and how these were set up: read from the loop's own frames.

Nothing is kept of what is looked at, and no code of the user's is called: types are compared, attributes are not asked.
"""

from __future__ import annotations

import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import Any

from gpulab.run import Model, Optimizer
from gpulab.sensors.host.frames import users_frames

_FRAME_AND_US = 3  # references to a frame's copy of its variables: the frame's, ours, and the count's own
Found = Iterator[tuple[str, Any]]


def name_of(innermost: FrameType | None, wanted: Callable[[Any], bool]) -> str | None:
    """The variable, or the attribute of `self`, that holds what is wanted; the nearest one to the line that runs."""
    return next((name for name, value in _named(innermost) if wanted(value)), None)


def loader_names(innermost: FrameType | None, dataset: object) -> tuple[str | None, str | None]:
    """The names of the DataLoader that draws from this dataset, and of the dataset."""
    from torch.utils.data import DataLoader

    def is_loader(value: Any) -> bool:
        return issubclass(type(value), DataLoader) and value.__dict__.get("dataset") is dataset

    return name_of(innermost, is_loader), name_of(innermost, lambda value: value is dataset)


def optimizer_of(innermost: FrameType | None, optimizer: Any) -> Optimizer:
    """How an optimizer was set up, and its name."""
    groups = optimizer.param_groups
    parameters = _parameters(optimizer)
    return Optimizer(
        kind=type(optimizer).__name__,
        name=name_of(innermost, lambda value: value is optimizer),
        tensors=len(parameters),
        elements=sum(parameter.numel() for parameter in parameters),
        foreach=_agreed(group.get("foreach") for group in groups),
        fused=_agreed(group.get("fused") for group in groups),
        device=_devices(parameters),
    )


def model_of(innermost: FrameType | None, optimizer: Any) -> Model | None:
    """The model that an optimizer trains: the largest module in sight that holds its first parameter."""
    from torch import nn

    parameters = _parameters(optimizer)
    if not parameters:
        return None
    trained = {id(parameter) for parameter in parameters}
    best: tuple[int, str | None, Any] = (0, None, None)
    for called, value in _named(innermost):
        if issubclass(type(value), nn.Module):
            held = sum(id(parameter) in trained for parameter in nn.Module.parameters(value))
            best = max(best, (held, called, value), key=lambda each: each[0])
    _, name, module = best
    inner = getattr(module, "_orig_mod", module)  # torch.compile puts a module around it
    return Model(
        kind=type(inner).__name__ if module is not None else "model",
        name=name,
        tensors=len(parameters),
        bytes=sum(parameter.numel() * parameter.element_size() for parameter in parameters),
        dtypes=tuple(dtype for dtype, _ in Counter(_dtype(parameter) for parameter in parameters).most_common()),
        device=_devices(parameters),
        compiled=None if module is None else inner is not module or inner._compiled_call_impl is not None,
    )


def _named(innermost: FrameType | None) -> Found:
    """Every variable in sight of the user's frames, from the innermost outward, and what their `self` holds."""
    seen: set[int] = set()
    for frame in users_frames(innermost):
        mine = variables(frame)
        yield from ((name, value) for name, value in mine.items() if not name.startswith("_"))
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield from ((name, value) for name, value in list(frame.f_globals.items()) if not name.startswith("_"))
        yield from _attributes(mine.get("self"))


def variables(frame: FrameType) -> dict[str, Any]:
    """The variables of a frame.

    Before Python 3.13 asking a function's frame leaves a copy with it, which would keep the tensors of this step alive
    for as long as the function runs: that copy is emptied, unless the user holds it, as of a call of locals().
    """
    held = frame.f_locals
    mine = dict(held)
    copied = sys.version_info < (3, 13) and frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if copied and sys.getrefcount(held) == _FRAME_AND_US:
        held.clear()
    return mine


def _attributes(me: Any) -> Found:
    held = getattr(type(me), "__dict__", {}).get("__dict__") and object.__getattribute__(me, "__dict__")
    if isinstance(held, dict):
        modules = held.get("_modules")  # where a module keeps its submodules
        for place in (held, modules if isinstance(modules, dict) else {}):
            yield from ((f"self.{name}", value) for name, value in list(place.items()) if not name.startswith("_"))


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _agreed(values: Iterable[bool | None]) -> bool | None:
    """What all groups say; None where they say nothing, or differ."""
    told = set(values)
    return told.pop() if len(told) == 1 else None


def _devices(parameters: Iterable[Any]) -> str | None:
    return " and ".join(sorted({parameter.device.type for parameter in parameters})) or None


def _dtype(parameter: Any) -> str:
    return str(parameter.dtype).removeprefix("torch.")
