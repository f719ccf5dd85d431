"""Where in a cell the code of a fix belongs: after the statements that create the objects it changes."""

from __future__ import annotations

import ast
import builtins
import copy
import symtable
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gpulab.capture.hooks.models.called_code import CodePart, may_call
from gpulab.errors import CaptureError
from gpulab.rules import Finding
from gpulab.rules.engine.finding import LoaderSettings
from gpulab.rules.engine.pasted_names import acts_when_pasted
from gpulab.trial.refusal import COMPARE_YOURSELF

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (*_IMPORTS, ast.FunctionDef, ast.ClassDef)
_NEED_WORKERS = ("persistent_workers", "prefetch_factor", "timeout", "multiprocessing_context")
_MOST_POSITIONAL = 3  # of a DataLoader's arguments: dataset, batch_size, shuffle
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


class PlacedFix(NamedTuple):
    """A cell with the code of a fix."""

    cell: ast.Module
    line: int = 0  # the last line of the cell before the fix; 0 if the fix comes first
    settings: str = ""  # the arguments of the DataLoader(...) in this line that are the fix, if it is no code

    @property
    def place(self) -> str:
        """Say where the fix is: "inserted after line 3 of the cell"."""
        if self.settings:
            return f"{self.settings} in the DataLoader(...) in line {self.line} of the cell"
        return f"inserted after line {self.line} of the cell" if self.line else "inserted at the start of the cell"


def placed(cell: ast.Module, finding: Finding, namespace: Mapping[str, Any]) -> PlacedFix:
    """Return the cell with the change that a finding proposes. Raises CaptureError if it cannot be made there."""
    if finding.loader_settings is not None and not acts_when_pasted(finding.fix):
        return change_loader_call(cell, finding.loader_settings)
    return place_fix(cell, finding.fix, namespace)


def change_loader_call(cell: ast.Module, settings: LoaderSettings) -> PlacedFix:
    """Return the cell with other arguments in the call that creates a DataLoader.

    It is the only one, or the only one that gets the dataset of the settings; otherwise raises CaptureError.
    """
    changed = copy.deepcopy(cell)
    calls = [node for node in ast.walk(changed) if isinstance(node, ast.Call) and _name(node.func) == "DataLoader"]
    candidates = [call for call in calls if _dataset_of(call) == settings.dataset] or calls
    if not calls:
        raise _refusal("the cell creates no DataLoader")
    if len(candidates) > 1:
        raise _refusal(f"which of the {len(calls)} DataLoaders that the cell creates has to change is unclear")
    if len(candidates[0].args) > _MOST_POSITIONAL:
        raise _refusal("the cell passes these arguments to its DataLoader by position")
    call, arguments = candidates[0], settings.arguments
    dropped = {*arguments, *(() if arguments.get("num_workers") else _NEED_WORKERS)}
    keywords = [keyword for keyword in call.keywords if keyword.arg not in dropped]
    call.keywords = [*(ast.keyword(name, ast.Constant(value)) for name, value in arguments.items()), *keywords]
    text = ", ".join(f"{name}={value}" for name, value in arguments.items())
    return PlacedFix(ast.fix_missing_locations(changed), call.lineno, text)


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _dataset_of(call: ast.Call) -> str | None:
    """Return the variable that a DataLoader gets as its dataset; None for any other expression."""
    first = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "dataset"]
    return ast.unparse(first[0]) if first and isinstance(first[0], (ast.Name, ast.Attribute)) else None


def place_fix(cell: ast.Module, fix: str, namespace: Mapping[str, Any]) -> PlacedFix:
    """Return the cell with the fix after the statements that assign the variables it reads.

    These are statements at the top level, or else of one function. Raises CaptureError if the fix needs a variable that
    does not exist, or one that is created where the fix cannot follow: in a loop.
    """
    code = ast.parse(fix)
    needed = names_read(code)
    stores = {name: _storing(cell, name) for name in needed}
    missing = sorted(name for name in needed if not stores[name] and name not in namespace)
    replaced = replaced_names(fix) & needed
    is_used = not replaced or may_call(replaced, [CodePart(compile(cell, "<cell>", "exec"), namespace)])
    if missing or not is_used:
        inside = _placed_in_function(cell, code, needed - set(missing) - replaced)
        if inside is not None:
            return inside
    if missing:
        raise _refusal(f"its code uses `{missing[0]}`, and the notebook has no variable of that name")
    if not is_used:
        change = "change the line of the cell that creates this object. Or "
        raise _refusal(f"the cell does not use the variable `{min(replaced)}` that the fix replaces", change)
    position = _position([at for at in stores.values() if at], cell)
    if position and isinstance(cell.body[position - 1], _LOOPS):
        raise _refusal("its code changes an object that the cell creates inside a loop")
    line = cell.body[position - 1].end_lineno or 0 if position else 0
    changed = ast.Module([*cell.body[:position], *code.body, *cell.body[position:]], cell.type_ignores)
    return PlacedFix(changed, line)


def _refusal(why: str, change: str = "") -> CaptureError:
    return CaptureError("This fix cannot be tried automatically.", why=why, fix=f"{change}{COMPARE_YOURSELF}")


def _placed_in_function(cell: ast.Module, code: ast.Module, outside: set[str]) -> PlacedFix | None:
    """Return the cell with the fix in the function that has its variables, one with a loop if there are several.

    `outside`: variables that the fix may take from outside the function.
    """
    changed, needed = copy.deepcopy(cell), names_read(code)
    functions = [node for node in ast.walk(changed) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    for function in sorted(functions, key=lambda node: not any(map(_has_loop, node.body))):
        body = ast.Module(function.body, [])
        stores = [at for name in needed if (at := _storing(body, name))]
        position = _position(stores, body)
        is_in_loop = position > 0 and isinstance(function.body[position - 1], _LOOPS)
        if not needed - outside <= _local_names(function) or is_in_loop or not _has_attributes(function, code):
            continue
        line = (function.body[position - 1].end_lineno if position else function.lineno) or 0
        # An import in the function would hide the module from the statements before it.
        imports = [statement for statement in code.body if isinstance(statement, _IMPORTS)]
        function.body[position:position] = [each for each in code.body if each not in imports]
        start = sum(isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in changed.body)
        changed.body[start:start] = imports
        return PlacedFix(ast.fix_missing_locations(changed), line)
    return None


def _local_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Return parameters and variables of a function."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    assigned = {name for name, is_read in _events(ast.Module(function.body, [])) if not is_read}
    shared = {name for node in function.body if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    return (assigned | {each.arg for each in parameters if each}) - shared


def _has_attributes(function: ast.AST, code: ast.Module) -> bool:
    """Whether a method uses all attributes of `self` that the fix uses: it is not a method of another class."""
    return _attributes_of_self(code) <= _attributes_of_self(function)


def _attributes_of_self(code: ast.AST) -> set[str]:
    attributes = (node for node in ast.walk(code) if isinstance(node, ast.Attribute))
    return {each.attr for each in attributes if isinstance(each.value, ast.Name) and each.value.id == "self"}


def replaced_names(fix: str) -> set[str]:
    """Return the variables that a fix assigns, if that is all it does; none if it changes objects."""
    assignments = [statement for statement in ast.parse(fix).body if not isinstance(statement, _DEFINITIONS)]
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
