"""The course: every notebook is as its rules say, the rules notice what they are for, and it can be copied."""

from __future__ import annotations

import copy
import json

import nbformat
import pytest

from gpulab import GpulabError
from gpulab.__main__ import SANITIZER, main
from gpulab.lessons import contents, handout
from gpulab.lessons.course import PATHS, lesson, lessons
from tests.support.front_end.kernel import ROOT
from tools import nblint
from tools import notebooks as built

FOLDER = ROOT / "notebooks"
IDS = [one.id for one in lessons()]


def notebook(id="00_start_here"):
    return nbformat.read(FOLDER / f"{id}.ipynb", as_version=4)


@pytest.mark.parametrize("id", IDS)
def test_a_notebook_is_as_the_rules_say(id):
    assert nblint.problems(FOLDER / f"{id}.ipynb") == []


@pytest.mark.parametrize("id", [*IDS, "index"])
def test_a_notebook_is_the_one_its_text_makes(id):
    made = built.from_text(FOLDER / "text" / f"{id}.py")
    kept = notebook(id)
    assert [(cell.id, cell.source) for cell in made.cells] == [(cell.id, cell.source) for cell in kept.cells]
    assert [cell.metadata for cell in made.cells] == [cell.metadata for cell in kept.cells]


@pytest.mark.parametrize("id", [*IDS, "index"])
def test_a_text_survives_the_way_to_a_notebook_and_back(id):
    text = (FOLDER / "text" / f"{id}.py").read_text(encoding="utf-8")
    assert built.to_text(built.from_text(FOLDER / "text" / f"{id}.py")).strip() == text.strip()


def test_every_notebook_has_a_lesson_and_every_lesson_a_notebook():
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted([*IDS, "index"])
    assert sorted(path.stem for path in (FOLDER / "text").glob("*.py")) == sorted([*IDS, "index"])


@pytest.mark.parametrize("one", lessons(), ids=lambda one: one.id)
def test_a_lesson_asks_nothing_it_cannot_answer(one):
    for question in one.questions:
        assert question.ask.endswith(("?", ".", ".)")), question.ask
        assert question.hints is None or all(question.hints)
        if question.judge is not None:
            assert question.judge(object()), f"{question.key} takes anything for right"
            continue
        keys = [choice.key for choice in question.choices]
        assert keys == list("abcdefghijkl"[: len(keys)])
        assert len(keys) >= 2
        if question.right is None:
            bounds = [choice.below for choice in question.choices]
            assert bounds[-1] is None
            assert bounds[:-1] == sorted(bounds[:-1])
        else:
            assert question.right in keys
            assert question.because, f"{question.key} gives no reason"
    assert set(one.before) <= set(IDS), "after a lesson that there is not"


def test_paths_lead_through_lessons_that_there_are_and_each_begins_early():
    for numbers in PATHS.values():
        assert [lesson(number).number for number in numbers] == list(numbers)


def test_the_right_answers_are_not_all_the_same_letter():
    rights = [one.right for each in lessons() for one in each.questions if one.right]
    assert max(rights.count(letter) for letter in "abcd") < 0.6 * len(rights)


def test_the_index_and_the_readme_are_what_the_lessons_say():
    for path, links, before in ((FOLDER / "text" / "index.py", "", "# "), (ROOT / "README.md", "notebooks/", "")):
        text = path.read_text(encoding="utf-8")
        assert built.with_course(text, links, before) == text, "run tools/notebooks.py index"
    assert all(f"{id}.ipynb" in contents.table() for id in IDS)


# The rules notice what they are for.


def changed(change):
    """What the rules say of lesson 00 with one thing changed."""
    one = copy.deepcopy(notebook())
    change(one)
    told = lesson("00")
    return [problem for rule in nblint.RULES for problem in rule(one, told)]


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
    "a mark left open": (lambda one: code(one, "setup").update(source="# <fix>\n1"), "does not end"),
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
    "an experiment left out": (lambda one: one.cells.pop(2), "00.1"),
    "a question never asked": (lambda one: code(one, "predict").update(source="pass"), "never asks 'time'"),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_noticed(name):
    change, said = DEFECTS[name]
    if name == "a question never asked":
        told = changed(lambda one: [cell.update(source="pass") for cell in one.cells if '"time"' in cell.source])
    else:
        told = changed(change)
    assert any(said in problem for problem in told), told


def test_lesson_00_as_it_is_has_none_of_these_defects():
    assert changed(lambda one: None) == []


def test_a_notebook_too_large_or_written_otherwise_is_noticed(tmp_path, monkeypatch):
    path = tmp_path / "00_start_here.ipynb"
    path.write_text(json.dumps(notebook()), encoding="utf-8")
    monkeypatch.setattr(nblint, "MOST_BYTES", 1000)
    told = nblint.problems(path)
    assert any("bytes" in problem for problem in told)
    assert any("canonical" in problem for problem in told)


def test_a_claim_that_raises_or_says_nothing_is_told_as_such():
    one = notebook()
    claims = [cell for cell in one.cells if cell.cell_type == "code" and cell.metadata.tags[0] == "claim"]
    claims[0].outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    claims[1].outputs = []
    told = list(built.verdicts(one))
    assert told[0] == "ValueError: no"
    assert told[1].startswith("says nothing")
    assert told[2].startswith("HOLDS")


# Copied to a learner's folder.


def test_the_course_is_copied_with_solutions_and_without_outputs(tmp_path, capsys):
    assert main(["lessons", str(tmp_path / "course")]) == 0
    assert "jupyter lab" in capsys.readouterr().out
    names = {path.name for path in (tmp_path / "course").glob("*.ipynb")}
    assert names == {f"{id}.ipynb" for id in [*IDS, "index"]}
    mine = nbformat.read(tmp_path / "course" / "00_start_here.ipynb", as_version=4)
    theirs = nbformat.read(tmp_path / "course" / "solutions" / "00_start_here.ipynb", as_version=4)
    for one in (mine, theirs):
        nbformat.validate(one)
        cells = [cell for cell in one.cells if cell.cell_type == "code"]
        assert not any(cell.outputs or cell.execution_count for cell in cells)
        assert not any("# <" in cell.source or "# was:" in cell.source for cell in cells)
    texts = ["\n".join(cell.source for cell in one.cells) for one in (mine, theirs)]
    assert ["# your turn" in text for text in texts] == [True, False]


def test_what_a_learner_wrote_stays(tmp_path, capsys):
    main(["lessons", str(tmp_path)])
    (tmp_path / "00_start_here.ipynb").write_text("mine", encoding="utf-8")
    capsys.readouterr()
    assert main(["lessons", str(tmp_path)]) == 0
    assert (tmp_path / "00_start_here.ipynb").read_text(encoding="utf-8") == "mine"
    assert "0 notebooks written" in capsys.readouterr().out


def test_a_folder_that_cannot_be_written_is_said_in_a_sentence(tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["lessons", str(tmp_path / "file" / "course")]) == 1
    assert "cannot be copied" in capsys.readouterr().err


def test_an_installation_without_notebooks_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(handout, "__file__", str(tmp_path / "a" / "b" / "handout.py"))
    with pytest.raises(GpulabError, match="packed without them"):
        handout.notebooks()


def test_the_file_for_nbval_is_where_it_says(capsys):
    assert main(["nbval"]) == 0
    assert capsys.readouterr().out.strip() == str(SANITIZER)
    assert SANITIZER.is_file()
