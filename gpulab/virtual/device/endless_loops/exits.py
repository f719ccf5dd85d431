"""The `while` loops of a source file and the conditions that end them, read from the program's syntax tree."""

from __future__ import annotations

import ast
import functools
import linecache
from dataclasses import dataclass
from types import FrameType

_MAX_SOURCES = 64
_LEAVES = (ast.Break, ast.Return, ast.Raise)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LOOPS = (ast.While, ast.For, ast.AsyncFor)
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")
_BUILTINS = frozenset({"bool", "int", "float", "len", "abs", "min", "max", "all", "any"})


@dataclass(frozen=True)
class Loop:
    """A loop around a line of a program."""

    first_line: int
    is_while: bool
    source: str  # its first line
    reads_exit: bool = False  # the line decides whether the loop ends
    has_other_exit: bool = True  # something else than values of tensors may end it, too
    outer_variables: tuple[str, ...] = ()  # of the `for` loops around it


def innermost_loop(frame: FrameType) -> Loop | None:
    """Return the innermost loop around the line that a frame executes; None outside loops."""
    if frame.f_code.co_name in _COMPREHENSIONS:
        return Loop(frame.f_lineno, False, "")
    return _loop_at(frame.f_code.co_filename, frame.f_code.co_firstlineno, frame.f_code.co_name, frame.f_lineno)


@functools.lru_cache(maxsize=4096)
def _loop_at(filename: str, scope_line: int, scope_name: str, line: int) -> Loop | None:
    tree = _syntax_tree(filename)
    if tree is None:
        return None
    scope = _scope_of(tree, scope_line, scope_name)
    loops = [node for node in _nodes_of(scope) if isinstance(node, _LOOPS) and _is_within(line, node)]
    if not loops:
        return None
    loop = max(loops, key=lambda node: node.lineno)
    text = linecache.getline(filename, loop.lineno).strip()
    if not isinstance(loop, ast.While):
        return Loop(loop.lineno, False, text)
    if any(isinstance(node, _SCOPES[-1:]) and _is_within(line, node) for node in ast.walk(loop)):
        return Loop(loop.lineno, False, text)
    tests = _exit_tests(loop)
    outer = [node for node in loops if isinstance(node, ast.For | ast.AsyncFor)]
    variables = tuple(sorted(name for node in outer for name in _names(node.target)))
    return Loop(loop.lineno, True, text, _feeds(line, loop, tests), _has_other_exit(line, loop, tests), variables)


def _has_other_exit(line: int, loop: ast.While, tests: list[ast.expr]) -> bool:
    """Return whether anything but the values of tensors read at this line may end the loop."""
    if any(isinstance(node, ast.Try | ast.Yield | ast.YieldFrom | ast.Await) for node in ast.walk(loop)):
        return True
    names = _assigned_names(line, loop)
    for test in tests:
        is_read_here = _is_within(line, test) or bool(names & _names(test))
        if not is_read_here or not _reads_only_tensors(test):
            return True
    return False


def _reads_only_tensors(test: ast.expr) -> bool:
    import torch

    for node in ast.walk(test):
        if isinstance(node, ast.BoolOp):
            return False
        if isinstance(node, ast.Call):
            function = node.func
            is_builtin = isinstance(function, ast.Name) and function.id in _BUILTINS
            is_of_tensor = isinstance(function, ast.Attribute) and hasattr(torch.Tensor, function.attr)
            if not (is_builtin or is_of_tensor):
                return False
    return True


def _feeds(line: int, loop: ast.While, tests: list[ast.expr]) -> bool:
    """Return whether a value read at this line decides an exit of the loop, directly or through a variable."""
    if any(_is_within(line, test) for test in tests):
        return True
    names = _assigned_names(line, loop)
    return any(names & _names(test) for test in tests)


def _assigned_names(line: int, loop: ast.While) -> frozenset[str]:
    """Return the variables that the statement at this line assigns."""
    names: set[str] = set()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr) and _is_within(line, node):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names |= _names(target)
    return frozenset(names)


def _exit_tests(loop: ast.While) -> list[ast.expr]:
    """Return the conditions that end a loop: its test, and those of `if` statements that leave it."""
    tests = [] if isinstance(loop.test, ast.Constant) else [loop.test]
    conditions = [node for node in _nodes_of(loop) if isinstance(node, ast.If | ast.Assert)]
    tests += [node.test for node in conditions if isinstance(node, ast.Assert) or _leaves_in_branch(node)]
    return tests


def _leaves_in_branch(condition: ast.If) -> bool:
    return any(_leaves(statement) for statement in (*condition.body, *condition.orelse))


def _leaves(statement: ast.stmt) -> bool:
    """Return whether a statement leaves the loop; a `break` inside an inner loop does not."""
    if isinstance(statement, _LEAVES):
        return True
    if isinstance(statement, _SCOPES):
        return False
    leaves = (ast.Return, ast.Raise) if isinstance(statement, _LOOPS) else _LEAVES
    return any(isinstance(node, leaves) for node in _nodes_of(statement))


def _nodes_of(scope: ast.AST) -> list[ast.AST]:
    """Return the nodes inside a function, module or statement, without those of functions and classes in it."""
    nodes: list[ast.AST] = []
    open_nodes = list(ast.iter_child_nodes(scope))
    while open_nodes:
        node = open_nodes.pop()
        nodes.append(node)
        if not isinstance(node, _SCOPES[:-1]):
            open_nodes += ast.iter_child_nodes(node)
    return nodes


def _scope_of(tree: ast.Module, first_line: int, name: str) -> ast.AST:
    """Return the function whose code begins at a line; the module if there is none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            lines = {node.lineno, *(decorator.lineno for decorator in node.decorator_list)}
            if first_line in lines:
                return node
    return tree


def _names(node: ast.AST) -> set[str]:
    attributes = {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}
    return attributes | {child.id for child in ast.walk(node) if isinstance(child, ast.Name)} - {"self"}


def _is_within(line: int, node: ast.AST) -> bool:
    first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
    return first <= line <= last


@functools.lru_cache(maxsize=_MAX_SOURCES)
def _syntax_tree(filename: str) -> ast.Module | None:
    source = "".join(linecache.getlines(filename))
    if not source:
        return None
    try:
        return ast.parse(source)
    except SyntaxError:  # a cell with magics
        return None
