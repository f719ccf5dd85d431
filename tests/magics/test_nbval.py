"""A user's notebook with reports in it, under strict nbval in their own CI, with the file that gpulab ships."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.front_end.kernel import ROOT

pytestmark = pytest.mark.timeout(300)

LOOP = """import time
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    time.sleep(0.005)
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()"""
CELLS = (
    "%load_ext gpulab\nimport torch",
    "%%gpuprofile before\n" + LOOP,
    "%%gpuprofile after\n" + LOOP + "\n7 * 6",
    "%gpureport before",
    "%gpucompare before after",
    "%gputimeline before",
    "print('accuracy', round(0.123456, 2))",
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A notebook that was run and saved."""
    cells = [nbformat.v4.new_code_cell(source) for source in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": ""}})
    NotebookClient(notebook, timeout=120, extra_arguments=["--log-level=ERROR"]).execute()
    path = tmp_path_factory.mktemp("theirs") / "training.ipynb"
    nbformat.write(notebook, path)
    return path


def in_ci(notebook):
    """Strict nbval as a user's CI calls it."""
    command = [sys.executable, "-m", "gpulab", "nbval"]
    sanitize_file = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:python", "-p", "no:cacheprovider"),
            *("--nbval", "--nbval-current-env", f"--nbval-sanitize-with={sanitize_file}", str(notebook)),
        ],
        capture_output=True,
        text=True,
        cwd=notebook.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


@pytest.mark.full
def test_a_notebook_with_reports_passes_strict_nbval(saved):
    result = in_ci(saved)
    assert result.returncode == 0, result.stdout[-3000:]
    assert f"{len(CELLS)} passed" in result.stdout


@pytest.mark.night
def test_what_the_users_own_cells_print_is_still_compared(saved, tmp_path):
    notebook = nbformat.read(saved, as_version=4)
    for index in (2, 6):
        for output in notebook.cells[index].outputs:
            if "text" in output:
                output["text"] = output["text"].replace("0.12", "0.21")
            elif output.get("data", {}).get("text/plain") == "42":
                output["data"]["text/plain"] = "43"
    changed = tmp_path / "changed.ipynb"
    nbformat.write(notebook, changed)
    result = in_ci(changed)
    assert "2 failed" in result.stdout, result.stdout[-3000:]
