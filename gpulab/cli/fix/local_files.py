"""The files that a script imports from its own folder, found without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

_MOST_FILES = 300


def local_files(path: Path, tree: ast.Module, folder: Path) -> Mapping[str, ast.Module]:
    """Return the parsed files below a folder that a program imports, directly or not, by path; at most 300.

    `path`, `tree`: of the program. `folder`: from which it imports modules. Files that cannot be read or do not
    compile are left out: Python says so when they are imported.
    """
    files: dict[str, ast.Module] = {}
    pending = [(path, tree)]
    while pending and len(files) < _MOST_FILES:
        importing, code = pending.pop()
        for module in _imports(code, importing, folder):
            with suppress(OSError, SyntaxError, ValueError):
                if str(module) not in files and module.resolve() != path.resolve():
                    files[str(module)] = ast.parse(module.read_bytes(), str(module))
                    pending.append((module, files[str(module)]))
    return files


def _imports(code: ast.Module, path: Path, folder: Path) -> Iterator[Path]:
    """Yield the files in the folder that code imports: modules, and the packages above them."""
    for node in ast.walk(code):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files_of(folder, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            parents = path.parents
            start = parents[node.level - 1] if 0 < node.level <= len(parents) else folder
            parts = node.module.split(".") if node.module else []
            yield from _files_of(start, parts)
            for alias in node.names:  # may be modules, too
                yield from _files_of(start, [*parts, alias.name])


def _files_of(folder: Path, parts: list[str]) -> Iterator[Path]:
    for length in range(1, len(parts) + 1):
        place = folder.joinpath(*parts[:length])
        for candidate in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
            if candidate.is_file():
                yield candidate
