"""The user's own variable names, so that printed fixes can be pasted; common names where none was recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, fields

from gpulab.run import Loader, Run


@dataclass(frozen=True, kw_only=True)
class UserNames:
    """Variables or attributes as code, e.g. `self.model`."""

    loader: str = "loader"
    dataset: str = "loader.dataset"
    model: str = "model"
    optimizer: str = "optimizer"
    optimizer_kind: str = "AdamW"


def user_names(run: Run) -> UserNames:
    """Return the names recorded with this run, those of its first loader, model and optimizer."""
    return UserNames(**_recorded_names(run))


def missing_names(code: str, run: Run) -> tuple[str, ...]:
    """Return the objects that code needs and that no variable of the recorded program holds: ("optimizer",).

    A trace that was loaded from a file tells no names; code for it is a template, and () is returned.
    """
    if run.source.how != "measured" or not (run.loaders or run.models or run.optimizers):
        return ()
    recorded = _recorded_names(run)
    used = set(_free_names(code))
    unknown = (each for each in fields(UserNames) if each.name not in recorded and each.name in _OBJECTS)
    return tuple(each.name for each in unknown if each.default in used)


_OBJECTS = ("loader", "model", "optimizer")


def _recorded_names(run: Run) -> dict[str, str]:
    loader = next(iter(run.loaders), Loader())
    model = next((model.name for model in run.models if model.name), None)
    optimizer = next(iter(run.optimizers), None)
    recorded = {
        "loader": loader.name,
        "dataset": loader.dataset_name or (f"{loader.name}.dataset" if loader.name else None),
        "model": model,
        "optimizer": optimizer.name if optimizer else None,
        "optimizer_kind": optimizer.kind if optimizer else None,
    }
    return {name: value for name, value in recorded.items() if value}


def _free_names(code: str) -> Iterator[str]:
    """Yield the names that code reads and does not define itself: arguments, variables and imports."""
    nodes = list(ast.walk(ast.parse(code)))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    yield from read - arguments
