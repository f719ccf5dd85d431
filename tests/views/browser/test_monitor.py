"""The monitor in a real JupyterLab: it moves between cells and during them, and its button ends it and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.support.front_end.browser import Lab, Notebook, browser, lab
from tests.support.front_end.profiled_cell import contrast

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lab")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Lab]:
    with lab(folder) as running:
        yield running


@pytest.fixture(scope="module")
def window() -> Iterator[Any]:
    with browser() as opened:
        yield opened.new_context(viewport={"width": 1200, "height": 1000})


@pytest.fixture
def page(window: Any) -> Iterator[Any]:
    opened = window.new_page()
    yield opened
    opened.close()


def made(path: Path, cells: tuple[str, ...] = CELLS) -> None:
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    written = [nbformat.v4.new_code_cell(text) for text in cells]
    nbformat.write(nbformat.v4.new_notebook(cells=written, metadata={"kernelspec": kernel}), path)


def looks(page: Any, panel: Any, times: int = 8) -> list[str]:
    """What the panel's tiles show over two seconds."""
    seen = []
    for _ in range(times):
        seen.append(panel.locator(".gpulab-tiles[data-group='']").inner_html())
        page.wait_for_timeout(250)
    return seen


class Watched:
    """One session: a monitor seen between cells, during a cell, and after its button was pressed."""

    def __init__(self, page: Any, server: Lab, path: Path) -> None:
        self.path, self.errors = path, []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        notebook = Notebook(page, server, path.name)
        notebook.run(0, timeout_s=240)
        self.panel = notebook.run(STARTS).locator(".gpulab-live")
        self.panel.wait_for(timeout=20_000)
        self.button = self.panel.get_by_role("button", name="Stop the monitor").count()
        self.between = looks(page, self.panel)
        notebook.start(LOOPS)
        self.panel.locator(".gpulab-progress", has_text=re.compile(r"^step [1-9]")).wait_for(timeout=30_000)
        self.prompt = notebook.prompt(LOOPS)
        self.during = looks(page, self.panel)
        self.progress = self.panel.locator(".gpulab-progress").text_content()
        self.still = notebook.prompt(LOOPS)
        self.panel.get_by_role("button", name="Stop the monitor").click()
        self.panel.wait_for(state="detached", timeout=20_000)
        self.in_place = notebook.cell(STARTS).locator(".jp-OutputArea").first.inner_text()
        notebook.wait(LOOPS)
        loop = notebook.cell(LOOPS)
        loop.locator("img").wait_for(timeout=10_000)
        self.loop_text, self.figures = loop.inner_text(), loop.locator("img").count()
        self.run = notebook.run(RUNS).inner_text()
        notebook.save()
        notebook.close()


@pytest.fixture(scope="module")
def watched(server: Lab, window: Any, folder: Path) -> Iterator[Watched]:
    made(folder / "watch.ipynb")
    page = window.new_page()
    yield Watched(page, server, folder / "watch.ipynb")
    page.close()


def test_it_moves_between_cells(watched):
    assert watched.button == 1
    assert len(set(watched.between)) >= 4
    assert watched.errors == []


def test_it_moves_while_a_later_cell_runs_and_counts_its_steps(watched):
    assert (watched.prompt, watched.still) == ("[*]:", "[*]:")
    assert len(set(watched.during)) >= 4
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


@pytest.mark.parametrize(
    ("width", "theme"), [(400, "JupyterLab Light"), (480, "JupyterLab Dark"), (1100, "JupyterLab Dark")]
)
def test_the_panel_fits_and_is_readable(server, page, folder, width, theme):
    made(folder / "look.ipynb")
    page.set_viewport_size({"width": width, "height": 1000})
    notebook = Notebook(page, server, "look.ipynb")
    notebook.command("apputils:change-theme", {"theme": theme})
    notebook.run(0, timeout_s=240)
    panel = notebook.run(STARTS).locator(".gpulab-live")
    spark = panel.locator("[data-hue=memory] .gpulab-graph[data-kind=trail]")
    spark.wait_for(timeout=20_000)
    page.wait_for_timeout(1000)
    overflowing = panel.evaluate(
        "root => [...root.querySelectorAll('*')].filter(node => node.getBoundingClientRect().right"
        " > root.getBoundingClientRect().right + 1).map(node => node.className)"
    )
    assert overflowing == []
    box = spark.bounding_box()
    assert box["width"] >= 60
    assert box["height"] >= 20
    for words in (".gpulab-value", ".gpulab-label", ".gpulab-phasewords"):
        assert contrast(panel.locator(words).first) >= 4.5, words
    notebook.close()


def test_stopped_by_the_magic_the_report_is_where_it_was_asked_for(server, page, folder):
    made(folder / "magic.ipynb", (SETUP, "%gpumonitor magic", "%gpumonitor --stop"))
    notebook = Notebook(page, server, "magic.ipynb")
    notebook.run(0, timeout_s=240)
    notebook.run(1).locator(".gpulab-live").wait_for(timeout=20_000)
    assert "Run magic" in notebook.run(2).inner_text()
    page.wait_for_timeout(500)
    assert notebook.cell(1).locator(".gpulab-live").count() == 0
    assert "was stopped after" in notebook.cell(1).inner_text()
    notebook.close()


def test_cleared_by_its_reader_it_comes_back_where_it_is_asked_for_again(server, page, folder):
    made(folder / "again.ipynb")
    notebook = Notebook(page, server, "again.ipynb")
    notebook.run(0, timeout_s=240)
    notebook.run(STARTS).locator(".gpulab-live").wait_for(timeout=20_000)
    notebook.command("notebook:clear-all-cell-outputs")
    panel = notebook.run(SECOND).locator(".gpulab-live")
    panel.wait_for(timeout=20_000)
    assert "'watch' is monitored already" in notebook.cell(SECOND).inner_text()
    assert len(set(looks(page, panel))) >= 4
    notebook.close()
