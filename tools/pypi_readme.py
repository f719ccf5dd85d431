"""Make the links and pictures of README.md absolute, so that they work on PyPI; the release workflow does it.

    python tools/pypi_readme.py OWNER/REPOSITORY TAG [--out README.md]

Links point to the page of a file on GitHub, pictures to its raw bytes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>(?!https?://|#)[^)\s]+)\)")


def absolute(text: str, repository: str, ref: str) -> str:
    """Return the Markdown text with every relative link made absolute."""

    def replaced(match: re.Match[str]) -> str:
        kind = "raw" if match["picture"] else "blob"
        url = f"https://github.com/{repository}/{kind}/{ref}/{match['target']}"
        return f"{match['picture']}[{match['text']}]({url})"

    return _LINK.sub(replaced, text)


def relative_targets(text: str) -> list[str]:
    """Return the paths that relative links and pictures point to, without anchors."""
    return [match["target"].partition("#")[0] for match in _LINK.finditer(text)]


def main(arguments: list[str]) -> int:
    """Rewrite the file; return 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repository", help="OWNER/REPOSITORY on GitHub")
    parser.add_argument("ref", help="the tag or commit of the release")
    parser.add_argument("--out", type=Path, default=ROOT / "README.md")
    options = parser.parse_args(arguments)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    options.out.write_text(absolute(text, options.repository, options.ref), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
