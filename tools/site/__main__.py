"""Build the site: `python -m tools.site`; `python -m tools.site pages` writes only the pages."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tools.site import link_check
from tools.site.api_pages import api_pages
from tools.site.cause_pages import cause_pages
from tools.site.change_pages import what_if_pages
from tools.site.course_pages import course_pages
from tools.site.documents import document_pages
from tools.site.option_pages import option_pages
from tools.site.page import Page, write_pages
from tools.site.targets import ROOT

PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
DOCTREES = ROOT / "build" / "doctrees"


def main() -> int:
    """Write the pages, build the site and check it; return 0 if there is no problem."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="?", choices=("site", "pages"), default="site")
    options = parser.parse_args()
    began = time.perf_counter()
    changed = write_pages(PAGES, all_pages())
    print(f"{changed} pages changed, {time.perf_counter() - began:.0f} s", flush=True)
    if options.what == "pages":
        return 0
    status = build(PAGES, SITE)
    if status != 0:
        return status
    lines = link_check.problems(SITE)
    print("\n".join(lines))
    print(f"{SITE}: {len(lines)} broken links, {time.perf_counter() - began:.0f} s")
    return 1 if lines else 0


def all_pages() -> Iterator[Page]:
    """Yield every page of the site."""
    yield from document_pages()
    yield from cause_pages()
    yield from what_if_pages()
    yield from course_pages()
    yield from api_pages()
    yield from option_pages()


def build(pages: Path, site: Path) -> int:
    """Build the site from the pages; warnings are errors. Returns the exit status of Sphinx."""
    if not (site / "searchindex.js").is_file():  # Sphinx does not complete the index of a build that was interrupted
        shutil.rmtree(DOCTREES, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-q", "-W", "--keep-going", "-j", "2"]
    command += ["-c", str(Path(__file__).parent), "-d", str(DOCTREES), str(pages), str(site)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
