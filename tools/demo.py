"""Run an unmodified notebook from its first cell to its last, and print gpulab's findings.

    python tools/demo.py notebooks/00_start_here.ipynb build

writes the executed notebook and an HTML page of it into the folder `build`, and prints each report as text.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter


def main(source: Path, folder: Path) -> int:
    """Run the notebook, write both files, print the reports; return 0 if every cell ran."""
    notebook = nbformat.read(source, as_version=4)
    began = time.perf_counter()
    failed = None
    try:
        executed(notebook, source.parent)
    except CellExecutionError as problem:
        failed = problem
    spent_s = time.perf_counter() - began
    for report in reports(notebook):
        print(report, end="\n\n")
    folder.mkdir(exist_ok=True)
    page = folder / f"{source.stem}.html"
    nbformat.write(notebook, folder / source.name)
    page.write_text(HTMLExporter().from_notebook_node(notebook)[0], encoding="utf-8")
    print(f"{source} ran in {spent_s:.0f} s; the page with its reports: {page}")
    if failed:
        print(failed, file=sys.stderr)
    return 1 if failed else 0


def executed(notebook: Any, folder: Path) -> None:
    """Run every cell in place, in the folder where the notebook lies, so that its relative paths mean the same."""
    NotebookClient(
        notebook,
        timeout=600,
        resources={"metadata": {"path": str(folder)}},
        extra_arguments=["--log-level=ERROR"],  # the kernel warns of its own transport, which is loopback here
    ).execute()


def reports(notebook: Any) -> list[str]:
    """Return the text output of cells that start with a gpulab magic."""
    texts = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.lstrip().startswith(("%%gpu", "%gpu")):
            data = [output.data for output in cell.outputs if output.output_type in ("display_data", "execute_result")]
            texts += [f"{cell.source.splitlines()[0]}\n\n{one['text/plain']}" for one in data if "text/html" in one]
    return texts


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
