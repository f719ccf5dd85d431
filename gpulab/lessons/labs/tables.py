"""A few figures side by side, in the form that a report has its tables: for cells of a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gpulab.views.sheet.sheet import Block, Line, Row, Sheet, Table
from gpulab.views.sheet.view import View


def rows(header: Sequence[str], lines: Iterable[Sequence[object]], *, left: int = 1, below: str = "") -> View:
    """Lines under a header, to be shown at the end of a cell; all columns but the first `left` ones are numbers.

    `below`: a sentence under it, such as where the figures come from.
    """
    told = tuple(Row(tuple(str(each) for each in line)) for line in lines)
    blocks: list[Block] = [Table(header=tuple(header), rows=told, left=left)]
    if below:
        blocks.append(Line(below, soft=True))
    return View(Sheet("gpulab: a table", tuple(blocks)))
