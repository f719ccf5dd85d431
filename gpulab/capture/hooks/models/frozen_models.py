"""Modules that the loop uses and no optimizer trains, and whether their weights stay the same.

A target network or a moving average changes without an optimizer, so parameters are compared at the 1st, 2nd, 4th, 8th
... update: their version counters, addresses and first bytes. Only memory of the CPU can be read without an operator;
modules on another device are left out. None of the user's code is called.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from gpulab.capture.hooks.models.module_tree import (
    MAX_SUBMODULES,
    children_of,
    draws_random_numbers,
    is_transformers_linear,
    parameters_in,
    submodules_in,
    swaps_tensors,
)
from gpulab.capture.hooks.models.tensor_memory import dense_memory, read_bytes, version_of
from gpulab.capture.hooks.user_variables import NamedValues, optimizer_parameters, visible_values
from gpulab.run import FrozenModel

LINEAR, CONVOLUTION, EMBEDDING, RECURRENT = "lcer"  # the letters of layers
_MAX_MODULES = 4
_COMPARED = 4  # parameters of a module, the largest ones
_COMPARED_BYTES = 64  # of each
_MIN_UPDATES = 4  # weights that a few updates leave the same are not known to be frozen

Fingerprint = tuple[int, int, bytes]


@dataclass(frozen=True, eq=False)
class _Watched:
    """A module and some of its parameters as they were."""

    model: FrozenModel
    parameter_ids: frozenset[int]
    compared: tuple[weakref.ref[Any], ...]
    before: tuple[Fingerprint, ...]


class FrozenModels:
    """Watches modules from the first update of the first optimizer on."""

    def __init__(self) -> None:
        self._watched: list[_Watched] | None = None
        self._updates = self._compared_at = 0
        self._next = 1

    @property
    def models(self) -> tuple[FrozenModel, ...]:
        """The modules whose weights have not changed so far; () before some updates."""
        if self._watched is None or self._compared_at < _MIN_UPDATES:
            return ()
        return tuple(watched.model for watched in list(self._watched))

    def add_optimizer(self, innermost: FrameType | None, optimizer: Any) -> None:
        """Look for modules at the first optimizer; modules that it trains, or a later one, are not frozen."""
        trained = {id(parameter) for parameter in optimizer_parameters(optimizer)}
        if self._watched is None:
            self._watched = [] if swaps_tensors() else _modules_to_watch(visible_values(innermost), trained)
        self._watched = [watched for watched in self._watched if not watched.parameter_ids & trained]

    def is_due(self) -> bool:
        """Count an update; return whether to compare after it."""
        self._updates += 1
        return self._updates >= self._next and bool(self._watched)

    def compare(self) -> None:
        """Drop the modules whose weights have changed, or that no longer exist."""
        import torch

        self._next = 2 * self._updates
        self._compared_at = self._updates
        with torch._C.DisableTorchFunction():  # a mode of the user's would count our reads
            self._watched = [
                watched for watched in self._watched or [] if _fingerprints(watched.compared) == watched.before
            ]

    def release(self) -> None:
        """Keep what is known, but no reference to a parameter."""
        self._watched = [replace(watched, compared=()) for watched in self._watched or []]


def _modules_to_watch(variables: NamedValues, trained: set[int]) -> list[_Watched]:
    """Return the outermost modules without trained parameters, the largest first."""
    from torch import nn

    parts: NamedValues = [(name, value) for name, value in variables if issubclass(type(value), nn.Module)]
    visited: set[int] = set()
    untrained: list[tuple[str, Any, list[Any], list[Any]]] = []
    for name, module in parts:  # the list grows meanwhile
        if id(module) in visited or len(visited) > MAX_SUBMODULES:
            continue
        visited.add(id(module))
        modules = submodules_in(module)
        parameters = parameters_in(modules)
        if any([id(parameter) in trained for parameter in parameters]):
            parts += children_of(name, module)
        elif parameters:
            visited.update([id(inner) for inner in modules])
            untrained.append((name, module, modules, parameters))
    untrained.sort(key=lambda entry: -len(entry[3]))
    watched = [_watch(*entry) for entry in untrained[:_MAX_MODULES]]
    return [entry for entry in watched if entry is not None]


def _watch(name: str, module: Any, modules: list[Any], parameters: list[Any]) -> _Watched | None:
    import torch

    layers = "".join(map(_letters, modules))
    largest = sorted(parameters, key=lambda parameter: -torch.Tensor.numel(parameter))[:_COMPARED]
    compared = tuple([weakref.ref(parameter) for parameter in largest])
    before = _fingerprints(compared)
    if before is None or not layers:
        return None
    model = FrozenModel(
        kind=type(module).__name__,
        name=name,
        tensors=len(parameters),
        layers=layers,
        depends_on_batch=any([_depends_on_batch(inner) for inner in modules]),
    )
    return _Watched(model, frozenset([id(parameter) for parameter in parameters]), compared, before)


def _fingerprints(references: Iterable[weakref.ref[Any]]) -> tuple[Fingerprint, ...] | None:
    """Return version, address and first bytes of each parameter; None if one is gone or cannot be read."""
    prints = [_fingerprint(reference()) for reference in references]
    readable = [fingerprint for fingerprint in prints if fingerprint is not None]
    return tuple(readable) if len(readable) == len(prints) else None


def _fingerprint(parameter: Any) -> Fingerprint | None:
    memory = None if parameter is None else dense_memory(parameter)
    return None if memory is None else (version_of(parameter), memory.address, read_bytes(memory, _COMPARED_BYTES))


def _letters(module: Any) -> str:
    """Return the letter of a layer with weights; "" for any other module."""
    from torch import nn
    from torch.nn.modules.conv import _ConvNd

    kinds = (
        ((nn.Linear, nn.MultiheadAttention), LINEAR),
        ((_ConvNd,), CONVOLUTION),
        ((nn.Embedding, nn.EmbeddingBag), EMBEDDING),
        ((nn.RNNBase, nn.RNNCellBase), RECURRENT),
    )
    if is_transformers_linear(type(module)):
        return LINEAR
    letters = [letter for bases, letter in kinds if issubclass(type(module), bases)]
    return letters[0] if letters else ""


def _depends_on_batch(module: Any) -> bool:
    from torch.nn.modules.batchnorm import _BatchNorm

    is_norm = issubclass(type(module), _BatchNorm) and bool(object.__getattribute__(module, "__dict__").get("training"))
    return is_norm or draws_random_numbers(module)
