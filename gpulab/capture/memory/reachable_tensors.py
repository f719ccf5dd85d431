"""Find the tensors that a value references: through containers, objects and closures, and through the autograd graph.

None of the user's code runs: references are followed as by the garbage collector, attributes are read past any
override, and saved tensors are not unpacked, because unpacking may compute or copy.
"""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Iterable, Iterator
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, ModuleType
from typing import Any

MAX_OBJECTS = 200_000  # visited per variable; a list of a million strings is not searched to its end
_CLOCK_EVERY = 4096
_NOTEBOOK_MODULES = ("IPython.", "ipykernel.", "traitlets.", "ipywidgets.")


class Deadline:
    """A time limit for a search; `passed` once `met()` has returned True."""

    def __init__(self, limit_s: float) -> None:
        self._at_s = time.monotonic() + limit_s
        self.passed = False

    def check(self) -> bool:
        """Whether the time is up."""
        self.passed = self.passed or time.monotonic() > self._at_s
        return self.passed


class TensorSearch:
    """Follows references and autograd graphs; visits each object and each node once over all calls."""

    def __init__(self, deadline: Deadline, closed: Iterable[object] = ()) -> None:
        import torch

        self._tensor = torch.Tensor
        self._module = torch.nn.Module
        self._deadline = deadline
        self._kinds: dict[int, str] = {}  # by id of the type: a user's metaclass may define any hash
        self._saved_names: dict[int, tuple[str, ...]] = {}
        # An id is valid only while its object lives, so visited objects are kept until this search is over.
        self._visited: dict[int, object] = {id(each): each for each in closed}
        self._nodes: dict[int, object] = {}

    def tensors(self, root: object) -> Iterator[Any]:
        """The tensors that a value references, itself first if it is a tensor."""
        pending, count = [root], 0
        while pending and count < MAX_OBJECTS:
            value = pending.pop()
            if id(value) in self._visited:
                continue
            count += 1
            if count % _CLOCK_EVERY == 0 and self._deadline.check():
                return
            kind = self.kind(value)
            if kind == "plain":
                continue
            self._visited[id(value)] = value
            if kind == "tensor":
                yield value
            elif kind == "module":
                yield from self.parameters(value)
            elif kind == "function":
                pending.extend(getattr(value, "__closure__", None) or ())
            else:
                pending.extend(gc.get_referents(value))

    def saved_tensors(self, tensors: Iterable[Any]) -> Iterator[Any]:
        """Tensors that the graphs of these keep for backward(), except those that backward() has already freed."""
        pending = [node for tensor in tensors if (node := tensor.grad_fn) is not None]
        while pending:
            node = pending.pop()
            if id(node) in self._nodes:
                continue
            self._nodes[id(node)] = node
            if len(self._nodes) % _CLOCK_EVERY == 0 and self._deadline.check():
                return
            pending += [each for each, _ in object.__getattribute__(node, "next_functions") if each is not None]
            yield from self._saved_by(node)

    def parameters(self, module: Any) -> Iterator[Any]:
        """The parameters and buffers of a module and its submodules, each once."""
        pending = [module]
        while pending:
            module_values = attributes(pending.pop())
            for name in ("_parameters", "_buffers"):
                yield from (each for each in _values(module_values.get(name)) if self.is_tensor(each))
            pending += [each for each in _values(module_values.get("_modules")) if each is not None]

    def is_tensor(self, value: object) -> bool:
        """Whether a value is a tensor, judged by its type alone."""
        return self.kind(value) == "tensor"

    def kind(self, value: object) -> str:
        """How to follow a value: "tensor", "module", "function", "plain" (not followed) or "container"."""
        kind = self._kinds.get(id(type(value)))
        if kind is None:
            kind = self._kinds[id(type(value))] = self._kind_of(type(value))
        return kind

    def _kind_of(self, kind: type) -> str:
        if issubclass(kind, self._tensor):
            return "tensor"
        if issubclass(kind, self._module):
            return "module"
        if issubclass(kind, FunctionType):
            return "function"
        if kind.__module__.startswith(_NOTEBOOK_MODULES):
            return "plain"  # it references everything in the notebook
        stops = (str, bytes, int, float, complex, type, ModuleType, CodeType, FrameType, BuiltinFunctionType)
        return "plain" if issubclass(kind, (*stops, type(None))) else "container"

    def _saved_by(self, node: Any) -> Iterator[Any]:
        names = self._saved_names.get(id(type(node)))
        if names is None:
            names = self._saved_names[id(type(node))] = tuple(
                name for name in dir(type(node)) if name.startswith("_raw_saved_")
            )
        for name in names:
            with contextlib.suppress(RuntimeError, AttributeError):  # freed by backward(), or never filled
                saved = object.__getattribute__(node, name)
                for entry in saved if isinstance(saved, tuple | list) else (saved,):
                    data = getattr(entry, "data", None)  # since PyTorch 2.9; older versions do not expose it
                    if self.is_tensor(data):
                        yield data


def attributes(value: object) -> dict[str, Any]:
    """The attributes stored in an object, past any `__getattr__` of its class."""
    if not hasattr(type(value), "__dict__"):
        return {}
    try:
        values = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return values if isinstance(values, dict) else {}


def _values(mapping: object) -> list[Any]:
    return list(dict.values(mapping)) if isinstance(mapping, dict) else []
