"""A table as HTML that survives JupyterLab's sanitizer, and the styles and texts that it shares with other blocks."""

from __future__ import annotations

import re
from html import escape

from gpulab.views.sheet.palette import LINE_COLOUR, cell_background, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import clean

SOFT = "opacity:.78"
SMALL = "font-size:.88em"
KEEP_COLOUR = "forced-color-adjust:none"  # of a background that means something, in high-contrast themes
TABLE_STYLE = (
    "border-collapse:collapse;table-layout:auto;width:auto;max-width:100%;margin:0 0 10px;border:none;font-size:.95em"
)
_MOST_SPACES, _SHORT_NAME = 2, 12  # in a cell of one line; letters of a row's name that stays on one line
_LONG_WORD = 20  # letters of a word that a narrow page has no room for
_DATE = re.compile(r"\d{4}-\d\d")
_RANGE, _MINUS = re.compile(r"(?<=\d)-(?=[<&\d])"), re.compile(r"(?<![\w.-])-(?=\d)")
_TEXT_CELL = "text-align:left;vertical-align:top;padding:3px 12px 3px 0"
_NUMBER_CELL = (
    "text-align:right;vertical-align:top;padding:3px 0 3px 10px;white-space:nowrap;font-variant-numeric:tabular-nums"
)


def safe_text(text: str, most: int = 1200) -> str:
    """Return text for HTML: without invisible characters, escaped, and cut to `most` characters."""
    return escape(clean(text, most))


def with_arrows(text: str) -> str:
    """Return text for HTML with typographic arrows, as between the values of "67 % -> 24 %"."""
    return safe_text(text).replace(" -&gt; ", " → ")


def typeset(text: str) -> str:
    """Return a line written by gpulab for HTML, with typographic arrows and dashes in place of ASCII."""
    html = with_arrows(text)
    return html if _DATE.search(html) else _RANGE.sub("\N{EN DASH}", html)


def _number(cell: str) -> str:
    """Return a cell of a column of numbers with typographic minus signs, and dashes in ranges; dates are unchanged."""
    if _DATE.search(cell):
        return cell
    return _MINUS.sub("\N{MINUS SIGN}", _RANGE.sub("\N{EN DASH}", cell))


def table_html(table: TableBlock) -> str:
    """Return a table as HTML."""
    head = "".join(_heading(name, _cell(column, table.text_columns)) for column, name in enumerate(table.header))
    header = f'<thead><tr style="background:none;border-bottom:1px solid {LINE_COLOUR}">{head}</tr></thead>'
    body = "".join(_row(row, table.text_columns) for row in table.rows)
    caption = f'<div style="margin:0 0 4px;{SMALL};{SOFT}">{safe_text(table.caption)}</div>' if table.caption else ""
    grid = f'<table style="{TABLE_STYLE}">{header if any(table.header) else ""}<tbody>{body}</tbody></table>'
    return f'{caption}<div style="overflow-x:auto">{grid}</div>'


def _heading(name: str, style: str) -> str:
    """Return a cell of the header; one without a name is no heading."""
    style = f"{style};white-space:normal;font-weight:400;{SOFT}"
    return f'<th scope="col" style="{style}">{safe_text(name)}</th>' if name else f'<td style="{style}"></td>'


def _cell(column: int, left: int) -> str:
    return _TEXT_CELL if column < left else _NUMBER_CELL


def _row(row: Row, left: int) -> str:
    first, *rest = (safe_text(cell, 300) for cell in row.cells)
    weight = "font-weight:600" if row.kind != "plain" else "font-weight:400"
    # A hanging indent as wide as the swatch, so that a second line aligns with the first.
    indent = ";padding:3px 12px 3px 18px;text-indent:-18px" if row.key else ""
    line = f";border-top:1px solid {LINE_COLOUR}" if row.kind == "total" else ""
    unbroken = ";white-space:nowrap" if len(first) <= _SHORT_NAME else ""
    breaking = ";overflow-wrap:anywhere" if any(len(word) > _LONG_WORD for word in first.split()) else ""
    shades = (*row.shades, *[0.0] * len(rest))
    written = [cell if n + 1 < left else _number(cell) for n, cell in enumerate(rest)]
    cells = "".join(
        f'<td style="{_cell(n + 1, left)}{_wrapping(cell)}{_shaded(shades[n])};{weight}">{cell}</td>'
        for n, cell in enumerate(written)
    )
    return (
        f'<tr style="background:none{line}">'
        f'<th scope="row" style="{_cell(0, left)}{indent}{unbroken}{breaking};{weight}">'
        f"{swatch(row.key) if row.key else ''}{first}</th>{cells}</tr>"
    )


def _shaded(shade_frac: float) -> str:
    return f";padding:3px 8px 3px 10px;background:{cell_background(shade_frac)}" if shade_frac > 0 else ""


def _wrapping(cell: str) -> str:
    """Let a cell of several words have several lines; a number stays beside its unit."""
    return ";white-space:normal" if cell.count(" ") > _MOST_SPACES else ""


def swatch(key: str) -> str:
    """Return a small square in the colour of a part of the ledger."""
    return (
        f'<span style="display:inline-block;width:10px;height:10px;margin:0 8px 0 0;border-radius:2px;'
        f'background:{colour(key)};{KEEP_COLOUR}"></span>'
    )
