"""The user's own variable names, so that printed fixes can be pasted; common names where none was recorded."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from keyword import iskeyword

from gpulab.rules.engine.finding import Finding
from gpulab.run import Loader, Run

_RECORDED_HERE = ("measured", "virtual")  # with hooks that saw the user's objects


@dataclass(frozen=True, kw_only=True)
class UserNames:
    """Variables or attributes as code, e.g. `self.model`."""

    loader: str = "loader"
    dataset: str = "loader.dataset"
    model: str = "model"
    optimizer: str = "optimizer"
    optimizer_kind: str = "AdamW"


def is_variable(name: str) -> bool:
    """Whether this is a variable or an attribute: `losses`, `self.losses`."""
    return all(part.isidentifier() and not iskeyword(part) for part in name.split("."))


def with_names_for_code(setup: Loader) -> Loader:
    """Return the settings with the names that code can hold; a file may hold any text."""
    return replace(
        setup,
        name=setup.name if setup.name and is_variable(setup.name) else None,
        other_settings=tuple(filter(is_variable, setup.other_settings)),
    )


def user_names(run: Run) -> UserNames:
    """Return the names recorded with this run, those of its first loader, model and optimizer."""
    return UserNames(**_recorded_names(run))


def acts_when_pasted(code: str) -> bool:
    """Whether code changes something by itself: more than functions, classes and imports."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    try:
        statements = ast.parse(code).body
    except SyntaxError:  # a shell command
        return False
    return not all(isinstance(statement, definitions) for statement in statements)


def can_be_tried(finding: Finding) -> bool:
    """Whether a trial can make the change that a finding proposes: by code, or by other arguments of a DataLoader."""
    return acts_when_pasted(finding.fix) or finding.loader_settings is not None


def is_worth_a_trial(finding: Finding) -> bool:
    """Whether a finding predicts a gain by a change that a trial can make."""
    return finding.gain is not None and can_be_tried(finding)


def fixes_to_try(finding: Finding) -> tuple[Finding, ...]:
    """Return the remedies of a finding that predict a gain by a change that a trial can make.

    The first one comes first, then the others by the least that they save.
    """
    others = sorted(finding.alternatives, key=lambda remedy: -remedy.least_saved_ns)
    return tuple(filter(is_worth_a_trial, (finding, *others)))


def missing_names(code: str, run: Run) -> tuple[str, ...]:
    """Return the objects that code needs and that were recorded, but no variable holds them: ("optimizer",).

    Code for objects that were not recorded, as in a trace from a file, is a template with common names.
    """
    if run.source.how not in _RECORDED_HERE:
        return ()
    recorded = {"loader": run.loaders, "model": run.models, "optimizer": run.optimizers}
    names = _recorded_names(run)
    unnamed = {kind for kind, objects in recorded.items() if objects and kind not in names}
    used = set(_free_names(code)) if unnamed else set()
    return tuple(name for name in sorted(unnamed) if getattr(UserNames, name) in used)


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
    # A file may hold any text; code has room for names only.
    return {name: value for name, value in recorded.items() if value and is_variable(value)}


def _free_names(code: str) -> Iterator[str]:
    """Yield the names that code reads and does not define itself: arguments, variables and imports."""
    nodes = list(ast.walk(ast.parse(code)))
    arguments = {node.arg for node in nodes if isinstance(node, ast.arg)}
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    yield from read - arguments
