"""Pages of the site, and the folder that holds them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Page:
    """A file of the site's source: its path in the folder of pages, and its content."""

    path: str  # with slashes: "causes/no_workers.md"
    content: str | bytes

    @property
    def data(self) -> bytes:
        """The content as it is stored."""
        return self.content.encode() if isinstance(self.content, str) else self.content


def write_pages(folder: Path, pages: Iterable[Page]) -> int:
    """Bring a folder up to date, and return how many files changed.

    Files with the same content are not touched, so that Sphinx reads only what changed; others are deleted.
    """
    changed = 0
    paths = set()
    for page in pages:
        path = folder / page.path
        if path in paths:
            raise ValueError(f"two pages have the path {page.path}")
        paths.add(path)
        if path.exists() and path.read_bytes() == page.data:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(page.data)
        changed += 1
    for path in folder.rglob("*"):
        if path.is_file() and path not in paths:
            path.unlink()
            changed += 1
    return changed
