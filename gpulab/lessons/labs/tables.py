"""Tables for notebook cells, in the style of gpulab's reports."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulab.views.sheet.sheet import Block, Line, Row, Sheet, TableBlock
from gpulab.views.sheet.view import View


def table_view(header: Sequence[str], lines: Iterable[Sequence[object]], *, left: int = 1, below: str = "") -> View:
    """Return a table as a view, to end a cell with. All columns after the first `left` ones are numbers.

    `below`: a sentence under the table, such as the source of the numbers.
    """
    table_rows = tuple(Row(tuple(str(each) for each in line)) for line in lines)
    blocks: list[Block] = [TableBlock(header=tuple(header), rows=table_rows, text_columns=left)]
    if below:
        blocks.append(Line(below, soft=True))
    return View(Sheet("gpulab: a table", tuple(blocks)))
