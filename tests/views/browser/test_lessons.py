"""A lesson in JupyterLab as a learner uses it: the copied notebook, keyboard use, and the saved notebook."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from gpulab.lessons.course import lesson as lesson_by_id
from gpulab.lessons.handout import copy_course
from tests.support.front_end.browser import OPEN_MS, Notebook
from tests.support.front_end.services import JupyterLab

pytestmark = [pytest.mark.browser, pytest.mark.full]
NAME = "00_start_here.ipynb"
QUESTION = lesson_by_id("00").find_question("time")
ANSWER = next(choice.text for choice in QUESTION.choices if choice.key == QUESTION.right)
ROLES = ("predict", "reveal", "check")


@pytest.fixture(scope="module")
def folder(jupyterlab: JupyterLab) -> Path:
    path = jupyterlab.subfolder("course")
    copy_course(path)
    return path


@pytest.fixture(scope="module")
def lesson(jupyterlab: JupyterLab, folder: Path) -> Iterator[Notebook]:
    notebook = jupyterlab.open(folder / NAME)
    yield notebook
    notebook.close()


@pytest.fixture(scope="module")
def places(folder: Path) -> dict[str, Any]:
    """Return the index of the code cell that asks QUESTION, of the first one of each role after it, and of the last."""
    notebook = nbformat.read(folder / NAME, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    roles = [cell.metadata.tags[0] for cell in cells]
    first = next(index for index, cell in enumerate(cells) if f'L.predict("{QUESTION.key}")' in cell.source)
    later = {role: roles.index(role, first) for role in roles if role in roles[first:]}
    questions = [index for index, role in enumerate(roles[:first]) if role == "predict"]
    return {"check": roles.index("check"), **later, "last": len(roles) - 1, "questions": questions}


def test_a_question_is_answered_with_keys_alone_and_the_answer_is_shown_next_to_the_solution(lesson, places):
    for index in range(places["predict"]):
        lesson.run(index)
    cell = lesson.run(places["predict"])
    buttons = cell.get_by_role("radio")
    buttons.first.wait_for()
    assert buttons.count() == 3
    assert cell.get_by_role("group").filter(has_text=f"{QUESTION.key}: {QUESTION.prompt[:20]}").count() >= 1
    buttons.first.focus()
    lesson.page.keyboard.press("ArrowDown")
    assert buttons.nth(1).is_checked()
    assert cell.get_by_role("status").inner_text().startswith("You chose b.")
    lesson.page.keyboard.press("Enter")
    assert lesson.page.evaluate("document.activeElement.matches('.jp-Cell')"), "and on with Shift and Enter"
    assert not cell.evaluate("cell => cell.contains(document.activeElement)"), "in the next cell"
    cell.get_by_text("Hint 1").click()
    assert cell.get_by_text(QUESTION.hints[0]).is_visible()
    lesson.run(places["measure"])
    solution = lesson.run(places["reveal"])
    solution.get_by_text("b) about half").wait_for()
    assert f"{QUESTION.key}: {QUESTION.right}) {ANSWER}" in solution.inner_text()


def test_a_check_without_an_answer_is_answered_by_a_button_and_the_reason_is_shown(lesson, places):
    lesson.run(0)
    cell = lesson.run(places["check"])
    checked = lesson_by_id("00").find_question("parts")
    cell.get_by_role("radio").first.wait_for()
    for choice in checked.choices:
        cell.get_by_role("radio").nth("abc".index(choice.key)).check()
        cell.get_by_role("status").get_by_text(choice.feedback).wait_for()


def test_after_a_choice_with_the_mouse_the_next_cell_is_active(lesson, places):
    for index in range(places["predict"]):
        lesson.run(index)
    cell = lesson.run(places["predict"])
    cell.get_by_role("radio").nth(2).click()
    lesson.page.wait_for_function(
        "cell => document.activeElement === cell.nextElementSibling", arg=cell.element_handle(), timeout=OPEN_MS
    )


@pytest.mark.night
def test_each_question_has_a_radio_group_of_its_own(lesson, places):
    """Buttons of one name exclude each other, also in different cells."""
    for index in range(places["predict"] + 1):
        lesson.run(index)
    names = []
    for index in (*places["questions"], places["predict"]):
        buttons = lesson.cell(index).get_by_role("radio")
        buttons.first.wait_for()
        names.append({button.get_attribute("name") for button in buttons.all()})
    assert len(names) > 2
    assert [len(each) for each in names] == [1] * len(names)
    assert len(set().union(*names)) == len(names)


@pytest.mark.night
def test_a_blank_that_is_not_filled_in_is_reported_without_an_error(lesson, places):
    for index in range(places["last"] + 1):
        lesson.run(index)
        stderr = lesson.cell(index).locator("[data-mime-type='application/vnd.jupyter.stderr']")
        assert stderr.all_text_contents() == []
    assert "parts: not answered yet" in lesson.cell(places["check"]).text_content()
    assert re.search(r"\d of 4 claims held here", lesson.cell(places["last"]).text_content())


def test_a_saved_lesson_contains_the_question_as_text_and_no_widget(lesson, places, folder):
    lesson.save()
    notebook = nbformat.read(folder / NAME, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    (output,) = cells[places["predict"]].outputs
    assert set(output.data) == {"text/plain", "text/html"}
    assert ANSWER in output.data["text/html"]


def test_without_a_kernel_a_reopened_lesson_shows_the_question_as_text(lesson, jupyterlab, places, folder):
    lesson.save()
    notebook = jupyterlab.read(Path(shutil.copy(folder / NAME, folder / "reopened.ipynb")))
    cell = notebook.cell(places["predict"])
    cell.get_by_text(ANSWER).first.wait_for()
    assert cell.get_by_role("radio").count() == 0
