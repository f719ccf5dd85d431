"""Where in a cell or a script the code of a fix belongs: after the statements that create the objects it changes."""

from __future__ import annotations

import ast
import builtins
import copy
import inspect
import symtable
import textwrap
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from gpulab.capture.hooks.models.called_code import CodePart, may_call
from gpulab.errors import CaptureError
from gpulab.rules import Finding
from gpulab.rules.engine.pasted_names import acts_when_pasted
from gpulab.trial.loader_call import change_loader_call, has_loader_call
from gpulab.trial.placed_fix import PlacedFix, without_place

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (*_IMPORTS, ast.FunctionDef, ast.ClassDef)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def place_fix(cell: ast.Module, finding: Finding, namespace: Mapping[str, Any]) -> PlacedFix:
    """Return the cell with the change that a finding proposes. Raises CaptureError if it has no place there."""
    settings = finding.loader_settings
    if settings is not None and not acts_when_pasted(finding.fix):
        return change_loader_call(cell, settings)
    try:
        return place_code(cell, finding.fix, namespace, finding.function)
    except CaptureError:
        # A function of another cell gets the DataLoader that this one creates: `train(DataLoader(...))`.
        if settings is None or not has_loader_call(cell, settings):
            raise
    return change_loader_call(cell, settings)


def place_code(cell: ast.Module, fix: str, namespace: Mapping[str, Any], function: str | None = None) -> PlacedFix:
    """Return the cell with the fix after the statements that assign the variables it reads.

    These are statements at the top level, or else of one function (`function`: its name, if that is known). Raises
    CaptureError if the fix needs a variable that does not exist, or one that is created where the fix cannot follow: in
    a loop.
    """
    code = ast.parse(fix)
    needed = names_read(code)
    stores = {name: _storing(cell, name) for name in needed}
    missing = sorted(name for name in needed if not stores[name] and name not in namespace)
    replaced = replaced_names(fix) & needed
    is_used = not replaced or may_call(replaced, [CodePart(compile(cell, "<cell>", "exec"), namespace)])
    if missing or not is_used:
        outside = needed - set(missing) - replaced
        inside = _placed_in_function(cell, code, outside, function) or _placed_in_other_cell(
            cell, code, outside, namespace.get(function or "")
        )
        if inside is not None:
            return inside
    if missing:
        raise without_place(f"its code uses `{missing[0]}`, and where it belongs there is no variable of that name")
    if not is_used:
        change = "change the line that creates this object. Or "
        raise without_place(f"the code does not use the variable `{min(replaced)}` that the fix replaces", change)
    return _inserted_in_block(cell, code)


def _inserted_in_block(cell: ast.Module, code: ast.Module) -> PlacedFix:
    """Insert the code outside functions."""
    changed = copy.deepcopy(cell)
    block = ast.Module(_block(changed.body, names_read(code)), [])
    position = _position([at for name in names_read(code) if (at := _storing(block, name))], block)
    if position and isinstance(block.body[position - 1], _LOOPS):
        raise without_place("its code changes an object that is created inside a loop")
    position = max(position, _first_place(changed) if block.body is changed.body else 0)
    line = block.body[position - 1].end_lineno or 0 if position else 0
    block.body[position:position] = code.body
    return PlacedFix(changed, line)


def _block(body: list[ast.stmt], names: set[str]) -> list[ast.stmt]:
    """Return the statements among which these variables are assigned: these, or those of a `with` or `try` in them.

    Also those of an `if` that surely runs, `if __name__ == "__main__"`, or that contains the loop.
    """
    storing = [at for at, each in enumerate(body) if not isinstance(each, _DEFINITIONS) and _stores(each, names)]
    loops = (at for at, each in enumerate(body) if storing and at >= storing[0] and _has_loop(each))
    loop = next(loops, len(body))
    last = body[max((at for at in storing if at <= loop), default=0)] if storing else None
    may_not_run = isinstance(last, ast.If) and not (_is_main_guard(last) or _has_loop(last))
    if may_not_run or not isinstance(last, (ast.If, ast.With, ast.AsyncWith, ast.Try)):
        return body
    blocks = [last.body, getattr(last, "orelse", []), getattr(last, "finalbody", [])]
    inside = [block for block in blocks if _stores(ast.Module(block, []), names)]
    return _block(inside[0], names) if len(inside) == 1 else body


