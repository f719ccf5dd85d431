"""Notebooks as pages, from their stored outputs: nothing is run, and pictures become files."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpulab.lessons import regions
from tools.site.docstrings import fenced
from tools.site.page import Page

FOLDER = "course"
_NOTEBOOK_LINK = re.compile(r"\]\(([\w./-]+)\.ipynb(#[\w-]+)?\)")
_NO_FENCE = "````"


@dataclass
class RenderedNotebook:
    """A page, and the pictures that it shows."""

    name: str
    text: str = ""
    pictures: list[Page] = field(default_factory=list)

    def add_picture(self, data: str, description: str) -> str:
        """Keep a picture (base64), and return the Markdown that shows it."""
        path = f"pictures/{self.name}_{len(self.pictures) + 1}.png"
        self.pictures.append(Page(f"{FOLDER}/{path}", base64.b64decode(data)))
        return f"```{{image}} {path}\n:alt: {' '.join(description.split())[:300]}\n:class: output-picture\n```"


def notebook_pages(path: Path, introduction: str) -> Iterator[Page]:
    """Yield the page of a notebook, with `introduction` below its title, and its pictures."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    rendered = RenderedNotebook(path.stem)
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(_NOTEBOOK_LINK.sub(_page_link, source))
        elif cell["cell_type"] == "code":
            parts += _code_cell(source, cell.get("outputs", []), rendered)
    title, _, rest = "\n\n".join(parts).partition("\n")
    yield Page(f"{FOLDER}/{path.stem}.md", f"{title}\n\n{introduction}\n{rest}\n")
    yield from rendered.pictures


def _page_link(link: re.Match[str]) -> str:
    return f"]({'../course' if link[1] == 'index' else link[1]}.md{link[2] or ''})"


def _code_cell(source: str, outputs: list[dict[str, Any]], rendered: RenderedNotebook) -> Iterator[str]:
    tasks = regions.tasks(source)
    if tasks:
        lines = "\n".join(f"- {task[:1].upper()}{task[1:]}" for task in tasks if task)
        yield f":::{{admonition}} Your turn\n:class: your-turn\n{lines}\n:::"
    yield fenced(regions.solution(source), "ipython3")
    for output in outputs:
        yield _output(output, rendered)


def _output(output: dict[str, Any], rendered: RenderedNotebook) -> str:
    if output["output_type"] == "stream":
        return _text_output("".join(output["text"]))
    if output["output_type"] == "error":
        return _text_output(f"{output['ename']}: {output['evalue']}")
    data = {kind: "".join(value) for kind, value in output["data"].items()}
    text = data.get("text/plain", "")
    if "image/png" in data:
        return rendered.add_picture(data["image/png"].replace("\n", ""), text)
    if "text/html" in data:
        html = data["text/html"].replace("\n\n", "\n")
        return f'{_NO_FENCE}{{raw}} html\n<div class="output">{html}</div>\n{_NO_FENCE}'
    return _text_output(text)


def _text_output(text: str) -> str:
    return f"{_NO_FENCE}{{code-block}} text\n:class: output-text\n\n{text.rstrip()}\n{_NO_FENCE}"
