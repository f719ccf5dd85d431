"""The course: every notebook obeys the rules, the rules detect defects, and the course can be copied."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

from gpulab import GpulabError
from gpulab.cli.commands import NBVAL_SETTINGS
from gpulab.cli.main import USAGE_ERROR, main
from gpulab.lessons import contents, handout
from gpulab.lessons.course import PATHS, lesson, lessons
from tests.support.front_end.kernel import ROOT
from tools import nblint
from tools import notebooks as built

FOLDER = ROOT / "notebooks"
IDS = [item.id for item in lessons()]


def notebook(id="00_start_here"):
    return nbformat.read(FOLDER / f"{id}.ipynb", as_version=4)


@pytest.mark.parametrize("id", IDS)
def test_a_notebook_obeys_the_rules(id):
    assert nblint.problems(FOLDER / f"{id}.ipynb") == []


@pytest.mark.parametrize("id", [*IDS, "index"])
def test_a_notebook_is_built_from_its_text(id):
    rebuilt = built.from_text(FOLDER / "text" / f"{id}.py")
    stored = notebook(id)
    assert [(cell.id, cell.source) for cell in rebuilt.cells] == [(cell.id, cell.source) for cell in stored.cells]
    assert [cell.metadata for cell in rebuilt.cells] == [cell.metadata for cell in stored.cells]


@pytest.mark.parametrize("id", [*IDS, "index"])
def test_a_text_is_unchanged_after_conversion_to_a_notebook_and_back(id):
    text = (FOLDER / "text" / f"{id}.py").read_text(encoding="utf-8")
    assert built.to_text(built.from_text(FOLDER / "text" / f"{id}.py")).strip() == text.strip()


def test_every_notebook_has_a_lesson_and_every_lesson_a_notebook():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted([*IDS, "index"])
    assert sorted(path.stem for path in (FOLDER / "text").glob("*.py")) == sorted([*IDS, "index"])


@pytest.mark.parametrize("one", lessons(), ids=lambda one: one.id)
def test_every_question_of_a_lesson_has_an_answer(one):
    for question in one.questions:
        assert question.prompt.endswith(("?", ".", ".)")), question.prompt
        assert question.hints is None or all(question.hints)
        if question.find_problem is not None:
            assert question.find_problem(object()), f"{question.key} accepts any answer"
            continue
        keys = [choice.key for choice in question.choices]
        assert keys == list("abcdefghijkl"[: len(keys)])
        assert len(keys) >= 2
        if question.right is None:
            bounds = [choice.below for choice in question.choices]
            assert bounds[-1] is None
            assert bounds[:-1] == sorted(bounds[:-1])
            assert question.expected in keys, f"{question.key} does not say which answer its measurement should give"
        else:
            assert question.right in keys
            assert question.explanation, f"{question.key} has no explanation"
    assert set(one.prerequisites) <= set(IDS), "requires a lesson that does not exist"


def test_paths_contain_only_lessons_that_exist():
    for numbers in PATHS.values():
        assert [lesson(number).number for number in numbers] == list(numbers)
        for position, number in enumerate(numbers):
            required = {required_id.partition("_")[0] for required_id in lesson(number).prerequisites}
            assert required <= set(numbers[:position]), f"{number} requires lessons that the path leaves out"


def test_the_right_answers_are_not_all_the_same_letter():
    letters = [question.right for item in lessons() for question in item.questions if question.right]
    assert max(letters.count(letter) for letter in "abcd") < 0.6 * len(letters)


def test_the_index_and_the_course_page_agree_with_the_lessons():
    index, page = FOLDER / "text" / "index.py", ROOT / "docs" / "course.md"
    for path, links, before in ((index, "", "# "), (page, "../notebooks/", "")):
        text = path.read_text(encoding="utf-8")
        assert built.with_course(text, links, before) == text, "run tools/notebooks.py index"
    assert all(f"{id}.ipynb" in contents.lesson_table() for id in IDS)


# The rules detect defects.


def changed(change):
    """Return the problems that the rules find in lesson 00 after one change."""
    edited = copy.deepcopy(notebook())
    change(edited)
    return [problem for rule in nblint.RULES for problem in rule(edited, lesson("00"))]


def code(one, role):
    return next(cell for cell in one.cells if cell.cell_type == "code" and cell.metadata.tags[0] == role)


DEFECTS = {
    "a second h1": (lambda one: one.cells[2].update(source="# Again"), "h1"),
    "a heading level left out": (lambda one: one.cells[2].update(source="## a\n\n#### b"), "skips a heading"),
    "another kernel": (lambda one: one.metadata.kernelspec.update(name="julia"), "not python3"),
    "widget state": (lambda one: one.metadata.update(widgets={}), "widgets"),
    "no role": (lambda one: code(one, "setup").metadata.update(tags=[]), "no role"),
    "an unknown tag": (lambda one: code(one, "setup").metadata.tags.append("nbval-skip"), "nbval-skip"),
    "a claim that is not compared": (
        lambda one: code(one, "claim").metadata.tags.append("nbval-ignore-output"),
        "not compared",
    ),
    "a cell that was not run": (lambda one: code(one, "setup").update(execution_count=None), "not run once"),
    "typed input": (lambda one: code(one, "setup").update(source="x = input('?')"), "asks for typed input"),
    "an installation": (lambda one: code(one, "setup").update(source="!pip install x"), "installs"),
    "a download": (lambda one: code(one, "setup").update(source="get('https://x')"), "network"),
    "a comment above a magic": (lambda one: code(one, "setup").update(source="# x\n%%time\n1"), "above its cell magic"),
    "a semicolon": (lambda one: code(one, "setup").update(source="plot();"), "semicolon"),
    "a comment for nbval": (lambda one: code(one, "setup").update(source="# NBVAL_SKIP\n1"), "NBVAL"),
    "a mark left open": (lambda one: code(one, "setup").update(source="# <blank> x\n1"), "has no end"),
    "a path in an output": (
        lambda one: code(one, "check").outputs.append(nbformat.v4.new_output("stream", text="/home/me")),
        "names a path",
    ),
    "two claims in a cell": (
        lambda one: code(one, "claim").update(source=code(one, "claim").source * 2),
        "has 2 claims",
    ),
    "a claim that failed": (
        lambda one: code(one, "claim").outputs[0].data.update({"text/plain": "FAILS  it is so  [measured here]"}),
        "failed when it was built",
    ),
    "no prediction": (
        lambda one: code(one, "predict").metadata.update(tags=["given"]),
        "before anything was predicted",
    ),
    "a link to nowhere": (lambda one: one.cells[2].update(source="## a\n\n[x](99_gone.ipynb)"), "99_gone"),
    "a picture without words": (lambda one: one.cells[2].update(source="## a\n\n![](a.png)"), "without words"),
    "experiments out of order": (
        lambda one: one.cells[2].update(source=one.cells[2].source.replace("00.1", "00.9")),
        "in another order",
    ),
    "an experiment left out": (lambda one: one.cells.pop(2), "00.1"),
    "a question never asked": (lambda one: code(one, "predict").update(source="pass"), "never asks 'time'"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_detected(name):
    change, keyword = DEFECTS[name]
    if name == "a question never asked":
        problems = changed(lambda one: [cell.update(source="pass") for cell in one.cells if '"time"' in cell.source])
    else:
        problems = changed(change)
    assert any(keyword in problem for problem in problems), problems


def test_lesson_00_has_none_of_these_defects():
    assert changed(lambda one: None) == []


def test_a_notebook_that_is_too_large_or_not_canonical_is_detected(tmp_path, monkeypatch):
    path = tmp_path / "00_start_here.ipynb"
    path.write_text(json.dumps(notebook()), encoding="utf-8")
    monkeypatch.setattr(nblint, "MOST_BYTES", 1000)
    problems = nblint.problems(path)
    assert any("bytes" in problem for problem in problems)
    assert any("canonical" in problem for problem in problems)


def test_a_claim_that_raises_or_has_no_output_is_reported():
    edited = notebook()
    claims = [cell for cell in edited.cells if cell.cell_type == "code" and cell.metadata.tags[0] == "claim"]
    claims[0].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    claims[1].outputs = []
    verdicts = list(built.verdicts(edited))
    assert verdicts[0] == "ValueError: no"
    assert verdicts[1].startswith("says nothing")
    assert verdicts[2].startswith("HOLDS")


# Copies in a learner's folder.


def test_the_course_is_copied_with_solutions_and_without_outputs(tmp_path, capsys):
    assert main(["lessons", str(tmp_path / "course")]) == 0
    command = re.search(r"jupyter lab (\S+)", capsys.readouterr().out)
    assert command is not None
    assert Path(command[1]).is_file()
    names = {path.name for path in (tmp_path / "course").glob("*.ipynb")}
    assert names == {f"{id}.ipynb" for id in [*IDS, "index"]}
    starter = nbformat.read(tmp_path / "course" / "00_start_here.ipynb", as_version=4)
    solution = nbformat.read(tmp_path / "course" / "solutions" / "00_start_here.ipynb", as_version=4)
    for version in (starter, solution):
        nbformat.validate(version)
        cells = [cell for cell in version.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells)
        assert not any("# <" in cell.source or "# was:" in cell.source for cell in cells)
    texts = ["\n".join(cell.source for cell in version.cells) for version in (starter, solution)]
    assert ["# your turn" in text for text in texts] == [True, False]


def test_an_existing_notebook_is_not_overwritten(tmp_path, capsys):
    main(["lessons", str(tmp_path)])
    lessons, solutions = (len(list(folder.glob("[0-9]*.ipynb"))) for folder in (tmp_path, tmp_path / "solutions"))
    assert f"{lessons} lessons, {solutions} solutions and an index" in capsys.readouterr().out
    (tmp_path / "00_start_here.ipynb").write_text("mine", encoding="utf-8")
    assert main(["lessons", str(tmp_path)]) == 0
    assert (tmp_path / "00_start_here.ipynb").read_text(encoding="utf-8") == "mine"
    assert "no new notebook" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["lessons", str(tmp_path / "file" / "course")]) == USAGE_ERROR
    assert "cannot be copied" in capsys.readouterr().err


def test_an_installation_without_notebooks_is_an_error(monkeypatch, tmp_path):
    monkeypatch.setattr(handout, "__file__", str(tmp_path / "a" / "b" / "handout.py"))
    with pytest.raises(GpulabError, match="does not contain the notebooks"):
        handout.notebooks()


def test_the_nbval_command_prints_the_path_of_its_configuration(capsys):
    assert main(["nbval"]) == 0
    assert capsys.readouterr().out.strip() == str(NBVAL_SETTINGS)
    assert NBVAL_SETTINGS.is_file()


# The recording takes some of the batches, the first ones were loaded in advance, and a comparison needs three groups.
ENOUGH_GROUPS, MOST_WORKERS = 12, 8


@pytest.mark.parametrize("size", ["tiny", "lab", "full"])
def test_the_loop_for_the_learners_own_workers_has_enough_groups_of_batches(size):
    sources = [cell.source for cell in notebook().cells]
    own = next(text for text in sources if "%%gpuprofile own" in text)
    lab = SimpleNamespace(device="gpu", pick=lambda **values: values[size])
    names = {"L": lab}
    for setup in (text for text in sources if "= Photos(" in text):
        exec(setup, names)
    dataset, batch_size = re.search(r"DataLoader\((\w+), batch_size=(\d+)", own).groups()
    assert len(names[dataset]) // int(batch_size) >= ENOUGH_GROUPS * MOST_WORKERS