def _stores(node: ast.AST, names: set[str]) -> bool:
    return any((name, False) in set(_events(node)) for name in names)


def _is_main_guard(statement: ast.If) -> bool:
    """Whether this is `if __name__ == "__main__"`."""
    return "__name__" in ast.unparse(statement.test)


def _first_place(cell: ast.Module) -> int:
    """Return the index of the first statement that may follow others: after a docstring and imports from the future."""
    first = int(ast.get_docstring(cell, clean=False) is not None)
    from_future = [isinstance(each, ast.ImportFrom) and each.module == "__future__" for each in cell.body]
    return max([first, *(at + 1 for at, is_from_future in enumerate(from_future) if is_from_future)])


def _placed_in_function(
    cell: ast.Module, code: ast.Module, outside: set[str], function: str | None
) -> PlacedFix | None:
    """Return the cell with the fix in the function that has its variables; None if there is none.

    `outside`: variables that the fix may take from outside the function. Raises CaptureError if several functions with
    a loop have these variables, such as one that trains and one that evaluates.
    """
    changed, needed = copy.deepcopy(cell), names_read(code) - outside
    functions = [node for node in ast.walk(changed) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    fitting = [each for each in functions if needed <= _local_names(each) and _has_attributes(each, code)]
    fitting = [each for each in fitting if each.name == function] or fitting
    fitting = [each for each in fitting if any(map(_has_loop, each.body))] or fitting
    if len(fitting) > 1:
        names = " and ".join(function.name for function in fitting)
        raise without_place(
            f"the functions {names} have a variable `{min(needed)}`, and it is unclear which one is meant"
        )
    return _inserted(changed, fitting[0], code) if fitting else None


def _placed_in_other_cell(cell: ast.Module, code: ast.Module, outside: set[str], function: Any) -> PlacedFix | None:
    """Return the cell below a definition of a notebook's function that has the fix; None if that is not certain."""
    if type(function) is not FunctionType or function.__closure__ or function.__module__ != "__main__":
        return None
    try:
        definition = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError):  # no source, or only a part of a statement
        return None
    node = definition.body[0]
    if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name != function.__name__:
        return None
    if not names_read(code) - outside <= _local_names(node):
        return None
    changed = _inserted(definition, node, code).cell
    return PlacedFix(ast.Module([*changed.body, *cell.body], cell.type_ignores), function=node.name)


def _inserted(cell: ast.Module, function: Function, code: ast.Module) -> PlacedFix:
    """Insert the code into a function of the cell."""
    body = ast.Module(function.body, [])
    position = _position([at for name in names_read(code) if (at := _storing(body, name))], body)
    if position and isinstance(function.body[position - 1], _LOOPS):
        raise without_place(f"its code changes an object that {function.name}() creates inside a loop")
    line = (function.body[position - 1].end_lineno if position else function.lineno) or 0
    # An import in the function would hide the module from the statements before it, and workers may need the classes.
    local = _local_names(function)
    outside = [
        each for each in code.body if isinstance(each, _DEFINITIONS) and not names_read(ast.Module([each], [])) & local
    ]
    function.body[position:position] = [each for each in code.body if each not in outside]
    imports = [each for each in outside if isinstance(each, _IMPORTS)]
    start = _first_place(cell)
    # Classes come below the imports of the program, whose modules they may use.
    last = max((at + 1 for at, each in enumerate(cell.body) if isinstance(each, _IMPORTS)), default=start)
    cell.body[last:last] = [each for each in outside if each not in imports]
    cell.body[start:start] = imports
    return PlacedFix(ast.fix_missing_locations(cell), line)


def _local_names(function: Function) -> set[str]:
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
    """Return the attributes of `self`; those of classes in it are of another object."""
    body = [each for each in getattr(code, "body", []) if not isinstance(each, ast.ClassDef)]
    attributes = (node for each in body for node in ast.walk(each) if isinstance(node, ast.Attribute))
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
