"""The command line of gpulab.

python -m gpulab lessons [DIR]   copy the course notebooks into a folder (default: gpulab-course)
python -m gpulab nbval           print the path of the file for `pytest --nbval-sanitize-with`; with it, notebooks that
                                 show reports pass nbval
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gpulab.errors import GpulabError

FOLDER = "gpulab-course"


def main(arguments: Sequence[str]) -> int:
    """Run one command and print its result. Return 0, or 1 with the reason on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m gpulab", description="copy the course notebooks, or print the nbval settings file for CI"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    lessons = commands.add_parser("lessons", help="copy the course notebooks into a folder; existing files are kept")
    lessons.add_argument("folder", nargs="?", type=Path, default=Path(FOLDER), metavar="DIR")
    commands.add_parser("nbval", help="print the path of the settings file for pytest --nbval-sanitize-with")
    options = parser.parse_args(arguments)
    try:
        output = _lessons(options.folder) if options.command == "lessons" else str(SANITIZER)
    except GpulabError as problem:
        sys.stderr.write(f"gpulab: {problem}\n")
        return 1
    sys.stdout.write(f"{output}\n")
    return 0


SANITIZER = Path(__file__).parent / "lessons" / "nbval.cfg"


def _lessons(folder: Path) -> str:
    from gpulab.lessons.handout import copy_course  # imported here: `nbval` does not need it

    copied = copy_course(folder)
    lines = [f"{len(copied.written)} notebooks written to {folder}"]
    if copied.existing:
        lines.append(f"{len(copied.existing)} exist already and are unchanged; delete one to get the original again")
    return "\n".join((*lines, f"Open them: jupyter lab {folder / 'index.ipynb'}"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
