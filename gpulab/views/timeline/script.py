"""The scripts of the timeline as one, for a notebook or for a page: what each file imports comes before it.

There is no build step. The files are plain ES modules that import each other by name; put together, the imports fall
away, so a name is used once among them.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

HERE = Path(__file__).parent / "js"
_IMPORT = re.compile(r'^import\s*\{[^}]*\}\s*from\s*"(\.[\w./]+)";\n', re.MULTILINE)
_EXPORTS = re.compile(r"^export\s*\{[^}]*\};\n?", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async |function|class|const|let)\b)", re.MULTILINE)


def script(name: str) -> str:
    """This file and all that it imports, in order; only an `export default` stays."""
    return "\n".join(_bare(each) for each in _in_order(name, []))


def style() -> str:
    """The style sheet."""
    return (HERE / "timeline.css").read_text(encoding="utf-8")


def _in_order(name: str, found: list[str]) -> list[str]:
    for relative in _IMPORT.findall(_text(name)):
        other = posixpath.normpath(posixpath.join(posixpath.dirname(name), relative))
        if other not in found:
            _in_order(other, found)
    if name not in found:
        found.append(name)
    return found


def _bare(name: str) -> str:
    text = _text(name)
    for pattern in (_IMPORT, _EXPORTS, _EXPORT):
        text = pattern.sub("", text)
    return text


def _text(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8")
