"""Check the built site: internal links, anchors and pictures exist, and nothing is loaded from other hosts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose target a browser loads when it shows the page.
_LOADED = {("img", "src"), ("script", "src"), ("source", "src"), ("source", "srcset"), ("iframe", "src"),
           ("video", "src"), ("video", "poster"), ("audio", "src"), ("embed", "src"), ("object", "data"),
           ("use", "href"), ("image", "href")}  # fmt: skip
_LOADED_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "preconnect", "dns-prefetch", "manifest", "prefetch"}
_CSS_URL = re.compile(r"url\(\s*['\"]?(.*?)['\"]?\s*\)|@import\s+['\"](.*?)['\"]")
_NOT_A_FILE = ("data:", "javascript:", "mailto:", "blob:")


@dataclass
class PageLinks(HTMLParser):
    """What an HTML page links to and loads, and the anchors it has."""

    anchors: set[str] = field(default_factory=set)
    targets: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    _in_style: bool = False

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the links and anchors of one element."""
        attributes = {name: value or "" for name, value in attrs}
        self.anchors |= {attributes[name] for name in ("id", "name") if name in attributes}
        self._in_style = tag == "style"
        if "style" in attributes:
            self.loaded += css_targets(attributes["style"])
        for name, value in attributes.items():
            loads_link = tag == "link" and name == "href" and set(attributes.get("rel", "").split()) & _LOADED_LINKS
            if (tag, name) in _LOADED or loads_link:
                self.loaded.append(value)
            elif tag == "a" and name == "href":
                self.targets.append(value)

    def handle_data(self, data: str) -> None:
        """Collect what a style sheet in the page loads."""
        if self._in_style:
            self.loaded += css_targets(data)

    def handle_endtag(self, tag: str) -> None:
        """Leave a style sheet."""
        self._in_style = False


def css_targets(text: str) -> list[str]:
    """Return what a style sheet loads."""
    return [first or second for first, second in _CSS_URL.findall(text) if first or second]


def problems(site: Path) -> list[str]:
    """Return every problem of a built site, one line each."""
    pages = {path.relative_to(site).as_posix(): _parsed(path) for path in sorted(site.rglob("*.html"))}
    lines = [f"{page}: {problem}" for page, links in pages.items() for problem in _of_page(site, page, links, pages)]
    for path in sorted(site.rglob("*.css")):
        place = path.relative_to(site).as_posix()
        lines += [f"{place}: {problem}" for problem in _loaded(site, place, css_targets(path.read_text("utf-8")))]
    return lines


def _parsed(path: Path) -> PageLinks:
    links = PageLinks()
    links.feed(path.read_text(encoding="utf-8"))
    return links


def _of_page(site: Path, page: str, links: PageLinks, pages: Mapping[str, PageLinks]) -> Iterator[str]:
    yield from _loaded(site, page, links.loaded)
    for target in dict.fromkeys(links.targets):
        parts = urlsplit(target)
        if target.startswith(_NOT_A_FILE):
            continue
        if parts.scheme or parts.netloc:
            if parts.scheme != "https" or "." not in parts.netloc:
                yield f"{target} is not a well-formed https link"
            continue
        path = _file_at(site, page, parts.path)
        if not path.exists():
            yield f"{target} leads to no file"
        elif parts.fragment and path.suffix == ".html":
            other = pages[path.relative_to(site.resolve()).as_posix()]
            if unquote(parts.fragment) not in other.anchors:
                yield f"{target} leads to no anchor"


def _loaded(site: Path, page: str, targets: Iterable[str]) -> Iterator[str]:
    for target in dict.fromkeys(targets):
        parts = urlsplit(target)
        if target.startswith(_NOT_A_FILE) or target.startswith("#"):
            continue
        if parts.scheme or parts.netloc:
            yield f"{target} is loaded from another host"
        elif not (file := _file_at(site, page, parts.path)).is_file():
            yield f"{target} is missing"
        elif not file.stat().st_size:
            yield f"{target} is empty"


def _file_at(site: Path, page: str, path: str) -> Path:
    if not path:
        return (site / page).resolve()
    base = site if path.startswith("/") else (site / page).parent
    target = (base / unquote(path).lstrip("/")).resolve()
    return target / "index.html" if target.is_dir() else target
