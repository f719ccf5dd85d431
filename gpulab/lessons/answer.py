"""Said: what a lesson answers. Its text is the same on every machine; what a clock measured is in its HTML alone."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.views.sheet.sheet import Block, Sheet
from gpulab.views.sheet.text import text
from gpulab.views.sheet.view import View


@dataclass(frozen=True, eq=False, repr=False)
class Said(View):
    """A sheet whose text says less than its HTML: what a clock measured is in the HTML alone."""

    steady: tuple[Block, ...] = ()
    line: str = ""  # all of the text, where it must stay one line

    def __repr__(self) -> str:
        return self.line or text(Sheet(self.sheet.title, self.steady))


def said(title: str, steady: tuple[Block, ...], more: tuple[Block, ...] = ()) -> Said:
    """A view of `steady`, in its HTML followed by `more`."""
    return Said(Sheet(title, (*steady, *more)), steady=steady)
