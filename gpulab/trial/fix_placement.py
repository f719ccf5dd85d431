"""Where in a cell the code of a fix belongs: after the statements that create the objects it changes."""

from __future__ import annotations

import ast
import builtins
import symtable
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.called_code import CodePart, may_call
from gpulab.errors import CaptureError
from gpulab.trial.refusal import COMPARE_YOURSELF

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_DEFINITIONS = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class PlacedFix(NamedTuple):
    """A cell with the code of a fix."""

    cell: ast.Module
    line: int  # the last line of the cell before the fix; 0 if the fix comes first


def place_fix(cell: ast.Module, fix: str, namespace: Mapping[str, Any]) -> PlacedFix:
    """Return the cell with the fix after the top-level statements that assign the variables it reads.

    Raises CaptureError if it needs a variable that does not exist, or one that is created where the fix cannot follow:
    in a loop or in a function.
    """
    code = ast.parse(fix)
    needed = names_read(code)
    stores = {name: _storing(cell, name) for name in needed}
    missing = sorted(name for name in needed if not stores[name] and name not in namespace)
    if missing:
        raise CaptureError(
            "This fix cannot be tried automatically.",
            why=f"its code uses `{missing[0]}`, and the notebook has no variable of that name",
            fix=COMPARE_YOURSELF,
        )
    replaced = _replaced(code) & needed
    if replaced and not may_call(replaced, [CodePart(compile(cell, "<cell>", "exec"), namespace)]):
        raise CaptureError(
            "This fix cannot be tried automatically.",
            why=f"the cell does not use the variable `{min(replaced)}` that the fix replaces",
            fix=f"change the line of the cell that creates this object. Or {COMPARE_YOURSELF}",
        )
    position = _position([at for at in stores.values() if at], cell)
    if position and isinstance(cell.body[position - 1], _LOOPS):
        raise CaptureError(
            "This fix cannot be tried automatically.",
            why="its code changes an object that the cell creates inside a loop",
            fix=COMPARE_YOURSELF,
        )
    line = cell.body[position - 1].end_lineno or 0 if position else 0
    changed = ast.Module([*cell.body[:position], *code.body, *cell.body[position:]], cell.type_ignores)
    return PlacedFix(changed, line)


def _replaced(fix: ast.Module) -> set[str]:
    """Return the variables that a fix assigns, if that is all it does; none if it changes objects."""
    assignments = [statement for statement in fix.body if not isinstance(statement, _DEFINITIONS)]
    targets = [target for each in assignments if isinstance(each, ast.Assign) for target in each.targets]
    are_names = all(isinstance(each, ast.Assign) for each in assignments) and all(
        isinstance(target, ast.Name) for target in targets
    )
    return {target.id for target in targets if isinstance(target, ast.Name)} if are_names else set()


def names_read(code: ast.Module) -> set[str]:
    """Return the variables that code reads before it assigns them, and all that its functions read; no builtins."""
    names: dict[str, bool] = {}
    for name, is_read in _events(code):
        names.setdefault(name, is_read)
    first_read = {name for name, is_read in names.items() if is_read}
    table = symtable.symtable(ast.unparse(code), "<cell>", "exec")
    return (first_read | set(_globals_of_functions(table))) - set(vars(builtins))


def _globals_of_functions(table: symtable.SymbolTable) -> Iterator[str]:
    """Yield the names that the functions, methods, lambdas and comprehensions of some code take from outside."""
    for child in table.get_children():
        yield from (
            symbol.get_name() for symbol in child.get_symbols() if symbol.is_global() and symbol.is_referenced()
        )
        yield from _globals_of_functions(child)


def _events(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield each name that the code outside functions reads (True) or assigns (False), in the order of execution."""
    if isinstance(node, ast.Name):
        yield node.id, isinstance(node.ctx, ast.Load)
        return
    for part in _evaluated(node):
        yield from _events(part)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name, False
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (((alias.asname or alias.name).partition(".")[0], False) for alias in node.names)


def _evaluated(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a statement or expression that are evaluated with it, in order: not the bodies of functions.

    A comprehension evaluates its first iterable outside; the rest is a function.
    """
    parts = list(ast.iter_child_nodes(node))
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        decorators = getattr(node, "decorator_list", [])
        return [*decorators, *node.args.defaults, *(value for value in node.args.kw_defaults if value is not None)]
    if isinstance(node, (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)):
        return [node.generators[0].iter]
    if isinstance(node, ast.ClassDef):  # its body assigns attributes, not variables
        return [*node.decorator_list, *node.bases, *(keyword.value for keyword in node.keywords)]
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        return [node.value, *(part for part in parts if part is not node.value)]
    if isinstance(node, ast.AugAssign):  # reads its target first
        target = [ast.Name(node.target.id, ast.Load())] if isinstance(node.target, ast.Name) else []
        return [*target, *parts]
    if isinstance(node, (ast.For, ast.AsyncFor)):
        return [node.iter, *(part for part in parts if part is not node.iter)]
    return parts


def _storing(cell: ast.Module, name: str) -> list[int]:
    """Return the indices of the top-level statements that assign the name, also in their blocks."""
    return [at for at, statement in enumerate(cell.body) if (name, False) in set(_events(statement))]


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
