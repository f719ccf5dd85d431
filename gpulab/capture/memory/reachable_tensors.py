"""Which tensors a value leads to: through containers, objects and closures, and through the autograd graph.

No code of the user's runs: references are followed as the garbage collector follows them, attributes are read past
any override, saved tensors are taken as they are stored and not unpacked, as that may compute or copy.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

MOST_OBJECTS = 200_000  # looked at for one variable; a list of a million words is not searched to its end
_CLOCK_EVERY = 4096
_NOTEBOOK = ("IPython.", "ipykernel.", "traitlets.", "ipywidgets.")


class Deadline:
    """A moment after which looking ends; `passed` once it was met."""

    def __init__(self, limit_s: float) -> None:
        self._at_s = time.monotonic() + limit_s
        self.passed = False

    def met(self) -> bool:
        """Whether the time is over."""
        self.passed = self.passed or time.monotonic() > self._at_s
        return self.passed


class Reach:
    """Follows references and graphs, each object and each node once over all questions."""

    def __init__(self, deadline: Deadline, closed: Iterable[object] = ()) -> None:
        import torch

        self._tensor = torch.Tensor
        self._module = torch.nn.Module
        self._deadline = deadline
        self._kinds: dict[int, str] = {}  # by id of the type: a metaclass of the user's may hash as it likes
        self._raw: dict[int, tuple[str, ...]] = {}
        # Ids are good for as long as the objects live: those that were met are kept, until this walk is over.
        self._met: dict[int, object] = {id(each): each for each in closed}
        self._nodes: dict[int, object] = {}

    def tensors(self, root: object) -> Iterator[Any]:
        """The tensors that a value leads to, itself first where it is one."""
        pending, count = [root], 0
        while pending and count < MOST_OBJECTS:
            value = pending.pop()
            if id(value) in self._met:
                continue
            count += 1
            if count % _CLOCK_EVERY == 0 and self._deadline.met():
                return
            kind = self.kind(value)
            if kind == "plain":
                continue
            self._met[id(value)] = value
            if kind == "tensor":
                yield value
            elif kind == "module":
                yield from self.parameters(value)
            elif kind == "function":
                pending.extend(getattr(value, "__closure__", None) or ())
            else:
                pending.extend(gc.get_referents(value))

    def saved(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """The tensors that the graphs of these keep for backward(); what backward() has freed is there no more."""
        pending = [node for tensor in tensors if (node := tensor.grad_fn) is not None]
        while pending:
            node = pending.pop()
            if id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            if len(self._nodes) % _CLOCK_EVERY == 0 and self._deadline.met():
                return
            pending += [each for each, _ in object.__getattribute__(node, "next_functions") if each is not None]
            yield from self._kept_by(node)

    def parameters(self, module: Any) -> Iterator[Any]:
        """The parameters and buffers of a module and its submodules, each once."""
        pending = [module]
        while pending:
            held = attributes(pending.pop())
            for place in ("_parameters", "_buffers"):
                yield from (each for each in _values(held.get(place)) if self.is_tensor(each))
            pending += [each for each in _values(held.get("_modules")) if each is not None]

    def is_tensor(self, value: object) -> bool:
        """Whether it is one, by its type alone."""
        return self.kind(value) == "tensor"

    def kind(self, value: object) -> str:
        """How a value is to be followed."""
        known = self._kinds.get(id(type(value)))
        if known is None:
            known = self._kinds[id(type(value))] = self._kind_of(type(value))
        return known

    def _kind_of(self, kind: type) -> str:
        if issubclass(kind, self._tensor):
            return "tensor"
        if issubclass(kind, self._module):
            return "module"
        if issubclass(kind, FunctionType):
            return "function"
        if kind.__module__.startswith(_NOTEBOOK):
            return "plain"  # it leads to everything that the notebook has
        stops = (str, bytes, int, float, complex, type, ModuleType, CodeType, FrameType, BuiltinFunctionType)
        return "plain" if issubclass(kind, (*stops, type(None))) else "container"

    def _kept_by(self, node: Any) -> Iterator[Any]:
        names = self._raw.get(id(type(node)))
        if names is None:
            names = self._raw[id(type(node))] = tuple(
                name for name in dir(type(node)) if name.startswith("_raw_saved_")
            )
        for name in names:
            with contextlib.suppress(RuntimeError, AttributeError):  # freed by backward(), or never filled
                kept = object.__getattribute__(node, name)
                for each in kept if isinstance(kept, tuple | list) else (kept,):
                    data = getattr(each, "data", None)  # since 2.9; before, what is saved cannot be seen from here
                    if self.is_tensor(data):
                        yield data


def attributes(value: object) -> dict[str, Any]:
    """The attributes an object holds itself, past any `__getattr__` of its class."""
    if not hasattr(type(value), "__dict__"):
        return {}
    try:
        held = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return held if isinstance(held, dict) else {}


def _values(place: object) -> list[Any]:
    return list(dict.values(place)) if isinstance(place, dict) else []
