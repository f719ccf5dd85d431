"""Text of views for a terminal: commands of the shell in place of those of a notebook."""

from __future__ import annotations

import re
from pathlib import Path

from gpulab.views.sheet.sheet import Block, Section, Sheet
from gpulab.views.sheet.text import sheet_text
from gpulab.views.sheet.view import View

_MAGICS = {
    "%gpuwhatif --help": "gpulab whatif --help",
    "%%gpuprofile": "gpulab run",
    "%gpuwhy": "gpulab why",
    "%gpuinfo": "gpulab info",
    "%gpureport": "gpulab report",
    "%gpucompare": "gpulab compare",
}
_FULL_REPORT = re.compile(r"gpulab\.report\([^,]*,\s+everything=True\)")
_WHATIF = re.compile(r'(?:gpulab\.whatif\((?:RUN|gpulab\.runs\[[^\]]*\]),\s+"([^"]*)"\))|(?:%gpuwhatif\s+(\S+))')


def terminal_text(view: View, file: Path | None = None, *, folded: bool = True) -> str:
    """Return a view as text; `file`: of its run, for commands; `folded=False` leaves out what a page shows folded."""
    blocks = view.sheet.blocks if folded else _unfolded(view.sheet.blocks)
    return in_shell_terms(sheet_text(Sheet(view.sheet.title, blocks)), file)


def in_shell_terms(text: str, file: Path | None = None) -> str:
    """Return a text with magics replaced by commands of the shell."""
    for magic, command in _MAGICS.items():
        text = text.replace(magic, command)
    text = _FULL_REPORT.sub(f"gpulab report {'RUN.gpulab' if file is None else file} --all", text)
    return _WHATIF.sub(lambda match: _whatif(match, file), text)


def _whatif(match: re.Match[str], file: Path | None) -> str:
    changes = (match[1] or "").replace(",", "")
    return f"gpulab whatif {'RUN.gpulab' if file is None else file} {changes}".rstrip()


def _unfolded(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
    return tuple(block for block in blocks if not (isinstance(block, Section) and block.folded))
