"""What can be asked of gpulab in a terminal.

python -m gpulab lessons [DIR]   copy the course into a folder (gpulab-course if left out)
python -m gpulab nbval           the file for `pytest --nbval-sanitize-with`, so that your notebooks pass with reports
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpulab.errors import GpulabError

FOLDER = "gpulab-course"


def main(arguments: Sequence[str]) -> int:
    """Do what is asked and say what was done; 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(prog="python -m gpulab", description="the course, and what CI needs")
    asked = parser.add_subparsers(dest="what", required=True)
    copying = asked.add_parser("lessons", help="copy the course into a folder; what is there already stays")
    copying.add_argument("folder", nargs="?", type=Path, default=Path(FOLDER), metavar="DIR")
    asked.add_parser("nbval", help="print the path of the file for pytest --nbval-sanitize-with")
    given = parser.parse_args(arguments)
    try:
        told = _lessons(given.folder) if given.what == "lessons" else str(SANITIZER)
    except GpulabError as problem:
        sys.stderr.write(f"gpulab: {problem}\n")
        return 1
    sys.stdout.write(f"{told}\n")
    return 0


SANITIZER = Path(__file__).parent / "lessons" / "nbval.cfg"


def _lessons(folder: Path) -> str:
    from gpulab.lessons.handout import copy  # what only prints a path need not load the course

    copied = copy(folder)
    lines = [f"{len(copied.written)} notebooks written to {folder}"]
    if copied.kept:
        lines.append(f"{len(copied.kept)} were there already and stay as they are; remove one to get it anew")
    return "\n".join((*lines, f"Open them: jupyter lab {folder / 'index.ipynb'}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
