"""The notebooks of the course, from their texts: built, run and checked, with and without their solutions.

    python tools/notebooks.py build 05 07     notebooks/text/*.py to notebooks/*.ipynb, run, outputs kept
    python tools/notebooks.py text 05         the other way: a notebook that was edited in JupyterLab to its text
    python tools/notebooks.py index           the tables of the index and docs/course.md, from the lessons
    python tools/notebooks.py check           what is wrong with any of them
    python tools/notebooks.py starters        run as a learner gets them, nothing filled in: each claim must fail
    GPULAB_SIZE=lab python tools/notebooks.py live 05   run on what is here, at any size: do its claims hold, and how
                                              long does it take; what it put out is kept in build/live

The text (jupytext, py:percent) is what people write and review. A cell's first tag is its role. Outputs are written
by `build` alone, at size tiny, so that nbval can compare them.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpulab.lessons import regions
from gpulab.lessons.contents import lesson_table, path_list
from gpulab.lessons.course import lesson
from gpulab.lessons.verdicts import FAILS, HOLDS, MODEL_SAYS
from tools import nblint

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
TEXTS = FOLDER / "text"
IGNORED = ("device", "measure", "card")  # roles whose output no two runs share
MOST_HTML, MOST_CHART = 20_000, 40_000  # characters of an output, and of a chart as SVG
_CHART = re.compile(r'<div [^>]*aria-label="gpulab chart"[^>]*><img src="data:image/svg')
_PICTURE = re.compile(r"data:image/png;base64,([A-Za-z0-9+/=]+)")
_DETAILS = re.compile(r"<details\b.*?</details>", re.DOTALL)
_CELL_STYLE = re.compile(r'<(t[drh])((?: (?!style=)[\w-]+="[^"]*")*) style="(text-align:left)?[^"]*"')
PICTURE_WIDTH, PICTURE_COLOURS = 720, 32
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
    "jupytext": {"formats": "ipynb,text//py:percent", "cell_metadata_filter": "tags,-all"},
}
READ_ONLY = {"editable": False, "deletable": False}  # a learner cannot break the text
MORE = "## More experiments"  # its section is folded in JupyterLab
FOLDED = {**READ_ONLY, "jp-MarkdownHeadingCollapsed": True}
INDEX = "index"
BEGINS, ENDS = "<!-- the course: python tools/notebooks.py index -->", "<!-- the end of the course -->"
# What a run in CI must neither read nor write, and what makes two runs alike.
QUIET = {
    "GPULAB_SIZE": "tiny",
    "GPULAB_HISTORY": "off",
    "GPULAB_PROGRESS": "off",
    "PYTHONHASHSEED": "0",
    "TQDM_DISABLE": "1",
}


def main(arguments: Sequence[str]) -> int:
    """Run the requested command; return 0 if all is well."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("what", choices=tuple(TODO))
    parser.add_argument("numbers", nargs="*", help="of notebooks, as 05; all of them if left out")
    options = parser.parse_args(arguments)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    return TODO[options.what](options.numbers)


def build(numbers: list[str]) -> int:
    """Build notebooks from their texts and run them."""
    for text in _chosen(TEXTS, "*.py", numbers):
        formatted(text)
        notebook = from_text(text)
        began = time.perf_counter()
        _run(notebook)
        for cell in notebook.cells:
            _tidy(cell)
        path = FOLDER / f"{text.stem}.ipynb"
        path.write_text(canonical(notebook), encoding="utf-8")
        spent_s = time.perf_counter() - began
        print(f"{path.name}: {spent_s:.0f} s, {path.stat().st_size / 1000:.0f} kB")
    return check(numbers)


def texts(numbers: list[str]) -> int:
    """Convert notebooks to texts."""
    for path in _chosen(FOLDER, "*.ipynb", numbers):
        (TEXTS / f"{path.stem}.py").write_text(to_text(nbformat.read(path, as_version=4)), encoding="utf-8")
    return 0


def index(numbers: list[str]) -> int:
    """Update the tables of the index notebook and docs/course.md from the lessons."""
    page = FOLDER.parent / "docs" / "course.md"
    for path, links, before in ((TEXTS / f"{INDEX}.py", "", "# "), (page, "../notebooks/", "")):
        path.write_text(with_course(path.read_text(encoding="utf-8"), links, before), encoding="utf-8")
    return 0


