"""A lesson in JupyterLab, as a learner does it: the copied starter, keys alone, and what stays when it is saved."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest

from gpulab.lessons.handout import copy
from tests.support.front_end.browser import Notebook
from tests.support.front_end.services import JupyterLab

pytestmark = pytest.mark.browser
NAME = "00_start_here.ipynb"
ROLES = ("predict", "reveal", "check")


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    place = jupyterlab.subfolder("course")
    copy(place)
    return place


@pytest.fixture(scope="module")
def opened(jupyterlab: JupyterLab, folder: Path) -> Iterator[Notebook]:
    notebook = jupyterlab.open(folder / NAME)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def places(folder: Path) -> dict[str, int]:
    """The number of the first code cell of each role."""
    notebook = nbformat.read(folder / NAME, as_version=4)
    roles = [cell.metadata.tags[0] for cell in notebook.cells if cell.cell_type == "code"]
    return {role: roles.index(role) for role in roles}


def test_a_question_is_answered_with_keys_alone_and_the_answer_stands_beside_what_is_right(opened, places):
    for index in range(places["predict"]):
        opened.run(index)
    cell = opened.run(places["predict"])
    buttons = cell.get_by_role("radio")
    buttons.first.wait_for()
    assert buttons.count() == 3
    assert cell.get_by_role("group").filter(has_text="time: A call hands its work").count() >= 1
    buttons.first.focus()
    opened.page.keyboard.press("ArrowDown")
    assert buttons.nth(1).is_checked()
    assert cell.get_by_role("status").inner_text().startswith("You chose b.")
    opened.page.keyboard.press("Enter")
    assert opened.page.evaluate("document.activeElement.matches('.jp-Cell')"), "and on with Shift and Enter"
    cell.get_by_text("Hint 1").click()
    assert cell.get_by_text("Look at when the call returns").is_visible()
    opened.run(places["measure"])
    told = opened.run(places["reveal"])
    told.get_by_text("b) about half").wait_for()
    assert "time: c) next to nothing" in told.inner_text()


@pytest.mark.full
def test_a_blank_that_is_not_filled_is_said_and_nothing_stops(opened, places):
    count = opened.page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-CodeCell").count()
    for index in range(places["reveal"] + 1, count):
        opened.run(index)
        assert opened.cell(index).locator("[data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    assert "parts: not answered yet" in opened.cell(places["check"]).text_content()
    assert re.search(r"\d of 4 claims held here", opened.cell(count - 1).text_content())


def test_a_saved_lesson_holds_the_question_as_text_and_no_widget(opened, places, folder):
    opened.save()
    notebook = nbformat.read(folder / NAME, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (output,) = cells[places["predict"]].outputs
    assert set(output.data) == {"text/plain", "text/html"}
    assert "next to nothing" in output.data["text/html"]


def test_reopened_without_a_kernel_the_question_is_read_as_text(opened, jupyterlab, places, folder):
    opened.save()
    notebook = jupyterlab.read(Path(shutil.copy(folder / NAME, folder / "reopened.ipynb")))
    cell = notebook.cell(places["predict"])
    cell.get_by_text("next to nothing").wait_for()
    assert cell.get_by_role("radio").count() == 0
