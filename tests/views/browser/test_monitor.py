"""The monitor in JupyterLab: it updates between and during cells, and its Stop button stops only the monitor."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.front_end.browser import OPEN_MS, Notebook
from tests.support.front_end.legibility import wait_until_legible
from tests.support.front_end.services import JupyterLab

pytestmark = [pytest.mark.browser, pytest.mark.full]

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
print('completed')"""
CELLS = (SETUP, "%gpumonitor watch --every 0.1", LOOP, "print(gpulab.runs['watch'])", "%gpumonitor second", "1 + 1")
STARTS, LOOPS, RUNS, SECOND = 1, 2, 3, 4


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    return jupyterlab.subfolder("monitor")


def write_notebook(path: Path, cells: tuple[str, ...] = CELLS) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    code_cells = [nbformat.v4.new_code_cell(text) for text in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=code_cells, metadata={"kernelspec": kernel}), path)


def count_states(page: Any, panel: Any, enough: int = 4, timeout_s: float = OPEN_MS / 1000) -> int:
    """Count the different states of the panel's tiles until there are enough."""
    deadline_s, states = time.monotonic() + timeout_s, set()
    while len(states) < enough and time.monotonic() < deadline_s:
        states.add(panel.locator(".gpulab-tiles[data-group='']").inner_html())
        page.wait_for_timeout(100)
    return len(states)


class MonitorSession:
    """Observations of a monitor between cells, during a cell, and after its Stop button was pressed."""

    def __init__(self, jupyterlab: JupyterLab, path: Path) -> None:
        self.path, self.errors = path, []
        notebook = jupyterlab.open(path)
        page = notebook.page
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        notebook.run(0, timeout_s=240)
        self.panel = notebook.run(STARTS).locator(".gpulab-live")
        self.panel.wait_for(timeout=OPEN_MS)
        self.button = self.panel.get_by_role("button", name="Stop the monitor").count()
        self.states_between_cells = count_states(page, self.panel)
        notebook.start(LOOPS)
        self.panel.locator(".gpulab-progress", has_text=re.compile(r"^step [1-9]")).wait_for(timeout=OPEN_MS)
        self.prompt = notebook.prompt(LOOPS)
        self.states_during_cell = count_states(page, self.panel)
        self.progress = self.panel.locator(".gpulab-progress").text_content()
        self.later_prompt = notebook.prompt(LOOPS)
        self.panel.get_by_role("button", name="Stop the monitor").click()
        self.panel.wait_for(state="detached", timeout=OPEN_MS)
        self.replacement = notebook.cell(STARTS).locator(".jp-OutputArea").first.inner_text()
        notebook.wait(LOOPS)
        loop = notebook.cell(LOOPS)
        loop.locator("img").wait_for(timeout=OPEN_MS)
        self.loop_text, self.figures = loop.inner_text(), loop.locator("img").count()
        self.run = notebook.run(RUNS).inner_text()
        notebook.save()
        notebook.close()


@pytest.fixture(scope="module")
def session(jupyterlab: JupyterLab, folder: Path) -> MonitorSession:
    write_notebook(folder / "watch.ipynb")
    return MonitorSession(jupyterlab, folder / "watch.ipynb")


def test_it_updates_between_cells(session):
    assert session.button == 1
    assert session.states_between_cells >= 4
    assert session.errors == []


def test_it_updates_while_a_later_cell_runs_and_counts_its_steps(session):
    assert (session.prompt, session.later_prompt) == ("[*]:", "[*]:")
    assert session.states_during_cell >= 4
    assert re.match(r"step [\d,]+", session.progress)


def test_its_button_replaces_the_panel_by_a_report_and_stops_no_cell(session):
    assert 'Run "watch"' in session.replacement
    assert "completed" in session.loop_text
    assert "KeyboardInterrupt" not in session.loop_text
    assert "Run('watch'" in session.run


def test_the_figure_of_the_running_cell_is_kept(session):
    assert session.figures == 1


def test_the_saved_notebook_contains_the_report_and_no_widget(session):
    saved = nbformat.read(session.path, 4)
    outputs = saved.cells[STARTS].outputs
    [data] = [output["data"] for output in outputs if "data" in output]
    assert set(data) == {"text/plain", "text/html"}
    assert "widget-view" not in session.path.read_text()


WINDOWS = ((400, "JupyterLab Light"), (480, "JupyterLab Dark"), (1100, "JupyterLab Dark"))


def test_the_panel_fits_and_is_readable(jupyterlab, folder):
    write_notebook(folder / "look.ipynb")
    notebook = jupyterlab.open(folder / "look.ipynb")
    notebook.run(0, timeout_s=240)
    panel = notebook.run(STARTS).locator(".gpulab-live")
    for width, theme in WINDOWS:
        notebook.page.set_viewport_size({"width": width, "height": 1000})
        notebook.command("apputils:change-theme", {"theme": theme})
        assert_fits(panel)
    notebook.command("apputils:change-theme", {"theme": "JupyterLab Light"})
    notebook.page.set_viewport_size({"width": 1200, "height": 1000})
    abandon(notebook)


def assert_fits(panel: Any) -> None:
    """Check that no element overflows the panel, that its graph has a size, and that its text is legible."""
    spark = panel.locator("[data-hue=memory] .gpulab-graph[data-kind=trail]")
    spark.wait_for(timeout=OPEN_MS)
    panel.page.wait_for_timeout(500)
    overflowing = panel.evaluate(
        "root => [...root.querySelectorAll('*')].filter(node => node.getBoundingClientRect().right"
        " > root.getBoundingClientRect().right + 1).map(node => node.className)"
    )
    assert overflowing == []
    box = spark.bounding_box()
    assert box["width"] >= 60
    assert box["height"] >= 20
    for selector in (".gpulab-value", ".gpulab-label", ".gpulab-description"):
        wait_until_legible(panel.locator(selector).first)


def abandon(notebook: Notebook) -> None:
    """Stop the running monitor, and close the notebook."""
    notebook.execute("from gpulab.views.live.monitor import current; current().abandon()")
    notebook.close()


def test_the_stop_magic_shows_the_report_under_its_own_cell(jupyterlab, folder):
    write_notebook(folder / "magic.ipynb", (SETUP, "%gpumonitor magic", "%gpumonitor --stop"))
    notebook = jupyterlab.open(folder / "magic.ipynb")
    notebook.run(0, timeout_s=240)
    notebook.run(1).locator(".gpulab-live").wait_for(timeout=OPEN_MS)
    assert 'Run "magic"' in notebook.run(2).inner_text()
    notebook.cell(1).locator(".gpulab-live").wait_for(state="detached", timeout=OPEN_MS)
    assert "%gpureport magic" in notebook.cell(1).inner_text()
    notebook.close()


def test_after_its_output_is_cleared_the_panel_can_be_displayed_again(jupyterlab, folder):
    write_notebook(folder / "again.ipynb")
    notebook = jupyterlab.open(folder / "again.ipynb")
    notebook.run(0, timeout_s=240)
    notebook.run(STARTS).locator(".gpulab-live").wait_for(timeout=OPEN_MS)
    notebook.command("notebook:clear-all-cell-outputs")
    panel = notebook.run(SECOND).locator(".gpulab-live")
    panel.wait_for(timeout=OPEN_MS)
    assert "'watch'" in notebook.cell(SECOND).inner_text()
    assert count_states(notebook.page, panel) >= 4
    abandon(notebook)
