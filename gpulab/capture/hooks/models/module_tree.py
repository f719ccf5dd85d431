"""The modules within a module and their parameters, read without any code of the user's.

`torch.nn.Module.modules()` calls methods that a class may override; here, only `__dict__` is read.
"""

from __future__ import annotations

from typing import Any

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.user_variables import NamedValues

MAX_SUBMODULES = 20_000


def submodules_in(module: Any) -> list[Any]:
    """Return the module and all modules in it, in the order of their definition."""
    modules: dict[int, Any] = {}
    pending = [module]
    while pending and len(modules) < MAX_SUBMODULES:
        inner = pending.pop()
        if id(inner) not in modules:
            modules[id(inner)] = inner
            pending += [child for _, child in reversed(children_of("", inner))]
    return list(modules.values())


def children_of(name: str, module: Any) -> NamedValues:
    """Return the modules in a module, with expressions for them."""
    from torch import nn

    children = object.__getattribute__(module, "__dict__").get("_modules")
    if not issubclass(type(children), dict):
        return []
    return [
        (f"{name}[{key}]" if key.isdigit() else f"{name}.{key}", child)
        for key, child in list(dict.items(children))
        if type(key) is str and issubclass(type(child), nn.Module)
    ]


def parameters_in(modules: list[Any]) -> list[Any]:
    """Return the initialised parameters of these modules."""
    from torch.nn.parameter import UninitializedParameter

    parameters: dict[int, Any] = {}
    for module in modules:
        own_parameters = object.__getattribute__(module, "__dict__").get("_parameters")
        if not issubclass(type(own_parameters), dict):
            continue
        for value in list(dict.values(own_parameters)):
            if is_tensor(type(value)) and not issubclass(type(value), UninitializedParameter):
                parameters[id(value)] = value
    return list(parameters.values())
