"""The modules within a module and their parameters, read without any code of the user's.

`torch.nn.Module.modules()` calls methods that a class may override; here, only `__dict__` is read.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpulab.capture.hooks.batch_contents import is_tensor

if TYPE_CHECKING:
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
    """Return the initialised parameters of these modules whose data PyTorch itself holds."""
    from torch.nn.parameter import UninitializedParameter

    return [
        parameter
        for parameter in all_parameters_in(modules)
        if is_tensor(type(parameter)) and not issubclass(type(parameter), UninitializedParameter)
    ]


def all_parameters_in(modules: list[Any]) -> list[Any]:
    """Return the parameters of these modules, also those of classes of their own, such as DTensor."""
    import torch

    parameters: dict[int, Any] = {}
    for module in modules:
        own_parameters = object.__getattribute__(module, "__dict__").get("_parameters")
        if issubclass(type(own_parameters), dict):
            values = list(dict.values(own_parameters))
            parameters.update({id(value): value for value in values if issubclass(type(value), torch.Tensor)})
    return list(parameters.values())


def is_transformers_linear(kind: type) -> bool:
    """Whether this is the linear layer of GPT-2 and its relatives in Transformers, which PyTorch does not know."""
    utilities = sys.modules.get("transformers.pytorch_utils")
    return utilities is not None and kind is vars(utilities).get("Conv1D")


def first_parameter(module: Any) -> Any:
    """Return the first parameter of a module, or of a module in it; None without any."""
    pending, visited = [module], set[int]()
    while pending and len(visited) < MAX_SUBMODULES:
        inner = pending.pop()
        if id(inner) in visited:  # modules may hold each other
            continue
        visited.add(id(inner))
        parameters = object.__getattribute__(inner, "__dict__").get("_parameters")
        values = list(dict.values(parameters)) if issubclass(type(parameters), dict) else []
        if tensors := [value for value in values if is_tensor(type(value))]:
            return tensors[0]
        pending += [child for _, child in reversed(children_of("", inner))]
    return None


def draws_random_numbers(module: Any) -> bool:
    """Whether dropout is active in this module, not counting the modules in it."""
    from torch import nn
    from torch.nn.modules.dropout import _DropoutNd

    attributes = object.__getattribute__(module, "__dict__")
    rates = ((_DropoutNd, "p"), (nn.RNNBase, "dropout"), (nn.MultiheadAttention, "dropout"))
    rate = [attributes.get(name) for kind, name in rates if issubclass(type(module), kind)]
    return bool(attributes.get("training")) and any(rate)


def swaps_tensors() -> bool:
    """Whether modules swap their parameters when they are converted, which PyTorch refuses if a reference exists."""
    import torch

    return bool(torch.__future__.get_swap_module_params_on_conversion())
