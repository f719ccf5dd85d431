"""Search the code that a training loop runs for a name, without running any of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

MOST_PARTS = 2_000  # of code that are read; a loop that reaches more may do anything
# Packages whose code works with tensors of any memory format, or with none at all.
_LIBRARIES = frozenset(
    ("torch", "numpy", "pandas", "scipy", "sklearn", "matplotlib", "PIL", "cv2", "tqdm", "IPython", "psutil", "gpulab")
) | frozenset(sys.stdlib_module_names) - {"__main__"}


class CodePart(NamedTuple):
    """The code of a function or a frame, and the variables that its names stand for."""

    code: CodeType
    variables: Mapping[str, Any]


def may_call(names: Collection[str], parts: Iterable[CodePart]) -> bool:
    """Whether these parts, or functions, classes and modules that they name, contain one of the names.

    An attribute counts as a name, whatever it belongs to. True also if there is too much code to tell. Only types,
    `__dict__` and code are read: nothing of the user's is called.
    """
    pending, visited = list(parts), set[int]()
    while pending:
        part = pending.pop()
        if id(part.code) in visited:
            continue
        visited.add(id(part.code))
        if not set(names).isdisjoint(part.code.co_names) or len(visited) > MOST_PARTS:
            return True
        pending += [CodePart(each, part.variables) for each in part.code.co_consts if isinstance(each, CodeType)]
        pending += parts_named_in(part)
    return False


def parts_named_in(part: CodePart) -> list[CodePart]:
    """Return the code of the functions, classes, objects and modules of the user's that a part names."""
    names = [*part.code.co_names, *part.code.co_freevars, *part.code.co_varnames]
    values = [part.variables[name] for name in names if name in part.variables]
    members = [
        vars(value)[name] for value in values if type(value) is ModuleType and _is_users(value.__name__)
        for name in part.code.co_names if name in vars(value)
    ]  # fmt: skip
    return [each for value in (*values, *members) for each in parts_of_value(value)]


def parts_of_value(value: Any) -> Iterator[CodePart]:
    """Yield the code of a function, or of the methods of a class or of an object's class, if it is the user's."""
    kind = type(value)
    function = value.__func__ if kind is MethodType else value
    if type(function) is FunctionType:
        if _is_users(function.__module__):
            yield _part(function)
    elif kind is not ModuleType:
        yield from parts_of_class(value if issubclass(kind, type) else kind)


def parts_of_class(kind: type) -> Iterator[CodePart]:
    """Yield the code of the methods of a class, and of its base classes outside the libraries."""
    for base in kind.__mro__:
        if _is_users(vars(base).get("__module__")):
            yield from (_part(member) for member in vars(base).values() if type(member) is FunctionType)


def _part(function: FunctionType) -> CodePart:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closure = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return CodePart(function.__code__, {**function.__globals__, **closure} if closure else function.__globals__)


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:  # the variable has no value yet
        return False


def _is_users(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] not in _LIBRARIES
