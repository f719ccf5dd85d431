"""Other arguments for a DataLoader that no variable of the loop holds: in the call that creates or configures it."""

from __future__ import annotations

import ast
import copy

from gpulab.rules.engine.finding import LoaderSettings
from gpulab.trial.placed_fix import PlacedFix, without_place
from gpulab.wording import count

_MOST_POSITIONAL = 3  # of a DataLoader's arguments: dataset, batch_size, shuffle


def change_loader_call(cell: ast.Module, settings: LoaderSettings) -> PlacedFix:
    """Return the cell with other arguments in the only call, such as `DataLoader(...)`, that the settings describe.

    Raises CaptureError if there is none, or more than one.
    """
    changed = copy.deepcopy(cell)
    calls = _loader_calls(changed, settings)
    if len(calls) != 1:
        raise without_place(_number_of_calls(settings, len(calls)))
    call = calls[0]
    if len(call.args) > _MOST_POSITIONAL:
        raise without_place("the code passes these arguments to its DataLoader by position")
    dropped = {*settings.arguments, *settings.dropped}
    keywords = [keyword for keyword in call.keywords if keyword.arg not in dropped]
    changes = settings.arguments.items()
    call.keywords = [*(ast.keyword(name, ast.Constant(value)) for name, value in changes), *keywords]
    text = ", ".join(f"{name}={value}" for name, value in changes)
    return PlacedFix(ast.fix_missing_locations(changed), call.lineno, settings=text, call=settings.call)


def has_loader_call(cell: ast.Module, settings: LoaderSettings) -> bool:
    """Whether exactly one call of the cell is the one that the settings describe."""
    return len(_loader_calls(cell, settings)) == 1


def _loader_calls(cell: ast.Module, settings: LoaderSettings) -> list[ast.Call]:
    calls = _calls_of(cell, settings.call)
    if not settings.any_dataset:
        return [call for call in calls if _dataset_of(call) == settings.dataset]
    functions = [node for node in ast.walk(cell) if isinstance(node, ast.FunctionDef)]
    hooks = {node.name: _calls_of(node, settings.call) for node in functions if node.name.endswith("_dataloader")}
    others = [call for name, inside in hooks.items() if name != settings.function for call in inside]
    return hooks.get(settings.function) or [call for call in calls if call not in others]


def _calls_of(code: ast.AST, name: str) -> list[ast.Call]:
    return [node for node in ast.walk(code) if isinstance(node, ast.Call) and _name(node.func) == name]


def _number_of_calls(settings: LoaderSettings, number_of_calls: int) -> str:
    if settings.any_dataset:
        return f"the code has {count(number_of_calls, 'call')} of {settings.call}"
    dataset = f"of {settings.dataset}" if settings.dataset else "of a dataset without a name"
    return f"the code creates {count(number_of_calls, 'DataLoader')} {dataset}"


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _dataset_of(call: ast.Call) -> str | None:
    """Return the variable that a DataLoader gets as its dataset; None for any other expression."""
    first = call.args[:1] or [keyword.value for keyword in call.keywords if keyword.arg == "dataset"]
    return ast.unparse(first[0]) if first and isinstance(first[0], (ast.Name, ast.Attribute)) else None
