"""The documents of the repository as pages: docs/*.md, and the files at the top that belong to the documentation."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from tools.site.course_pages import lesson_list
from tools.site.page import Page
from tools.site.targets import DOCS, ROOT, TOP_DOCUMENTS, is_external, links, page_of, rewrite_links

# The order of the pages in the sidebar.
NAVIGATION: Mapping[str, Sequence[str]] = {
    "Start": (
        "start/notebook", "start/script", "start/lightning", "start/transformers", "start/torchrun", "start/trace",
    ),
    "Find the cause": ("symptoms", "how_to_read_a_report", "causes/index", "what_ifs/index", "faq"),
    "Guides": (
        "commands", "command_line", "reports", "what_if", "virtual_gpu", "traces", "fleet", "monitoring", "frameworks",
        "support", "notebook_ci",
    ),
    "Course": ("course", "teaching", "coverage", "statements", "claims", "answers"),
    "Reference": (
        "reference/magics", "reference/options", "api/index", "api_examples", "environment_variables", "datasets",
    ),
    "Project": ("accuracy", "design", "contributing", "security", "changelog"),
}  # fmt: skip


def toctrees(paths: Sequence[str]) -> Iterator[str]:
    """Yield the sidebar as directives for the first page; pages that it does not list come last."""
    listed = {name for names in NAVIGATION.values() for name in names}
    others = [path.removesuffix(".md") for path in paths if path.removesuffix(".md") not in listed]
    last = list(NAVIGATION)[-1]
    for title, names in NAVIGATION.items():
        present = [name for name in (*names, *(others if title == last else ())) if f"{name}.md" in paths]
        yield f"```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(present) + "\n```"


FIRST_PAGE = "index.md"
COURSE = "course.md"
_LIGHT = r"-light\b"  # in the name of a picture: report-light.png, chart-light-wide.png
GENERATED = ("causes", "what_ifs", "api", "reference")  # folders of pages that are no documents


def document_pages() -> Iterator[Page]:
    """Yield every document as a page, and every file that documents link to, pictures included."""
    files: set[str] = set()
    for source, path in documents():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = in_both_themes(text)
        files |= {
            target for target in (repository_path(source, link) for link in relative_links(text)) if _is_file(target)
        }
        page = rewrite_links(text, path, partial(resolved, source))
        below = {FIRST_PAGE: sidebar, COURSE: lesson_list}.get(path)
        yield Page(path, f"{page}\n{below()}\n" if below else page)
    for file in sorted(files):
        yield Page(str(page_of(file)), (ROOT / file).read_bytes())


def in_both_themes(text: str) -> str:
    """Show a picture whose name has "-light" in the light theme only, and its dark twin in the dark theme."""

    def both(match: re.Match[str]) -> str:
        dark = re.sub(_LIGHT, "-dark", match[2])
        return f"![{match[1]}]({match[2]}){{.only-light}}\n![{match[1]}]({dark}){{.only-dark}}"

    return re.sub(rf"!\[([^\]]*)\]\((\S+{_LIGHT}\S*\.png)\)", both, text)


def sidebar() -> str:
    """Return the directives that put every page into the sidebar."""
    generated = [name for names in NAVIGATION.values() for name in names if name.partition("/")[0] in GENERATED]
    pages = [path for _, path in documents() if path != FIRST_PAGE]
    return "\n\n".join(toctrees([*pages, *(f"{name}.md" for name in generated)]))


def documents() -> Sequence[tuple[str, str]]:
    """Return the repository path of each document and the path of its page."""
    inside = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / DOCS).rglob("*.md"))
    top = ((path, page) for path, page in TOP_DOCUMENTS.items() if page != FIRST_PAGE)
    return [*((path, path.removeprefix(f"{DOCS}/")) for path in inside), *top]


def relative_links(text: str) -> Sequence[str]:
    """Return the targets of links that lead to another file of the repository."""
    return [target for target in links(text) if not is_external(target) and not target.startswith("#")]


def resolved(source: str, target: str) -> str:
    """Return the page, with a fragment, that a link in a document leads to. Raises ValueError if there is none."""
    _, _, fragment = target.partition("#")
    path = repository_path(source, target)
    page = page_of(path, fragment)
    if page is None:
        raise ValueError(f"{source} links to {target}, and there is no page or file for it")
    keeps_fragment = page.endswith(".md") and not path.startswith("gpulab/")
    return f"{page}#{fragment}" if fragment and keeps_fragment else page


def repository_path(source: str, target: str) -> str:
    """Return the repository path that a link in a document leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target.partition("#")[0]))


def _is_file(path: str) -> bool:
    return (ROOT / path).is_file() and not str(page_of(path)).endswith(".md")
