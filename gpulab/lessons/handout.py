"""Copy the course into a learner's folder: notebooks to work in, and their solutions."""

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
class CopyResult:
    """The files that were written, and the files that existed already and were not changed."""

    written: tuple[Path, ...]
    existing: tuple[Path, ...]


def copy_course(folder: Path) -> CopyResult:
    """Write every notebook into a folder, and its solution into `solutions` below it; do not replace existing files.

    Raises GpulabError if the folder cannot be written.
    """
    written, existing = [], []
    for source in notebooks():
        for target, render in ((folder / source.name, regions.starter), (_solution(folder, source), regions.solution)):
            if target is None:
                continue
            if target.exists():
                existing.append(target)
                continue
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(render_notebook(source.read_text(encoding="utf-8"), render), encoding="utf-8")
            except OSError as problem:
                raise GpulabError(
                    f"The course cannot be copied to {str(folder)!r}.",
                    why=f"{problem.strerror or type(problem).__name__}: {target}",
                    fix="choose a folder that you can write to: python -m gpulab lessons course",
                ) from problem
            written.append(target)
    return CopyResult(tuple(written), tuple(existing))


def notebooks() -> tuple[Path, ...]:
    """Return the notebooks of the course: from the installed package, or from a clone of the repository.

    Raises GpulabError if this installation has none.
    """
    package = Path(__file__).parent
    for folder in (package / "notebooks", package.parents[1] / "notebooks"):
        if paths := sorted(folder.glob("*.ipynb")):
            return tuple(paths)
    raise GpulabError(
        "This installation of gpulab does not contain the notebooks of the course.",
        why="it was packaged without them",
        fix="pip install --force-reinstall gpulab",
    )


def render_notebook(text: str, render: Callable[[str], str]) -> str:
    """Return a notebook (JSON) with `render` applied to its code cells, and without outputs."""
    notebook: dict[str, Any] = json.loads(text)
    notebook["metadata"].pop("jupytext", None)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            source = "".join(cell["source"])
            cell.update(source=render(source).splitlines(keepends=True), outputs=[], execution_count=None)
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _solution(folder: Path, source: Path) -> Path | None:
    """Return the path of a notebook's solution; None if the notebook has no blanks."""
    return folder / SOLUTIONS / source.name if "# <blank>" in source.read_text(encoding="utf-8") else None
