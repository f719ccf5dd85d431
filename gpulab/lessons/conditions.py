"""Find the condition of a failed claim that is false, with its values, from the code of the cell."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Sequence
from types import CodeType, FrameType
from typing import Any

import numpy as np

from gpulab.wording import number

_MAX_CHARS = 100
_SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.In: "in",
    ast.NotIn: "not in",
    ast.Is: "is",
    ast.IsNot: "is not",
}


def false_condition(frame: FrameType, method: str, parameter: str, position: int) -> str:
    """Return the first operand of `and` that is false, such as "after < 0.5 * before (0.31 < 0.25)"; else "".

    `frame` is in the middle of a call of `method`, whose argument `parameter` or number `position` is the condition.
    The operands are evaluated again, in their order and up to the first that is false, as `and` does.
    """
    source = "".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))
    call = _find_call(source, method, frame.f_lineno)
    condition = None if call is None else _argument(call, parameter, position)
    if condition is None:
        return ""
    try:
        return _first_false(condition, frame)
    except Exception:  # any code may stand in a condition, and evaluated again it may raise anything: next(iterator)
        return ""


def _first_false(condition: ast.expr, frame: FrameType) -> str:
    for operand in _operands(condition):
        if not isinstance(operand, ast.Name | ast.Constant) and not _value(operand, frame):
            return f"{_shorten(ast.unparse(operand))}{_values(operand, frame)}{_false_element(operand, frame)}"
    return ""


def _false_element(operand: ast.expr, frame: FrameType) -> str:
    """Return for which element `all(... for ... in ...)` is false, as ": false for x = 3 (3 < 2)"; else ""."""
    if not (isinstance(operand, ast.Call) and ast.unparse(operand.func) == "all" and len(operand.args) == 1):
        return ""
    loop = operand.args[0]
    if not isinstance(loop, ast.GeneratorExp | ast.ListComp):
        return ""
    targets = [node for one in loop.generators for node in ast.walk(one.target) if isinstance(node, ast.Name)]
    names = sorted({node.id for node in targets})
    values = [ast.Name(name, ast.Load()) for name in names]
    sides = [loop.elt.left, *loop.elt.comparators] if isinstance(loop.elt, ast.Compare) else []
    parts = [loop.elt, *(ast.Tuple(list(items), ast.Load()) for items in (values, sides))]
    rows = _value(ast.fix_missing_locations(ast.ListComp(ast.Tuple(parts, ast.Load()), loop.generators)), frame)
    for holds, named_values, side_values in rows:
        if not holds:
            element = ", ".join(f"{name} = {_text(value)}" for name, value in zip(names, named_values, strict=True))
            return f": false for {element}{_compared(loop.elt, side_values)}"
    return ""


def _values(operand: ast.expr, frame: FrameType) -> str:
    """Return the values of both sides of a comparison, as " (0.31 < 0.25)"; "" for another condition."""
    sides = [operand.left, *operand.comparators] if isinstance(operand, ast.Compare) else []
    return _compared(operand, [_value(side, frame) for side in sides])


def _compared(operand: ast.expr, sides: Sequence[Any]) -> str:
    """Return the values of the sides of a comparison with its symbols in parentheses; "" for another condition."""
    if not isinstance(operand, ast.Compare):
        return ""
    text = _text(sides[0])
    for symbol, side in zip(operand.ops, sides[1:], strict=True):
        text += f" {_SYMBOLS[type(symbol)]} {_text(side)}"
    return f" ({text})"


def _find_call(source: str, method: str, line: int) -> ast.Call | None:
    try:
        nodes = ast.walk(ast.parse(source))
    except SyntaxError:  # not every source is kept as Python
        return None
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] == method
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return calls[0] if len(calls) == 1 else None  # two calls on one line cannot be told apart


def _argument(call: ast.Call, parameter: str, position: int) -> ast.expr | None:
    by_name = next((keyword.value for keyword in call.keywords if keyword.arg == parameter), None)
    return by_name or (call.args[position] if len(call.args) > position else None)


def _operands(condition: ast.expr) -> list[ast.expr]:
    """Return the operands of nested `and`s; a condition without `and` is its only operand."""
    if isinstance(condition, ast.BoolOp) and isinstance(condition.op, ast.And):
        return [operand for value in condition.values for operand in _operands(value)]
    return [condition]


def _value(expression: ast.expr, frame: FrameType) -> Any:
    code: CodeType = compile(ast.Expression(expression), "<condition>", "eval")
    return eval(code, {**frame.f_globals, **frame.f_locals})  # the code of the cell, which has just run


def _text(value: Any) -> str:
    if isinstance(value, float | np.floating):
        return number(float(value)) if np.isfinite(value) else str(float(value))
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}"
    return _shorten(str(value))


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_CHARS else f"{text[: _MAX_CHARS - 3]}..."
