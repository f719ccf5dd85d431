"""Copies of the objects that a cell uses, so that running the cell again changes none of the user's.

All objects are copied together, so that a copied optimizer updates the copied model. Classes, modules and functions
stay the same objects, except functions with a closure: their closure is copied, too. What cannot be copied, such as an
open file or an iterator, is refused: running the cell would change it.
"""

from __future__ import annotations

import copy
import dis
import io
import logging
import pickle
import sys
from collections.abc import Iterable, Mapping
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodDescriptorType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

import numpy as np
import psutil

from gpulab.capture.protection.guard import error_text
from gpulab.errors import CaptureError
from gpulab.trial.refusal import COMPARE_YOURSELF
from gpulab.wording import percent, size

_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset})
_UNCHANGED = (
    *(ModuleType, BuiltinFunctionType, CodeType, logging.Logger, np.memmap),
    *(GetSetDescriptorType, MemberDescriptorType, MethodDescriptorType, WrapperDescriptorType),
)
_MAX_MEMORY_FRAC = 0.4  # of the free memory: the copies, and as much again for what the cell makes of them
_GLOBAL_NAMES = ("LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL")
_COMPILED = "_torchdynamo_orig_callable"


class ObjectCopies:
    """Objects by name, as they are now; `restore` returns new copies of them, as often as needed."""

    def __init__(self, names: Iterable[str], namespace: Mapping[str, Any]) -> None:
        """Serialise the objects of these names, and of the names that their functions use.

        Raises CaptureError for objects that cannot be copied, or that are too large.
        """
        self._namespace = namespace
        self._names = tuple(sorted(name for name in names if name in namespace))
        while True:
            stream = io.BytesIO()
            self._pickler = _Pickler(stream, namespace)
            for name in self._names:
                self._dump(name)
            more = {name for name in self._pickler.names_in_code if name in namespace} - set(self._names)
            if not more:
                break
            self._names = tuple(sorted({*self._names, *more}))
        self._data = stream.getvalue()

    def restore(self) -> dict[str, Any]:
        """Return a copy of each object by its name."""
        unpickler = _Unpickler(io.BytesIO(self._data), self._pickler)
        return {name: unpickler.load() for name in self._names}

    def _dump(self, name: str) -> None:
        try:
            self._pickler.dump(self._namespace[name])
        except CaptureError:
            raise
        except Exception as error:  # the user's classes decide what copying them raises
            raise CaptureError(
                f"This cell cannot be tried: its variable `{name}` cannot be copied.",
                why=error_text(error),
                fix=f"create `{name}` in the cell itself, or apply the fix and profile the cell again",
            ) from None


