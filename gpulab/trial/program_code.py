"""The code of a program that a trial runs: a cell, or a script and the files that it imports from its own folder."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gpulab.errors import CaptureError
from gpulab.rules import Finding
from gpulab.trial.fix_placement import place_fix


@dataclass(frozen=True)
class ProgramCode:
    """Parsed code. `noun`: what it is: "cell" or "script"."""

    main: ast.Module
    noun: str = "cell"
    files: Mapping[str, ast.Module] = field(default_factory=dict)  # other files of the program, by path
    changed: frozenset[str] = frozenset()  # those with a fix in them

    def with_fix(self, finding: Finding, namespace: Mapping[str, Any]) -> tuple[ProgramCode, str]:
        """Return the code with the fix of a finding, and where it is. Raises CaptureError if it has no place."""
        try:
            fix = place_fix(self.main, finding, namespace)
        except CaptureError as error:
            return self._with_fix_in_file(finding, error)
        return replace(self, main=fix.cell), fix.place_in(self.noun)

    def _with_fix_in_file(self, finding: Finding, error: CaptureError) -> tuple[ProgramCode, str]:
        """Return the code with the fix in the only other file that has a place for it. Raises `error` otherwise."""
        places = []
        for path, tree in self.files.items():
            if finding.function and finding.function not in _functions(tree):
                continue
            try:
                places.append((path, place_fix(tree, finding, {})))
            except CaptureError:
                continue
        if len(places) != 1:
            raise error
        path, fix = places[0]
        code = replace(self, files={**self.files, path: fix.cell}, changed=self.changed | {path})
        return code, fix.place_in(f"file {Path(path).name}")


def _functions(tree: ast.Module) -> set[str]:
    return {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
