"""Views of a lesson whose text is the same on every machine; measured times appear only in their HTML."""

from __future__ import annotations

from dataclasses import dataclass

from gpulab.views.sheet.sheet import Block, Sheet
from gpulab.views.sheet.text import sheet_text
from gpulab.views.sheet.view import View


@dataclass(frozen=True, eq=False, repr=False)
class LessonView(View):
    """A view whose text leaves out the measured times that its HTML shows, so that CI can compare the text."""

    stable: tuple[Block, ...] = ()
    line: str = ""  # the whole text, if it must stay on one line

    def __repr__(self) -> str:
        return self.line or sheet_text(Sheet(self.sheet.title, self.stable))


def lesson_view(title: str, stable: tuple[Block, ...], html_only: tuple[Block, ...] = ()) -> LessonView:
    """Return a view with `stable` as its text, and with `stable` followed by `html_only` as its HTML."""
    return LessonView(Sheet(title, (*stable, *html_only)), stable=stable)
