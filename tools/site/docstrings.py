"""Docstrings to Markdown: the text before the first heading, and the text under each heading."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_NAME = re.compile(r"(?<!\[)`([a-z][a-z0-9_]*)`")


def docstring(subject: Any) -> str:
    """Return the docstring of a subject; raises ValueError if it has none."""
    text = inspect.getdoc(subject)
    if not text:
        raise ValueError(f"{subject!r} has no docstring")
    return text


def split_headings(text: str, headings: Sequence[str]) -> tuple[str, Mapping[str, str]]:
    """Split a docstring at headings such as "Proof: ..."; return the text before them, and the text of each."""
    summary, *parts = re.split(rf"^({'|'.join(headings)}): ", text, flags=re.MULTILINE)
    return summary.strip(), {
        heading: capitalised(part.strip()) for heading, part in zip(parts[::2], parts[1::2], strict=True)
    }


def capitalised(text: str) -> str:
    """Return a text that begins with a capital letter, and ends with a period."""
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", ":", "`")) else f"{text}."


def linked(text: str, pages: Mapping[str, str], folder: str, *, leave_out: Iterable[str] = ()) -> str:
    """Link each `name` that has a page, from a page in `folder`."""
    without_page = set(leave_out)

    def link(match: re.Match[str]) -> str:
        page = pages.get(match[1])
        if page is None or match[1] in without_page:
            return match[0]
        return f"[{match[0]}]({page.removeprefix(f'{folder}/')})"

    return _NAME.sub(link, text)


def fenced(text: str, language: str = "text") -> str:
    """Return a text as a fenced block."""
    return f"```{language}\n{text.rstrip()}\n```"
