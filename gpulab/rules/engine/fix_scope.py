"""Which function of the user's the code of a fix belongs to: the one that has the variables it uses."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from gpulab.rules.engine.finding import Finding
from gpulab.run import Loader, Model, Optimizer, Run

_IMPORTS = (ast.Import, ast.ImportFrom)
_IMPORTS_COMMENT = "# At the top of the notebook or file, outside of functions:\n"


def with_scope(finding: Finding, run: Run) -> Finding:
    """Return the finding with the function that its code belongs to, and a comment in the code that says so.

    The imports get a comment of their own: inside a function, an import would hide the name from the lines before it.
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
    comment = _comment(code, function)
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


def _comment(code: ast.Module, function: str | None) -> str:
    if function:
        return f"# In {function}(), above the loop:\n"
    names = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
    defined = {argument.arg for node in ast.walk(code) if isinstance(node, ast.arguments) for argument in node.args}
    if "self" in names - defined:
        return "# In the method with the loop, above the loop:\n"
    return ""


def _with_comment(fix: str, code: ast.Module, comment: str) -> str:
    """Return the code with its imports first, and the comment above the rest."""
    lines = fix.splitlines(keepends=True)
    imports = [node for node in code.body if isinstance(node, _IMPORTS)]
    if not imports:
        return comment + fix
    import_lines = {line for node in imports for line in range(node.lineno - 1, node.end_lineno or node.lineno)}
    head = [lines[line] for line in sorted(import_lines)]
    rest = "".join(line for number, line in enumerate(lines) if number not in import_lines).lstrip("\n")
    return "".join((_IMPORTS_COMMENT, *head, "\n", comment, re.sub(r"\n{3,}", "\n\n", rest)))
