"""The course, copied to a learner's folder: notebooks to work in, and their solutions beside them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpulab.errors import GpulabError
from gpulab.lessons import regions

SOLUTIONS = "solutions"


@dataclass(frozen=True)
class Copied:
    """What was written, and what was there already and was left as it is."""

    written: tuple[Path, ...]
    kept: tuple[Path, ...]


def copy(folder: Path) -> Copied:
    """Write every notebook into a folder, and its solution into `solutions` under it; a file that is there stays.

    Raises GpulabError where the folder cannot be written.
    """
    written, kept = [], []
    for source in notebooks():
        for target, render in ((folder / source.name, regions.starter), (_solution(folder, source), regions.solution)):
            if target is None:
                continue
            if target.exists():
                kept.append(target)
                continue
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(rendered(source.read_text(encoding="utf-8"), render), encoding="utf-8")
            except OSError as problem:
                raise GpulabError(
                    f"The course cannot be copied to {str(folder)!r}.",
                    why=f"{problem.strerror or type(problem).__name__}: {target}",
                    fix="choose a folder that you may write to: python -m gpulab lessons course",
                ) from problem
            written.append(target)
    return Copied(tuple(written), tuple(kept))


def notebooks() -> tuple[Path, ...]:
    """The notebooks as they are kept: in the installed package, or beside it in a clone of the repository."""
    package = Path(__file__).parent
    for folder in (package / "notebooks", package.parents[1] / "notebooks"):
        if found := sorted(folder.glob("*.ipynb")):
            return tuple(found)
    raise GpulabError(
        "The notebooks of the course are not here.",
        why="this installation of gpulab was packed without them",
        fix="pip install --force-reinstall gpulab",
    )


def rendered(text: str, render: Callable[[str], str]) -> str:
    """A notebook with its cells rendered and without outputs: nothing in it was run yet."""
    notebook: dict[str, Any] = json.loads(text)
    notebook["metadata"].pop("jupytext", None)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            cell.update(source=render(source).splitlines(keepends=True), outputs=[], execution_count=None)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _solution(folder: Path, source: Path) -> Path | None:
    return folder / SOLUTIONS / source.name if "# <blank>" in source.read_text(encoding="utf-8") else None
