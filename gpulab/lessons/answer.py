"""Views of a lesson whose text is the same on every machine; measured times appear only in their HTML."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.views.sheet.sheet import Block, Sheet
from gpulab.views.sheet.text import text
from gpulab.views.sheet.view import View


@dataclass(frozen=True, eq=False, repr=False)
class Said(View):
    """A view whose text leaves out the measured times that its HTML shows, so that CI can compare the text."""

    steady: tuple[Block, ...] = ()
    line: str = ""  # the whole text, if it must stay on one line

    def __repr__(self) -> str:
        return self.line or text(Sheet(self.sheet.title, self.steady))


def said(title: str, steady: tuple[Block, ...], more: tuple[Block, ...] = ()) -> Said:
    """Return a view with `steady` as its text, and with `steady` followed by `more` as its HTML."""
    return Said(Sheet(title, (*steady, *more)), steady=steady)
