"""The monitor in a real JupyterLab: it moves between cells and during them, and its button ends it and nothing else."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.front_end.browser import Notebook
from tests.support.front_end.legibility import wait_until_legible
from tests.support.front_end.services import JupyterLab

pytestmark = pytest.mark.browser

SETUP = "import torch, time\ntorch.set_num_threads(1)\nimport gpulab\n%load_ext gpulab"
LOOP = """from torch.utils.data import DataLoader, TensorDataset
%matplotlib inline
import matplotlib.pyplot as plt
plt.plot([1, 2])
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
end = time.monotonic() + 60
while 'watch' not in gpulab.runs and time.monotonic() < end:
    for (x,) in DataLoader(TensorDataset(torch.ones(64, 8)), batch_size=8):
        time.sleep(0.01)
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
plt.title('kept')
print('whole')"""
CELLS = (SETUP, "%gpumonitor watch --every 0.1", LOOP, "print(gpulab.runs['watch'])", "%gpumonitor second", "1 + 1")
STARTS, LOOPS, RUNS, SECOND = 1, 2, 3, 4


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    return jupyterlab.subfolder("monitor")


def made(path: Path, cells: tuple[str, ...] = CELLS) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    written = [nbformat.v4.new_code_cell(text) for text in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=written, metadata={"kernelspec": kernel}), path)


def looks(page: Any, panel: Any, least: int = 4, timeout_s: float = 60) -> int:
    """How many different states the panel's tiles show until there were so many."""
    deadline_s, seen = time.monotonic() + timeout_s, set()
    while len(seen) < least and time.monotonic() < deadline_s:
        seen.add(panel.locator(".gpulab-tiles[data-group='']").inner_html())
        page.wait_for_timeout(100)
    return len(seen)


class Watched:
    """One session: a monitor seen between cells, during a cell, and after its button was pressed."""

    def __init__(self, jupyterlab: JupyterLab, path: Path) -> None:
        self.path, self.errors = path, []
        notebook = jupyterlab.open(path)
        page = notebook.page
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        notebook.run(0, timeout_s=240)
        self.panel = notebook.run(STARTS).locator(".gpulab-live")
        self.panel.wait_for(timeout=60_000)
        self.button = self.panel.get_by_role("button", name="Stop the monitor").count()
        self.between = looks(page, self.panel)
        notebook.start(LOOPS)
        self.panel.locator(".gpulab-progress", has_text=re.compile(r"^step [1-9]")).wait_for(timeout=60_000)
        self.prompt = notebook.prompt(LOOPS)
        self.during = looks(page, self.panel)
        self.progress = self.panel.locator(".gpulab-progress").text_content()
        self.still = notebook.prompt(LOOPS)
        self.panel.get_by_role("button", name="Stop the monitor").click()
        self.panel.wait_for(state="detached", timeout=60_000)
        self.in_place = notebook.cell(STARTS).locator(".jp-OutputArea").first.inner_text()
        notebook.wait(LOOPS)
        loop = notebook.cell(LOOPS)
        loop.locator("img").wait_for(timeout=60_000)
        self.loop_text, self.figures = loop.inner_text(), loop.locator("img").count()
        self.run = notebook.run(RUNS).inner_text()
        notebook.save()
        notebook.close()


@pytest.fixture(scope="module")
def watched(jupyterlab: JupyterLab, folder: Path) -> Watched:
    made(folder / "watch.ipynb")
    return Watched(jupyterlab, folder / "watch.ipynb")


def test_it_moves_between_cells(watched):
    assert watched.button == 1
    assert watched.between >= 4
    assert watched.errors == []


def test_it_moves_while_a_later_cell_runs_and_counts_its_steps(watched):
    assert (watched.prompt, watched.still) == ("[*]:", "[*]:")
    assert watched.during >= 4
    assert re.match(r"step [\d,]+", watched.progress)


