"""Repository paths that documents link to, and the pages of the site that show them.

Documents in the repository link to files of the repository, so that their links work on GitHub. A rule is linked as
its source with its name as the fragment (`../gpulab/rules/data/no_workers.py#no_workers`), a change in the same way,
a lesson as its notebook. On the site these links lead to the pages of the rule, the change and the lesson.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

from gpulab.replay.job.job_catalogue import COMMUNICATION_OF_JOBS
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.rules import RULES

ROOT = Path(__file__).resolve().parents[2]
DOCS = "docs"
# Documents outside docs/, and their pages.
TOP_DOCUMENTS = {path.name: path.name.lower() for path in sorted(ROOT.glob("*.md"))} | {
    "README.md": "index.md",
    "recorded_runs/README.md": "datasets.md",
}
SOURCES = {"gpulab/magics/arguments.py": "reference/magics.md", "gpulab/cli/options.py": "reference/options.md"}
COPIES = "files"  # folder of files that pages offer for download
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\[\]]*\])*\]\()([^()\s]+)(\))")


@cache
def rule_pages() -> Mapping[str, str]:
    """Return the page of each rule by the rule's name."""
    return {rule.name: f"causes/{rule.name}.md" for rule in RULES}


@cache
def change_pages() -> Mapping[str, str]:
    """Return the page of each change by its name; a change of a run and of a job with one name share a page."""
    names = [*(change.name for change in REWRITES), *(change.name for change in COMMUNICATION_OF_JOBS)]
    return {name: f"what_ifs/{name}.md" for name in names}


def page_of(path: str, fragment: str = "") -> str | None:
    """Return the page that shows a repository path, or the file that the site copies; None if there is neither."""
    if fragment and path.startswith("gpulab/rules/"):
        return rule_pages().get(fragment)
    if fragment and path.startswith("gpulab/replay/"):
        return change_pages().get(fragment)
    if path in TOP_DOCUMENTS or path in SOURCES:
        return TOP_DOCUMENTS.get(path) or SOURCES[path]
    if path.startswith("notebooks/") and path.endswith(".ipynb"):
        name = posixpath.basename(path).removesuffix(".ipynb")
        return "course.md" if name == "index" else f"course/{name}.md"
    if path == DOCS or path.startswith(f"{DOCS}/"):
        inside = path.removeprefix(DOCS).strip("/")
        return inside if (ROOT / path).is_file() else None
    return f"{COPIES}/{path}" if (ROOT / path).is_file() else None


def is_external(target: str) -> bool:
    """Whether a link leads out of the repository."""
    return bool(re.match(r"[a-z]+:", target))


def links(text: str) -> Iterator[str]:
    """Yield the targets of the Markdown links and pictures of a text, code blocks left out."""
    for part in prose(text):
        for match in _LINK.finditer(part):
            yield match[2]


def prose(text: str) -> Iterator[str]:
    """Yield the parts of a Markdown text that are not in fenced code."""
    yield from re.split(r"^(`{3,}|~{3,}).*?^\1[ \t]*$", text, flags=re.MULTILINE | re.DOTALL)[::2]


def rewrite_links(text: str, page: str, resolve: Callable[[str], str]) -> str:
    """Replace the targets of relative links by paths from `page` to the pages that `resolve` returns."""
    folder = posixpath.dirname(page)

    def replace(match: re.Match[str]) -> str:
        if is_external(match[2]) or match[2].startswith("#"):
            return match[0]
        target, _, fragment = resolve(match[2]).partition("#")
        relative = posixpath.relpath(target, folder or ".")
        return f"{match[1]}{relative}{'#' if fragment else ''}{fragment}{match[3]}"

    pieces = re.split(r"(^(?:`{3,}|~{3,}).*?^(?:`{3,}|~{3,})[ \t]*$)", text, flags=re.MULTILINE | re.DOTALL)
    return "".join(piece if number % 2 else _LINK.sub(replace, piece) for number, piece in enumerate(pieces))
