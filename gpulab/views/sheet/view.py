"""View: a displayable sheet. End a cell with it, print it, or save it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from gpulab.errors import GpulabError
from gpulab.store.replaced_file import replaced_file
from gpulab.views.sheet.html import document, fragment
from gpulab.views.sheet.markdown import sheet_markdown
from gpulab.views.sheet.sheet import Sheet
from gpulab.views.sheet.size_limit import limit_sheet
from gpulab.views.sheet.text import sheet_text
from gpulab.wording import shorten

_FORMS = {".html": document, ".htm": document, ".txt": sheet_text, ".md": sheet_markdown}


@dataclass(frozen=True, eq=False)
class View:
    """A sheet in every form: text for terminals, HTML that needs neither a kernel nor a trusted notebook, files."""

    sheet: Sheet  # of a limited size
    suffixes: ClassVar[tuple[str, ...]] = tuple(_FORMS)

    def __post_init__(self) -> None:
        object.__setattr__(self, "sheet", limit_sheet(self.sheet))

    def __repr__(self) -> str:
        return sheet_text(self.sheet)

    def _repr_html_(self) -> str:
        return self._html

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        # Only these two: front ends would prefer a widget or a picture, which is lost when the notebook is saved.
        return {"text/plain": repr(self), "text/html": self._html}

    @cached_property
    def _html(self) -> str:
        return fragment(self.sheet)

    def html_page(self) -> str:
        """Return a self-contained HTML page that is readable offline."""
        return document(self.sheet)

    def save(self, path: str | Path) -> Path:
        """Write the view to `path` atomically and return the path; the suffix is `.html`, `.txt` or `.md`."""
        path = Path(path)
        form = _FORMS.get(path.suffix.lower())
        if form is None:
            raise GpulabError(
                f"A view cannot be saved as {path.name!r}.",
                why=f"the file suffix is {path.suffix!r}",
                fix=f"use one of {', '.join(self.suffixes)}; gpulab.save() writes the run itself, as .gpulab",
            )
        return write_file(path, text_bytes(form(self.sheet)))


def text_bytes(text: str) -> tuple[bytes, ...]:
    """Return text as UTF-8 bytes that end with a newline."""
    return ((text if text.endswith("\n") else f"{text}\n").encode(),)


def write_file(path: Path, content: Iterable[bytes]) -> Path:
    """Write chunks to a file atomically and return the path; raises GpulabError if it cannot be written."""
    try:
        with replaced_file(path) as file:
            file.writelines(content)
    except OSError as problem:
        raise GpulabError(
            f"The file {shorten(str(path), 300)!r} cannot be written.",
            why=problem.strerror or type(problem).__name__,
            fix="choose an existing folder with write permission",
        ) from problem
    return path
