"""The lessons of the course as pages; docs/course.md is their index."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.lessons.course import lesson, lessons
from tools.site.notebook_pages import FOLDER, notebook_pages
from tools.site.page import Page
from tools.site.targets import ROOT

_NOTE = """:::{{note}}
This page shows the solution with its stored outputs. {minutes} minutes; do first: {first}. To learn, work in the
notebook, which has gaps to fill in and asks for your predictions before it measures:

```sh
gpulab lessons my-course
jupyter lab my-course/{name}.ipynb
```
:::
"""


def course_pages() -> Iterator[Page]:
    """Yield the page of every lesson, with its pictures."""
    for item in lessons():
        names = [f"[{lesson(name).number}]({name}.md)" for name in item.prerequisites]
        note = _NOTE.format(minutes=item.minutes, first=", ".join(names) or "nothing", name=item.id)
        yield from notebook_pages(ROOT / "notebooks" / f"{item.id}.ipynb", note)


def lesson_list() -> str:
    """Return the directive that puts the lessons below the index of the course in the sidebar."""
    return "```{toctree}\n:hidden:\n\n" + "\n".join(f"{FOLDER}/{item.id}" for item in lessons()) + "\n```"
