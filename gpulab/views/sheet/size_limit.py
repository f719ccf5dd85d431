"""Limit the size of a sheet, so that a small file cannot make a page of many megabytes; what is cut is counted.

A list keeps its first entries, and a sheet stops where its characters reach a limit. Ordinary sheets are far below.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from gpulab.views.sheet.sheet import Answer, Bar, Block, Facts, Line, Row, Section, Sheet, TableBlock, Timeline
from gpulab.wording import count

MAX_ENTRIES = 200  # of a list, a table or a section
MAX_CHARACTERS = 250_000  # of a sheet; HTML takes about three bytes for each
_MAX_TEXT = 1200  # of one text: views cut longer ones
_MARKUP = 200  # characters of markup around a text, about


def limit_sheet(sheet: Sheet) -> Sheet:
    """Return the sheet with at most `MAX_ENTRIES` entries in each list and about `MAX_CHARACTERS` in all."""
    budget = _Budget(MAX_CHARACTERS)
    blocks = _limit_blocks(sheet.blocks, budget)
    return sheet if blocks == sheet.blocks else replace(sheet, blocks=blocks)


class _Budget:
    """The characters that are left for a sheet."""

    def __init__(self, characters: int) -> None:
        self.left = characters

    def take(self, texts: Iterable[str]) -> bool:
        """Take the characters of these texts; return whether they fit."""
        self.left -= sum(min(len(text), _MAX_TEXT) + _MARKUP for text in texts)
        return self.left >= 0


def _limit_blocks(blocks: tuple[Block, ...], budget: _Budget) -> tuple[Block, ...]:
    limited: list[Block] = []
    for block in blocks[:MAX_ENTRIES]:
        if budget.left < 0:
            break
        limited.append(_limit_block(block, budget))
    if len(limited) < len(blocks):
        limited.append(Line(_cut(len(blocks) - len(limited)), soft=True))
    return tuple(limited)


def _limit_block(block: Block, budget: _Budget) -> Block:
    if isinstance(block, Section):
        budget.take((block.title,))
        return replace(block, blocks=_limit_blocks(block.blocks, budget))
    if isinstance(block, Facts):
        return Facts(_limit_pairs(block.rows, budget))
    if isinstance(block, TableBlock):
        return _limit_table(block, budget)
    if isinstance(block, Answer):
        evidence = _limit_lines(block.evidence, budget)
        facts, notes = _limit_pairs(block.facts, budget), _limit_pairs(block.notes, budget)
        budget.take((block.claim, block.fix, block.advice))
        return replace(block, evidence=evidence, facts=facts, notes=notes)
    if isinstance(block, Timeline):
        budget.take((block.alt, *block.lane_names))
        return replace(block, table=_limit_table(block.table, budget)) if block.table else block
    budget.take((block.title,) if isinstance(block, Bar) else (block.text,))
    return block


def _limit_table(table: TableBlock, budget: _Budget) -> TableBlock:
    rows = tuple(row for row in table.rows[:MAX_ENTRIES] if budget.take(row.cells))
    missing = len(table.rows) - len(rows)
    if not missing:
        return table
    rest = Row((_cut(missing), *[""] * (len(table.header) - 1)))
    return replace(table, rows=(*rows, rest))


def _limit_lines(lines: tuple[str, ...], budget: _Budget) -> tuple[str, ...]:
    limited = tuple(line for line in lines[:MAX_ENTRIES] if budget.take((line,)))
    return (*limited, _cut(len(lines) - len(limited))) if len(limited) < len(lines) else lines


def _limit_pairs(pairs: tuple[tuple[str, str], ...], budget: _Budget) -> tuple[tuple[str, str], ...]:
    limited = tuple(pair for pair in pairs[:MAX_ENTRIES] if budget.take(pair))
    return (*limited, ("...", _cut(len(pairs) - len(limited)))) if len(limited) < len(pairs) else pairs


def _cut(missing: int) -> str:
    return f"{count(missing, 'more entry', 'more entries')} not shown: the page would be too large."