def with_course(text: str, links: str, before: str) -> str:
    """A page with the lessons and paths as they are now, between its two marks; every line begins with `before`."""
    head, rest = text.split(BEGINS)
    section = f"{BEGINS}\n\n{lesson_table(links)}\n\nWays through the lessons:\n\n{path_list(links)}\n\n{ENDS}"
    lines = section.split("\n")
    return head + "\n".join([lines[0], *(f"{before}{line}".rstrip() for line in lines[1:])]) + rest.split(ENDS)[1]


def check(numbers: list[str]) -> int:
    """Print the problems of the notebooks; return 1 if there are any."""
    problems = [f"{path.name}: {problem}" for path in _lessons(numbers) for problem in nblint.problems(path)]
    print("\n".join(problems) or "no problem found")
    return 1 if problems else 0


def starters(numbers: list[str]) -> int:
    """Run every notebook with nothing filled in and count the claims that fail; return 1 unless all do."""
    total, noticed = 0, 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        paths_of = _lessons(numbers)
        for path, claims in zip(paths_of, pool.map(_claims_of_starter, paths_of), strict=True):
            passing = [line for line in claims if not line.startswith(FAILS)]
            total, noticed = total + len(claims), noticed + len(claims) - len(passing)
            print(f"{path.stem}: {len(claims)} claims, {len(claims) - len(passing)} fail in the starter", flush=True)
            for line in passing:
                print(f"    holds in the starter: {line}", flush=True)
    print(f"{total} claims, {noticed} fail in the starters")
    return 0 if noticed == total else 1


def live(numbers: list[str]) -> int:
    """Run notebooks on this machine, and print which claims hold and the duration; return 1 unless all hold in time."""
    folder = FOLDER.parent / "build" / "live"
    folder.mkdir(parents=True, exist_ok=True)
    amiss = 0
    for path in _lessons(numbers):
        notebook = nbformat.read(path, as_version=4)
        began = time.perf_counter()
        _run(notebook, through_errors=True)
        spent_s = time.perf_counter() - began
        (folder / path.name).write_text(canonical(notebook), encoding="utf-8")
        claims = list(verdicts(notebook))
        missed = [line for line in claims if not line.startswith((HOLDS, MODEL_SAYS))]
        missed += errors(notebook)
        minutes = lesson(path.stem).minutes
        amiss += len(missed) + (spent_s > 60 * minutes)
        passing = sum(line.startswith((HOLDS, MODEL_SAYS)) for line in claims)
        print(f"{path.stem}: {spent_s:.0f} s of {minutes} minutes, {passing} of {len(claims)} claims hold", flush=True)
        for line in missed:
            print(f"    {line}", flush=True)
    return 1 if amiss else 0


def errors(notebook: Any) -> Iterator[str]:
    """What was raised in a notebook that was run through its errors; a claim's are among `verdicts`."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error" and "claim" not in cell.metadata.get("tags", []):
                yield f"{output.ename}: {output.evalue}"


def _claims_of_starter(path: Path) -> list[str]:
    """What the claims of a notebook say with nothing filled in."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = regions.starter(cell.source)
    _run(notebook, through_errors=True)
    return list(verdicts(notebook))


def verdicts(notebook: Any) -> Iterator[str]:
    """What each claim of a notebook that was run says; a claim that raised says so."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and "claim" in cell.metadata.get("tags", []):
            texts = [each.data.get("text/plain", "") for each in cell.outputs if "data" in each]
            lines = [line for text in texts for line in text.split("\n")]
            verdict = [line for line in lines if line.startswith((HOLDS, FAILS, MODEL_SAYS))]
            raised = [f"{each.ename}: {each.evalue}" for each in cell.outputs if each.output_type == "error"]
            yield (verdict or raised or [f"says nothing: {cell.source.splitlines()[0]}"])[0]


def from_text(path: Path) -> Any:
    """A notebook without outputs: its cells have the same ids whenever they have the same text."""
    notebook = jupytext.read(path, fmt="py:percent")
    notebook.metadata = nbformat.from_dict(METADATA)
    notebook.cells = [part for cell in notebook.cells for part in _at_headings(cell)]
    counts: dict[str, int] = {}
    for cell in notebook.cells:
        place = counts[cell.source] = counts.get(cell.source, -1) + 1
        cell.id = hashlib.sha1(f"{path.stem} {place} {cell.source}".encode(), usedforsecurity=False).hexdigest()[:8]
        tags = list(cell.metadata.get("tags", []))
        if cell.cell_type == "code" and tags and tags[0] in IGNORED and "nbval-ignore-output" not in tags:
            tags.append("nbval-ignore-output")
        text_metadata = FOLDED if cell.source.startswith(MORE) else READ_ONLY
        cell.metadata = nbformat.from_dict({"tags": tags} if cell.cell_type == "code" else text_metadata)
    return notebook


def _at_headings(cell: Any) -> Iterator[Any]:
    """Split a text before each heading of a section: JupyterLab folds a section only if its heading begins a cell."""
    if cell.cell_type != "markdown":
        yield cell
        return
    for part in re.split(r"\n+(?=## )", cell.source):
        yield nbformat.v4.new_markdown_cell(part.strip("\n"))


def formatted(text: Path) -> None:
    """Format the cells of a text, and write it as jupytext does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{text.stem}.ipynb"
        nbformat.write(from_text(text), path)
        settings = FOLDER.parent / "pyproject.toml"
        subprocess.run([sys.executable, "-m", "ruff", "format", "--quiet", "--config", settings, path], check=True)
        text.write_text(to_text(nbformat.read(path, as_version=4)), encoding="utf-8")


