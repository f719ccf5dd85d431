"""Where in a cell the code of a fix belongs: after the statements that create the objects it changes."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpulab.errors import CaptureError
from gpulab.rules.engine.pasted_names import acts_when_pasted

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_APPLY = "apply the fix yourself and profile the cell again, then compare: %gpucompare BEFORE AFTER"


class PlacedFix(NamedTuple):
    """A cell with the code of a fix."""

    cell: ast.Module
    line: int  # the last line of the cell before the fix; 0 if the fix comes first


def place_fix(cell: ast.Module, fix: str, namespace: Mapping[str, Any]) -> PlacedFix:
    """Return the cell with the fix after the top-level statements that assign the variables it reads.

    Raises CaptureError if the fix changes nothing by itself, if it needs a variable that does not exist, or if that
    variable is created where the fix cannot follow it: in a loop or in a function.
    """
    if not acts_when_pasted(fix):
        raise CaptureError(
            "This fix cannot be tried automatically.",
            why="its code changes nothing by itself: your loop must call it",
            fix=_APPLY,
        )
    code = ast.parse(fix)
    needed = names_read(code)
    stores = {name: _storing(cell, name) for name in needed}
    missing = sorted(name for name in needed if not stores[name] and name not in namespace)
    if missing:
        raise CaptureError(
            "This fix cannot be tried automatically.",
            why=f"its code uses `{missing[0]}`, and the notebook has no variable of that name",
            fix=_APPLY,
        )
    position = _position([at for at in stores.values() if at], cell)
    if position and isinstance(cell.body[position - 1], _LOOPS):
        raise CaptureError(
            "This fix cannot be tried automatically.",
            why="its code changes an object that the cell creates inside a loop",
            fix=_APPLY,
        )
    line = cell.body[position - 1].end_lineno or 0 if position else 0
    changed = ast.Module([*cell.body[:position], *code.body, *cell.body[position:]], cell.type_ignores)
    return PlacedFix(changed, line)


def names_read(code: ast.Module) -> set[str]:
    """Return the names that code reads before it assigns them, without builtins."""
    names: dict[str, bool] = {}
    for name in _in_order(code):
        names.setdefault(name.id, isinstance(name.ctx, ast.Load))
    defined = {node.name for node in ast.walk(code) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    defined |= {node.arg for node in ast.walk(code) if isinstance(node, ast.arg)}
    for node in ast.walk(code):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return {word for word, is_read in names.items() if is_read} - defined - set(vars(builtins))


def _in_order(node: ast.AST) -> Iterator[ast.Name]:
    """Yield names in the order of execution: the value of an assignment before its target."""
    if isinstance(node, ast.Name):
        yield node
        return
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        children = [node.value, *(child for child in children if child is not node.value)] if node.value else children
    elif isinstance(node, ast.AugAssign):  # reads its target first
        children = [*_as_read(node.target), *children]
    elif isinstance(node, (ast.For, ast.AsyncFor)):
        children = [node.iter, *(child for child in children if child is not node.iter)]
    elif isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        elements = [child for child in children if not isinstance(child, ast.comprehension)]
        generators = [part for each in node.generators for part in (each.iter, each.target, *each.ifs)]
        children = [*generators, *elements]
    for child in children:
        yield from _in_order(child)


def _as_read(target: ast.expr) -> list[ast.AST]:
    return [ast.Name(target.id, ast.Load())] if isinstance(target, ast.Name) else []


def _storing(cell: ast.Module, name: str) -> list[int]:
    """Return the indices of the top-level statements that assign the name."""
    return [at for at, statement in enumerate(cell.body) if name in _stored(statement)]


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a statement assigns, also in its blocks, but not in functions that it defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, ast.Name):
        return {node.id} if isinstance(node.ctx, ast.Store) else set()
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        return set()
    return set().union(*(_stored(child) for child in ast.iter_child_nodes(node)))


def _position(stores: list[list[int]], cell: ast.Module) -> int:
    """Return the index of the statement that the fix comes before."""
    first = max((at[0] for at in stores), default=-1)
    loops = (at for at, statement in enumerate(cell.body) if at > first and _has_loop(statement))
    loop = next(loops, len(cell.body))
    return 1 + max((index for at in stores for index in at if index < loop), default=-1)


def _has_loop(statement: ast.stmt) -> bool:
    if isinstance(statement, _SCOPES):
        return False
    return any(isinstance(node, _LOOPS) for node in ast.walk(statement))
