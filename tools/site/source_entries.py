"""Public classes and functions of modules that import a framework, from their source: the framework is not imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tools.site.targets import ROOT

Definition = ast.ClassDef | ast.FunctionDef


@dataclass(frozen=True)
class SourceEntry:
    """A class or a function as its source defines it."""

    node: Definition

    @property
    def is_class(self) -> bool:
        """Whether it is a class."""
        return isinstance(self.node, ast.ClassDef)

    @property
    def text(self) -> str:
        """Its docstring. Raises ValueError if it has none."""
        if text := ast.get_docstring(self.node):
            return text
        raise ValueError(f"{self.node.name} has no docstring")

    @property
    def signature(self) -> str:
        """Its parameters; of a class, those of its constructor, or of its fields."""
        if isinstance(self.node, ast.FunctionDef):
            return _parameters(self.node)
        constructors = [node for node in _functions(self.node) if node.name == "__init__"]
        return _parameters(constructors[0]) if constructors else ""


@cache
def source_entry(module: str, name: str) -> SourceEntry:
    """Return what a module defines under a name. Raises LookupError if it defines nothing."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, Definition) and node.name == name:
            return SourceEntry(node)
    raise LookupError(f"{module} does not define {name}")


def _functions(node: ast.ClassDef) -> Iterator[ast.FunctionDef]:
    return (child for child in node.body if isinstance(child, ast.FunctionDef))


def _parameters(node: ast.FunctionDef) -> str:
    arguments = node.args
    arguments.args = [argument for argument in arguments.args if argument.arg != "self"]
    result = "" if node.returns is None or node.name == "__init__" else f" -> {ast.unparse(node.returns)}"
    return f"({ast.unparse(arguments)}){result}"
