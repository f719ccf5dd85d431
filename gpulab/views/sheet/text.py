"""A sheet as plain text: for terminals, screen readers, logs and tests. At most 100 columns, except code."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator

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

WIDTH = 100


def sheet_text(sheet: Sheet) -> str:
    """Return the whole sheet, including folded sections, as text."""
    return "\n".join(_blocks(sheet.blocks, WIDTH))


def _blocks(blocks: Iterable[Block], width: int) -> Iterator[str]:
    for block in blocks:
        yield from _block(block, width)


def _block(block: Block, width: int) -> Iterator[str]:
    if isinstance(block, Line):
        yield from _wrapped(block.text, width)
    elif isinstance(block, Code):
        yield from _code(block.text)
    elif isinstance(block, Answer):
        yield from _answer(block, width)
    elif isinstance(block, Facts):
        yield from _pairs(block.rows, width)
    elif isinstance(block, TableBlock):
        yield from _table(block, width)
    elif isinstance(block, Timeline):
        yield from _picture(block, width)
    elif isinstance(block, Bar):
        yield from (line for share in bar_text(block) for line in _wrapped(share, width))
    elif isinstance(block, Section):
        yield from ("", clean(block.title))
        yield from _indented(_blocks(block.blocks, width - 2))


def _answer(answer: Answer, width: int) -> Iterator[str]:
    if answer.leading:
        yield from _wrapped(answer.claim, width, hang=0)
        yield from _answer_body(answer, width)
    else:
        yield from _wrapped(f"- {answer.claim}", width)
        yield from _indented(_answer_body(answer, width - 2))


def _answer_body(answer: Answer, width: int) -> Iterator[str]:
    for line in answer.evidence:
        yield from _wrapped(line, width)
    if answer.fix:
        fix = clean_code(answer.fix)
        yield from (f"Fix: {fix}",) if "\n" not in fix else ("Fix:", *_code(answer.fix))
    if answer.advice:
        yield from _wrapped(answer.advice, width)
    yield from _pairs(answer.facts, width)
    if answer.picture:
        yield from _picture(answer.picture, width)
    yield from _pairs(answer.notes, width)


def _pairs(pairs: Iterable[tuple[str, str]], width: int) -> Iterator[str]:
    for name, value in pairs:
        yield from _wrapped(f"{name}: {value}", width)


def _picture(picture: Timeline, width: int) -> Iterator[str]:
    yield from _wrapped(picture.alt, width)
    if picture.table:
        yield from _table(picture.table, width)


def _indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"  {line}".rstrip() for line in lines)


def _code(code: str) -> Iterator[str]:
    return (f"    {line}".rstrip() for line in clean_code(code).split("\n"))


def _wrapped(line: str, width: int, hang: int = 2) -> list[str]:
    wrap = textwrap.TextWrapper(width, subsequent_indent=" " * hang, break_on_hyphens=False)
    return wrap.wrap(clean(line, 1200)) or [""]


def _table(table: TableBlock, width: int) -> Iterator[str]:
    if table.caption:
        yield from _wrapped(table.caption, width)
    rows = [_cells(row) for row in table.rows]
    header = [clean(cell, 60) for cell in table.header]
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    if sum(widths) + 2 * (len(widths) - 1) > width:
        yield from _stacked(header, rows, width)
        return
    if any(header):
        yield _spaced(header, widths, table.text_columns)
    yield from (_spaced(row, widths, table.text_columns) for row in rows)


def _cells(row: Row) -> list[str]:
    cells = [clean(cell, 300) for cell in row.cells]
    return [f"  {cells[0]}", *cells[1:]] if row.key is not None and row.kind == "plain" else cells


def _spaced(cells: list[str], widths: list[int], left: int) -> str:
    padded = (
        cell.ljust(width) if column < left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join(padded).rstrip()


def _stacked(header: list[str], rows: list[list[str]], width: int) -> Iterator[str]:
    """Return a table that is too wide for a line, each row as a paragraph."""
    for row in rows:
        first, *rest = row
        yield from _wrapped(first.strip(), width)
        for name, cell in zip(header[1:], rest, strict=True):
            yield from _indented(_wrapped(f"{name}: {cell}" if name else cell, width - 2))