def test_its_button_ends_the_monitor_with_a_report_in_its_place_and_no_cell(watched):
    assert "Run watch" in watched.in_place
    assert "whole" in watched.loop_text
    assert "KeyboardInterrupt" not in watched.loop_text
    assert "Run('watch'" in watched.run


def test_the_figure_that_the_cell_was_drawing_is_not_lost(watched):
    assert watched.figures == 1


def test_the_saved_notebook_holds_the_report_and_no_widget(watched):
    saved = nbformat.read(watched.path, 4)
    outputs = saved.cells[STARTS].outputs
    [data] = [output["data"] for output in outputs if "data" in output]
    assert set(data) == {"text/plain", "text/html"}
    assert "widget-view" not in watched.path.read_text()


LOOKS = ((400, "JupyterLab Light"), (480, "JupyterLab Dark"), (1100, "JupyterLab Dark"))


def test_the_panel_fits_and_is_readable(jupyterlab, folder):
    made(folder / "look.ipynb")
    notebook = jupyterlab.open(folder / "look.ipynb")
    notebook.run(0, timeout_s=240)
    panel = notebook.run(STARTS).locator(".gpulab-live")
    for width, theme in LOOKS:
        notebook.page.set_viewport_size({"width": width, "height": 1000})
        notebook.command("apputils:change-theme", {"theme": theme})
        fits(panel)
    notebook.command("apputils:change-theme", {"theme": "JupyterLab Light"})
    notebook.page.set_viewport_size({"width": 1200, "height": 1000})
    abandon(notebook)


def fits(panel: Any) -> None:
    """Nothing reaches beyond the panel, its graph has a size, and its words stand out."""
    spark = panel.locator("[data-hue=memory] .gpulab-graph[data-kind=trail]")
    spark.wait_for(timeout=60_000)
    panel.page.wait_for_timeout(500)
    overflowing = panel.evaluate(
        "root => [...root.querySelectorAll('*')].filter(node => node.getBoundingClientRect().right"
        " > root.getBoundingClientRect().right + 1).map(node => node.className)"
    )
    assert overflowing == []
    box = spark.bounding_box()
    assert box["width"] >= 60
    assert box["height"] >= 20
    for words in (".gpulab-value", ".gpulab-label", ".gpulab-phasewords"):
        wait_until_legible(panel.locator(words).first)


def abandon(notebook: Notebook) -> None:
    """End the monitor that still runs, and close the notebook."""
    notebook.execute("from gpulab.views.live.monitor import current; current().abandon()")
    notebook.close()


def test_stopped_by_the_magic_the_report_is_where_it_was_asked_for(jupyterlab, folder):
    made(folder / "magic.ipynb", (SETUP, "%gpumonitor magic", "%gpumonitor --stop"))
    notebook = jupyterlab.open(folder / "magic.ipynb")
    notebook.run(0, timeout_s=240)
    notebook.run(1).locator(".gpulab-live").wait_for(timeout=60_000)
    assert "Run magic" in notebook.run(2).inner_text()
    notebook.cell(1).locator(".gpulab-live").wait_for(state="detached", timeout=60_000)
    assert "was stopped after" in notebook.cell(1).inner_text()
    notebook.close()


def test_cleared_by_its_reader_it_comes_back_where_it_is_asked_for_again(jupyterlab, folder):
    made(folder / "again.ipynb")
    notebook = jupyterlab.open(folder / "again.ipynb")
    notebook.run(0, timeout_s=240)
    notebook.run(STARTS).locator(".gpulab-live").wait_for(timeout=60_000)
    notebook.command("notebook:clear-all-cell-outputs")
    panel = notebook.run(SECOND).locator(".gpulab-live")
    panel.wait_for(timeout=60_000)
    assert "'watch' is already running" in notebook.cell(SECOND).inner_text()
    assert looks(notebook.page, panel) >= 4
    abandon(notebook)
