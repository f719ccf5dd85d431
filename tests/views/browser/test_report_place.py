"""Where the report appears on the page: in the place of the live panel, unless the user types elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

from tests.support.front_end.browser import OPEN_MS, Notebook
from tests.support.front_end.services import JupyterLab

pytestmark = [pytest.mark.browser, pytest.mark.full]

TRAINING = """%%gpuprofile before
import time
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(60):
    time.sleep(0.03)
    optimizer.zero_grad()
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
"""
LINES = "print('\\n'.join(map(str, range(60))))"  # so that the page is scrolled
CELLS = (f"import torch\ntorch.set_num_threads(1)\n{LINES}", "%load_ext gpulab", TRAINING, "typed = 1", "print('last')")
PROFILED, NEXT = 2, 3
# Like Shift and Enter; it does not wait for the cell.
_RUN_AND_ADVANCE = """index => {
  const app = window.jupyterapp, notebook = app.shell.currentWidget.content;
  notebook.activeCellIndex = index;
  notebook.mode = 'command';
  app.commands.execute('notebook:run-cell-and-select-next');
}"""
_TYPE = """index => {
  const notebook = window.jupyterapp.shell.currentWidget.content;
  notebook.activeCellIndex = index;
  notebook.mode = 'edit';
  notebook.activeCell.editor.focus();
}"""


@pytest.fixture
def started(jupyterlab: JupyterLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Notebook, Any]]:
    """A notebook whose profiled cell was started with Shift and Enter, and that cell; its live panel is in view."""
    path = jupyterlab.subfolder(tmp_path_factory.mktemp("place").name) / "place.ipynb"
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    notebook = jupyterlab.open(path)
    notebook.page.set_viewport_size({"width": 1200, "height": 700})
    for index in range(PROFILED):
        notebook.run(index)
    notebook.page.evaluate(_RUN_AND_ADVANCE, PROFILED)
    cell = notebook.cell(PROFILED)
    cell.locator(".gpulab-live").wait_for(timeout=OPEN_MS)
    yield notebook, cell
    notebook.page.set_viewport_size({"width": 1200, "height": 1000})
    notebook.close()


def top_of(element: Any) -> float:
    return float(element.evaluate("node => node.getBoundingClientRect().top"))


def wait_for_report(notebook: Notebook) -> Any:
    notebook.wait(PROFILED)
    report = notebook.cell(PROFILED).locator("[role=group][aria-label*='before']").first
    report.wait_for(timeout=OPEN_MS)
    return report


def test_the_first_line_of_the_report_is_in_view_although_the_next_cell_is_active(started):
    notebook, _ = started
    report = wait_for_report(notebook)
    notebook.page.wait_for_function(
        "node => { const { top } = node.getBoundingClientRect(); return top > 0 && top < innerHeight - 60; }",
        arg=report.element_handle(),
        timeout=OPEN_MS,
    )
    assert report.evaluate("node => node.getBoundingClientRect().height") > 700, "otherwise it always fits"


def test_the_page_does_not_move_under_somebody_who_types(started):
    notebook, _ = started
    notebook.page.evaluate(_TYPE, NEXT)
    notebook.page.keyboard.press("End")
    notebook.page.keyboard.type("000")
    wait_for_report(notebook)
    notebook.page.wait_for_timeout(600)  # the report is moved, if at all, within 200 ms
    notebook.page.keyboard.type("1")
    editor = notebook.cell(NEXT).locator(".cm-content")
    assert editor.inner_text().strip() == "typed = 10001"
    assert 0 < top_of(editor) < 700