def to_text(notebook: Any) -> str:
    """The text of a notebook: roles stay, the tags that follow from them do not."""
    for cell in notebook.cells:
        tags = [tag for tag in cell.metadata.get("tags", []) if tag != "nbval-ignore-output"]
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
    notebook.metadata = nbformat.from_dict(
        {"jupytext": {"cell_metadata_filter": "tags,-all", "notebook_metadata_filter": "-all"}}
    )
    return str(jupytext.writes(notebook, fmt="py:percent"))


def canonical(notebook: Any) -> str:
    """A notebook as it is stored: one way to write it, so that a difference is a difference."""
    return json.dumps(nbformat.from_dict(notebook), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _run(notebook: Any, *, through_errors: bool = False) -> None:
    """Every cell, in the folder of the notebooks, as JupyterLab would; no recording of another process is recovered."""
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        record_timing=False,
        allow_errors=through_errors,
        resources={"metadata": {"path": str(FOLDER)}},
        extra_arguments=["--log-level=ERROR"],  # the kernel warns of its own transport, which is loopback here
    )
    with tempfile.TemporaryDirectory() as spool:
        client.execute(env={**os.environ, "GPULAB_SPOOL": spool})
    notebook.metadata.pop("widgets", None)


def _tidy(cell: Any) -> None:
    """Replace a long HTML output by its picture, or by its text, which says the same; shorten the style of table cells.

    GitHub and nbviewer show the picture and tables of their own style. In JupyterLab, whoever runs the cell sees all.
    """
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        html = data.get("text/html", "")
        if html:
            data["text/html"] = _CELL_STYLE.sub(_short_style, html)
        if "text/plain" not in data or len(html) <= MOST_HTML:
            continue
        del data["text/html"]
        drawing = _DETAILS.sub("", html) if _CHART.match(html) else ""  # without its table, which the text contains
        if drawing and len(drawing) <= MOST_CHART:
            data["text/html"] = drawing
        elif pictures := _PICTURE.findall(html):
            data["image/png"] = small_picture(pictures[0])


def _short_style(cell: re.Match[str]) -> str:
    """Return the start of a table cell with no style but its alignment to the left, if it has that one."""
    return f"<{cell[1]}{cell[2]}" + (f' style="{cell[3]}"' if cell[3] else "")


def small_picture(data: str) -> str:
    """A PNG (base64) at the width of a notebook and with few colours."""
    with Image.open(io.BytesIO(base64.b64decode(data))) as picture:
        height = round(picture.height * PICTURE_WIDTH / picture.width)
        small = picture.convert("RGB").resize((PICTURE_WIDTH, height), Image.Resampling.LANCZOS)
    file = io.BytesIO()
    reduced = small.quantize(PICTURE_COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
    reduced.save(file, format="png", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def _chosen(folder: Path, pattern: str, numbers: list[str]) -> list[Path]:
    matches = sorted(folder.glob(pattern))
    return [path for path in matches if not numbers or path.stem.partition("_")[0] in numbers or path.stem in numbers]


def _lessons(numbers: list[str]) -> list[Path]:
    return [path for path in _chosen(FOLDER, "*.ipynb", numbers) if path.stem != INDEX]


TODO: dict[str, Callable[[list[str]], int]] = {
    "build": build,
    "text": texts,
    "index": index,
    "check": check,
    "starters": starters,
    "live": live,
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
