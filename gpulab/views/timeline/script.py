"""Bundles the timeline's scripts into one, for a notebook or a page: every file follows the files that it imports.

There is no build step. The files are plain ES modules that import each other by name. The bundle drops the imports, so
top-level names must be unique among the files.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

SCRIPT_FOLDER = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import\s*\{[^}]*\}\s*from\s*"(\.[\w./]+)";\n', re.MULTILINE)
_EXPORTS = re.compile(r"^export\s*\{[^}]*\};\n?", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async |function|class|const|let)\b)", re.MULTILINE)


def bundle_script(name: str) -> str:
    """Return a file with everything that it imports, in order; of its exports only `export default` is kept."""
    return "\n".join(_without_imports(file) for file in _dependencies(name, []))


def stylesheet() -> str:
    """Return the style sheet."""
    return (SCRIPT_FOLDER / "timeline.css").read_text(encoding="utf-8")


def _dependencies(name: str, files: list[str]) -> list[str]:
    """Append a file to `files`, after the files that it imports."""
    for relative in _IMPORT.findall(_text(name)):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))
        if other not in files:
            _dependencies(other, files)
    if name not in files:
        files.append(name)
    return files


def _without_imports(name: str) -> str:
    text = _text(name)
    for pattern in (_IMPORT, _EXPORTS, _EXPORT):
        text = pattern.sub("", text)
    return text


def _text(name: str) -> str:
    return (SCRIPT_FOLDER / name).read_text(encoding="utf-8")
