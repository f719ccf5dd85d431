"""Find the condition of a failed claim that is false, with its values, from the code of the cell."""

from __future__ import annotations

import ast
import linecache
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
            return f"{_shorten(ast.unparse(operand))}{_values(operand, frame)}"
    return ""


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


def _values(operand: ast.expr, frame: FrameType) -> str:
    """Return the values of both sides of a comparison, as " (0.31 < 0.25)"; "" for another condition."""
    if not isinstance(operand, ast.Compare):
        return ""
    text = _text(_value(operand.left, frame))
    for symbol, right in zip(operand.ops, operand.comparators, strict=True):
        text += f" {_SYMBOLS[type(symbol)]} {_text(_value(right, frame))}"
    return f" ({text})"


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
