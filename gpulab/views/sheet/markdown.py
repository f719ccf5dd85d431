"""A sheet as Markdown, for pull requests and wikis; text from a run is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from html import escape

from gpulab.views.sheet.sheet import (
    Answer,
    Bar,
    Block,
    Code,
    Facts,
    Line,
    Row,
    Section,
    Sheet,
    TableBlock,
    Timeline,
    bar_text,
)
from gpulab.wording import clean, clean_code

_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~$])")


def sheet_markdown(sheet: Sheet) -> str:
    """Return the sheet as Markdown; pictures become their descriptions and tables."""
    return "\n".join((f"# {_safe(sheet.title)}", "", *_blocks(sheet.blocks, depth=2)))


def _blocks(blocks: Iterable[Block], depth: int) -> Iterator[str]:
    for block in blocks:
        yield from _block(block, depth)


def _block(block: Block, depth: int) -> Iterator[str]:
    if isinstance(block, Line):
        yield from (_safe(block.text), "")
    elif isinstance(block, Code):
        yield from _code(block.text)
    elif isinstance(block, Answer):
        yield from _answer(block)
    elif isinstance(block, Facts):
        yield from _pairs(block.rows)
    elif isinstance(block, TableBlock):
        yield from _table(block)
    elif isinstance(block, Timeline):
        yield from _picture(block)
    elif isinstance(block, Bar):
        for line in bar_text(block):
            yield from (_safe(line), "")
    else:
        yield from _section(block, depth)


def _section(section: Section, depth: int) -> Iterator[str]:
    yield from (f"{'#' * depth} {_safe(section.title)}", "")
    yield from _blocks(section.blocks, depth + 1)


def _answer(answer: Answer) -> Iterator[str]:
    yield from (f"**{_safe(answer.claim)}**", "")
    for line in answer.evidence:
        yield from (_safe(line), "")
    if answer.fix:
        yield from ("Fix:", "", *_code(answer.fix))
    if answer.advice:
        yield from (_safe(answer.advice), "")
    yield from _pairs(answer.facts)
    if answer.picture:
        yield from _picture(answer.picture)
    yield from _pairs(answer.notes)


def _pairs(pairs: Iterable[tuple[str, str]]) -> Iterator[str]:
    if pairs:
        yield from (f"- {_safe(name)}: {_safe(value)}" for name, value in pairs)
        yield ""


def _picture(picture: Timeline) -> Iterator[str]:
    yield from (_safe(picture.alt), "")
    if picture.table:
        yield from _table(picture.table)


def _code(code: str) -> Iterator[str]:
    # Code text could close a fence, but not an indented block.
    yield from (f"    {line}" for line in clean_code(code).split("\n"))
    yield ""


def _table(table: TableBlock) -> Iterator[str]:
    if table.caption:
        yield from (_safe(table.caption), "")
    yield _cells(map(_safe, table.header))
    yield _cells("---" if column < table.text_columns else "---:" for column in range(len(table.header)))
    yield from (_cells(_row(row)) for row in table.rows)
    yield ""


def _row(row: Row) -> Iterable[str]:
    mark = "" if row.kind == "plain" else "**"  # totals and groups in bold
    return (f"{mark}{_safe(cell)}{mark}" if cell.strip() else "" for cell in row.cells)


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(text: str) -> str:
    return _MARKUP.sub(r"\\\1", escape(clean(text, 1200), quote=False))
