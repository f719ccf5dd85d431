"""Views of a lesson whose text is the same on every machine; measured times appear only in their HTML."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.sheet import Block, Sheet
from gpulab.views.sheet.text import sheet_text
from gpulab.views.sheet.view import View

_TAG = re.compile(r"(<[^>]*>)")
_CODE = re.compile(r"`([^`\n]+)`")


@dataclass(frozen=True, eq=False, repr=False)
class LessonView(View):
    """A view whose text leaves out the measured times that its HTML shows, so that CI can compare the text."""

    stable: tuple[Block, ...] = ()
    line: str = ""  # the whole text, if it must stay on one line

    @cached_property
    def _html(self) -> str:
        return with_code(fragment(self.sheet))

    def __repr__(self) -> str:
        return self.line or sheet_text(Sheet(self.sheet.title, self.stable))


def lesson_view(title: str, stable: tuple[Block, ...], html_only: tuple[Block, ...] = ()) -> LessonView:
    """Return a view with `stable` as its text, and with `stable` followed by `html_only` as its HTML."""
    return LessonView(Sheet(title, (*stable, *html_only)), stable=stable)


def with_code(html: str) -> str:
    """Return HTML in which text between backticks is code; attributes stay as they are."""
    parts = _TAG.split(html)
    return "".join(part if part.startswith("<") else _CODE.sub(r"<code>\1</code>", part) for part in parts)