class _Pickler(pickle.Pickler):
    """Serialises all but classes, functions, tensors and arrays, which it keeps in `objects`."""

    def __init__(self, stream: io.BytesIO, namespace: Mapping[str, Any]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._namespace = namespace
        self.objects: dict[int, Any] = {}  # by id
        self.names_in_code: set[str] = set()  # global names that the user's functions and classes use
        self._copied_bytes: dict[int, int] = {}  # by memory block
        self._max_bytes = round(_MAX_MEMORY_FRAC * psutil.virtual_memory().available)

    def persistent_id(self, value: Any) -> tuple[str, int] | None:
        """Return how `restore` obtains this object: "same" or "copy", and its key; None to serialise it."""
        kind = type(value)
        if kind in _ATOMS:
            return None
        if isinstance(value, type):
            if value.__module__ == "__main__":
                self._add_names_of_class(value)
            return self._keep("same", value)
        if isinstance(value, (*_UNCHANGED, _GlobalsOf)) or (kind is FunctionType and not self._has_closure(value)):
            return self._keep("same", value)
        if isinstance(value, np.ndarray) and value.dtype != object:
            self._add_bytes(id(value), value.nbytes)
            return self._keep("copy", value)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(value, torch.Tensor):
            if value.layout is torch.strided:  # tensors may share memory, which is copied once
                self._add_bytes(value.untyped_storage()._cdata, value.untyped_storage().nbytes())
            return self._keep("copy", value)
        if torch is not None and isinstance(value, torch.Generator):
            return self._keep("copy", value)
        return None

    def reducer_override(self, value: Any) -> Any:
        """Serialise closures, and a DataLoader without the workers of its last epoch."""
        if type(value) is FunctionType and self._has_closure(value):
            parts = (value.__code__, _GlobalsOf(value), value.__closure__)
            return _new_function, parts, _state_of(value), None, None, _fill
        if type(value) is CellType:
            return CellType, (), _contents_of(value), None, None, _fill_cell
        loader_class = getattr(sys.modules.get("torch.utils.data"), "DataLoader", None)
        if loader_class is not None and isinstance(value, loader_class):
            constructor, arguments, state, *rest = value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
            if isinstance(state, dict):
                return constructor, arguments, {**state, "_iterator": None}, *rest
        return NotImplemented

    def _has_closure(self, function: FunctionType) -> bool:
        """Whether the function has a closure; notes the names that a function of the user's uses."""
        if hasattr(function, _COMPILED):
            raise CaptureError(
                f"This cell cannot be tried: it uses `{function.__name__}`, a function of torch.compile.",
                why="a compiled function keeps a reference to the original model, which the trial would train",
                fix=COMPARE_YOURSELF,
            )
        if function.__globals__ is self._namespace:
            self.names_in_code |= names_in_code(function.__code__)
        return function.__closure__ is not None

    def _add_names_of_class(self, kind: type) -> None:
        for member in vars(kind).values():
            function = getattr(member, "__func__", None) or getattr(member, "fget", None) or member
            if isinstance(function, FunctionType):
                self.names_in_code |= names_in_code(function.__code__)

    def _add_bytes(self, key: int, number: int) -> None:
        self._copied_bytes[key] = number
        if sum(self._copied_bytes.values()) > self._max_bytes:
            raise CaptureError(
                "This cell cannot be tried: its objects are too large to copy.",
                why=f"they have more than {size(self._max_bytes)}, {percent(_MAX_MEMORY_FRAC)} of the free memory",
                fix=COMPARE_YOURSELF,
            )

    def _keep(self, method: str, value: Any) -> tuple[str, int]:
        self.objects[id(value)] = value
        return method, id(value)


class _Unpickler(pickle.Unpickler):
    """Copies each tensor and array once, so that two references to it stay two references to one object."""

    def __init__(self, stream: io.BytesIO, pickler: _Pickler) -> None:
        super().__init__(stream)
        self._objects = pickler.objects
        self._copies: dict[int, Any] = {}  # by id of the original: tensors, and their memory if they share it

    def persistent_load(self, reference: Any) -> Any:
        """Return the object itself, or its copy."""
        method, key = reference
        value = self._objects[key]
        if method == "same":
            return value
        if key not in self._copies:
            self._copies[key] = self._copy(value)
        return self._copies[key]

    def _copy(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return value.copy()
        torch = sys.modules["torch"]
        if isinstance(value, torch.Generator):
            return value.clone_state()
        if not value.is_leaf:  # such as a loss with its graph, which stays with the original
            return value.detach().clone()
        return copy.deepcopy(value, self._copies)


def names_in_code(code: CodeType) -> set[str]:
    """Return the names of the globals that this code and the functions in it use."""
    names = {str(each.argval) for each in dis.get_instructions(code) if each.opname in _GLOBAL_NAMES}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= names_in_code(constant)
    return names


class _GlobalsOf:
    """The namespace of a function, which its copy shares."""

    def __init__(self, function: FunctionType) -> None:
        self.namespace = function.__globals__


def _new_function(code: CodeType, of: _GlobalsOf, closure: tuple[CellType, ...]) -> FunctionType:
    return FunctionType(code, of.namespace, closure=closure)


def _state_of(function: FunctionType) -> dict[str, Any]:
    names = ("__name__", "__qualname__", "__defaults__", "__kwdefaults__", "__doc__", "__module__")
    return {"attributes": {name: getattr(function, name) for name in names}, "dict": dict(vars(function))}


def _fill(function: FunctionType, state: dict[str, Any]) -> None:
    for name, value in state["attributes"].items():
        setattr(function, name, value)
    vars(function).update(state["dict"])


def _contents_of(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # still empty
        return ()


def _fill_cell(cell: CellType, contents: tuple[Any, ...]) -> None:
    for value in contents:
        cell.cell_contents = value
