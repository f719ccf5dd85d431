"""Which function of the user's the code of a fix belongs to: the one that has the variables it uses."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import replace

from gpulab.rules.engine.finding import Finding
from gpulab.run import Loader, Model, Optimizer, Run

_IMPORTS = (ast.Import, ast.ImportFrom)
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef)
_TOP_COMMENT = "# At the top of the notebook or file, outside of functions:\n"
_WITH_LOOP = ("transformers", "lightning")  # with Accelerate, the loop is the user's
_LOOP, _LIBRARY_LOOP = "loop", "call that trains"


def with_scope(finding: Finding, run: Run) -> Finding:
    """Return the finding with the function that its code belongs to, and a comment in the code that says so.

    The imports get a comment of their own: inside a function, an import would hide the name from the lines before it.
    So do classes and functions that use nothing else: pickle cannot save an object of a class within a function.
    """
    if not finding.fix:
        return finding
    try:
        code = ast.parse(finding.fix)
    except SyntaxError:  # a shell command
        return finding
    function = finding.function if finding.function is not None else _function(code, run)
    if function and not function.isidentifier():  # a file may hold any text
        function = None
    has_library_loop = any(loader.framework in _WITH_LOOP for loader in run.loaders)
    above = _LIBRARY_LOOP if has_library_loop else _LOOP
    comment = _comment(code, function, above)
    if not comment:
        return replace(finding, function=function)
    return replace(finding, function=function, fix=_with_comment(finding.fix, code, comment))


def _function(code: ast.Module, run: Run) -> str | None:
    """Return the function that has the variables of the code, "" if none has; None if that is unknown, or not one."""
    used = {ast.unparse(node) for node in ast.walk(code) if isinstance(node, (ast.Name, ast.Attribute))}
    recorded: tuple[Loader | Optimizer | Model, ...] = (*run.loaders, *run.optimizers, *run.models)
    functions = {each.function for each in recorded if each.name and each.name in used}
    inside = functions - {""}  # variables of the notebook are visible in the function, too
    if not functions or len(inside) > 1:
        return None
    return inside.pop() if inside else ""


def _comment(code: ast.Module, function: str | None, above: str) -> str:
    if function:
        return f"# In {function}(), above the {above}:\n"
    names = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
    defined = {argument.arg for node in ast.walk(code) if isinstance(node, ast.arguments) for argument in node.args}
    if "self" in names - defined:
        return "# In the method with the loop, above the loop:\n"
    return ""


def _with_comment(fix: str, code: ast.Module, comment: str) -> str:
    """Return the code with what belongs to no function first, and the comment above the rest."""
    lines = fix.splitlines(keepends=True)
    imports = [node for node in code.body if isinstance(node, _IMPORTS)]
    imported = {alias.asname or alias.name.partition(".")[0] for node in imports for alias in node.names}
    definitions = [node for node in code.body if isinstance(node, _DEFINITIONS) and not _free_names(node) - imported]
    if not imports and not definitions:
        return comment + fix
    head = "".join(lines[line] for node in imports for line in _lines_of(node))
    parts = [head, *("".join(lines[line] for line in _lines_of(node)) for node in definitions)]
    top_lines = {line for node in (*imports, *definitions) for line in _lines_of(node)}
    rest = "".join(line for number, line in enumerate(lines) if number not in top_lines).lstrip("\n")
    top = "\n\n".join(part.rstrip("\n") for part in parts if part)
    return f"{_TOP_COMMENT}{top}\n\n{comment}" + re.sub(r"\n{3,}", "\n\n", rest)


def _lines_of(node: ast.stmt) -> range:
    decorators = node.decorator_list if isinstance(node, _DEFINITIONS) else []
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    return range(first - 1, node.end_lineno or node.lineno)


def _free_names(definition: ast.ClassDef | ast.FunctionDef) -> set[str]:
    """Return the names that a class or function uses and does not define itself, without built-in ones."""
    nodes = list(ast.walk(definition))
    used = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    definitions = {node.name for node in nodes if isinstance(node, _DEFINITIONS)}
    return used - stored - arguments - definitions - set(dir(builtins))
