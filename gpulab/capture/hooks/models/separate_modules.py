"""Modules of one structure that a step calls one after another, although none needs the output of another one.

Examples are a list of embedding tables, of heads, of experts, or the members of an ensemble. One module with an
additional dimension, or one larger layer, could compute all of them. Neither operators nor code of the user's run.
"""

from __future__ import annotations

import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.layer_calls import CONVOLUTION, LINEAR, Shape, TimedLayer, has_plain_weights, shape_of
from gpulab.capture.hooks.models.module_tree import parameters_in, submodules_in
from gpulab.capture.hooks.models.tensor_memory import version_of
from gpulab.user_objects import PARTS_OF_ONE, SAME_INPUT

_MIN_MODULES = 4  # two or three are a pair of critics, or queries, keys and values
_MOST_SUBMODULES = 64  # of one of them; calls of larger ones are seldom short
EMBEDDING = "embedding"

Structure = tuple[Any, ...]


class SeparateLayer(NamedTuple):
    """A layer that occurs in several modules, and that one operator could compute for all of them."""

    kind: str  # LINEAR, CONVOLUTION or EMBEDDING
    options: tuple[Any, ...]
    weights: tuple[Shape, ...]  # of one module; an embedding table has the mean number of rows
    input: Shape
    modules: int
    with_input_gradient: bool
    with_weight_gradients: bool


@dataclass
class ModuleGroup:
    """Calls of modules of one structure whose inputs are the same unchanged tensors, or parts of them."""

    inputs: list[weakref.ref[Any]]  # these tensors
    places: set[tuple[int, ...]] = field(default_factory=set)  # of the inputs in them
    modules: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    calls: int = 0
    total_ns: int = 0  # of these calls
    location: str | None = None

    @property
    def members(self) -> list[Any]:
        """The modules that still exist."""
        return [module for reference in self.modules.values() if (module := reference()) is not None]

    @property
    def source(self) -> str:
        """Where the inputs come from."""
        return SAME_INPUT if len(self.places) == 1 else PARTS_OF_ONE


class ModuleGroups:
    """The groups of such modules in one step."""

    def __init__(self) -> None:
        self._groups: dict[tuple[Any, ...], ModuleGroup] = {}
        self._structures: dict[int, Structure | None] = {}
        self._layers: dict[int, TimedLayer | SeparateLayer] = {}

    def note(self, module: Any, tensors: list[Any], owners: list[Any], layer: TimedLayer | None) -> ModuleGroup | None:
        """Note a call of a module; return its group, or None if it can have none.

        owners: for each tensor the one that it is a view of, or itself. None of two modules needs the output of the
        other one if both get parts of the same unchanged tensors. Tensors of their own prove nothing: an input without
        a gradient may be a detached output, as in a residual quantizer or in layers that are trained one by one.
        """
        identity = id(module)
        leaf = _embedding(module, tensors) if layer is None else layer
        if leaf is not None and has_plain_weights(module):
            self._layers[identity] = leaf
        if identity not in self._structures:
            self._structures[identity] = _structure(module)
        structure = self._structures[identity]
        if structure is None:
            return None
        source = [(id(owner), version_of(owner)) for owner in owners]
        key = (structure, *source, *[shape_of(tensor) for tensor in tensors])
        group = self._groups.get(key)
        if group is None or not all(
            [reference() is owner for reference, owner in zip(group.inputs, owners, strict=True)]
        ):
            group = self._groups[key] = ModuleGroup([weakref.ref(owner) for owner in owners])
        group.modules.setdefault(identity, weakref.ref(module))
        group.places.add(tuple([_offset(tensor) for tensor in tensors]))
        group.calls += 1
        return group

    def largest(self) -> list[ModuleGroup]:
        """Return groups of several modules, the most expensive first, without those that lie within another group."""
        groups, inside = list[ModuleGroup](), set[int]()
        candidates = [group for group in self._groups.values() if len(group.modules) >= _MIN_MODULES]
        for group in sorted(candidates, key=lambda calls: calls.total_ns, reverse=True):
            members = group.members
            if len(members) < _MIN_MODULES or all([id(member) in inside for member in members]):
                continue
            groups.append(group)
            inside.update([id(inner) for member in members for inner in submodules_in(member)])
        return groups

    def layers_of(self, group: ModuleGroup) -> Counter[SeparateLayer]:
        """Return the layers that all modules of a group have, and how often a module has each."""
        layers: Counter[SeparateLayer] = Counter()
        members = group.members
        for inner in submodules_in(members[0]) if members else []:
            leaf = self._layers.get(id(inner))
            if isinstance(leaf, SeparateLayer):
                layers[_joined_table(leaf, members)] += 1
            elif leaf is not None and leaf.kind in (LINEAR, CONVOLUTION):
                gradients = leaf.with_input_gradient, leaf.with_weight_gradients
                layers[SeparateLayer(leaf.kind, leaf.options, leaf.weights, leaf.input, len(members), *gradients)] += 1
        return layers


def _structure(module: Any) -> Structure | None:
    """Return classes and shapes of parameters, without the rows of embedding tables; None without a parameter."""
    modules = submodules_in(module)
    if len(modules) > _MOST_SUBMODULES:
        return None
    parts = [(type(inner), *[_weight_shape(inner, weight) for weight in parameters_in([inner])]) for inner in modules]
    return tuple(parts) if any([len(part) > 1 for part in parts]) else None


def _weight_shape(module: Any, weight: Any) -> Shape:
    from torch import nn

    shape = shape_of(weight)
    return shape[1:] if type(module) is nn.Embedding else shape


def _embedding(module: Any, tensors: list[Any]) -> SeparateLayer | None:
    """Describe a call of an embedding table with dense gradients in the memory of the CPU."""
    import torch
    from torch import nn

    kind: Any = torch.Tensor
    values = object.__getattribute__(module, "__dict__")
    if type(module) is not nn.Embedding or values.get("sparse") or values.get("max_norm") is not None:
        return None
    weights = parameters_in([module])
    if not weights or kind.dtype.__get__(weights[0]) is not torch.float32 or not kind.is_cpu.__get__(weights[0]):
        return None
    is_trained = torch.is_grad_enabled() and bool(kind.requires_grad.__get__(weights[0]))
    return SeparateLayer(EMBEDDING, (), (shape_of(weights[0]),), shape_of(tensors[0]), 1, False, is_trained)


def _joined_table(table: SeparateLayer, members: list[Any]) -> SeparateLayer:
    """Return the table of all modules of a group: as many modules, with their mean number of rows."""
    from torch import nn

    inner = [each for member in members for each in submodules_in(member) if type(each) is nn.Embedding]
    rows = sum([shape_of(weight)[0] for weight in parameters_in(inner)])
    width = table.weights[0][1]
    return table._replace(weights=((max(1, rows // len(inner)), width),), modules=len(members))


def _offset(tensor: Any) -> int:
    import torch

    kind: Any = torch.Tensor
    return kind.storage_offset(tensor) if kind.layout.__get__(tensor) is torch.strided else 0
