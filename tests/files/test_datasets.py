"""Every folder in `recorded_runs/` is a test: its card agrees with its run, its known answer with the diagnosis.

pytest tests/files/test_datasets.py -k case03
"""

from __future__ import annotations

import datetime
import json
import re
import shutil
from pathlib import Path

import msgspec
import pytest

import gpulab
from gpulab.errors import GpulabError
from gpulab.files import datasets as module
from gpulab.files.datasets import (
    ANSWER,
    CARD,
    FIXED,
    MAX_DATASET_BYTES,
    RUN,
    dataset,
    datasets,
    datasets_folder,
    device_label,
)
from tools import record_drills

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path for path in (ROOT / "recorded_runs").iterdir() if path.is_dir())
WITH_FIXED_TWIN = [path for path in FOLDERS if (path / FIXED).exists()]
of_each_folder = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)

# Where a real fix gained more than the bound of its prediction: known weaknesses.
BOUND_EXCEEDED = {
    "h100_05": "52x measured, bound 37x: the traced calls that remain lasted longer than without the profiler",
    "h100_06": "1.33x measured, bound 1.21x: the host was quicker in the fixed run, in dispatch and Python code, too",
}


# Every folder.


@of_each_folder
def test_a_folder_holds_runs_with_a_card_and_nothing_else(folder):
    files = {path.name for path in folder.iterdir()}
    assert {RUN, CARD} <= files <= {RUN, FIXED, CARD, ANSWER}
    assert set(dataset(folder.name).card.runs) == files & {RUN, FIXED}
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_DATASET_BYTES


@of_each_folder
def test_a_card_is_complete(folder):
    card = dataset(folder.name).card
    texts = (card.title, card.recorded, card.command, card.processing, card.limits, card.used_for)
    assert all(text == text.strip() != "" for text in texts)
    assert card.licence == "Apache-2.0"
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*", card.versions.gpulab)
    assert card.date <= datetime.date.today()
    scripts = [word for word in card.command.split() if word.startswith(("tools/", "benchmarks/"))]
    assert all((ROOT / script).is_file() for script in scripts), card.command


@of_each_folder
def test_a_card_agrees_with_the_runs(folder):
    entry = dataset(folder.name)
    card = entry.card
    for file, about in card.runs.items():
        run = gpulab.load(folder / file)
        assert about.name == run.name
        assert about.bytes == (folder / file).stat().st_size
        assert run.source.how in ("recorded", "virtual"), "a run on disk was not measured here"
        assert card.device == device_label(run)
        assert run.source.date in (None, card.date.isoformat())
        assert (card.versions.torch, card.versions.python) == (run.machine.torch, run.machine.python)


@of_each_folder
def test_a_run_is_diagnosed_and_its_fixed_twin_no_longer_has_the_finding(folder):
    entry = dataset(folder.name)
    diagnosis, answer = gpulab.diagnose(entry.load()), entry.answer
    assert diagnosis.verdict
    if answer is None:
        return
    assert answer.planted
    assert (diagnosis.first.rule if diagnosis.first else None) == answer.finding
    fixed = entry.load_fixed()
    if fixed is not None:
        assert answer.finding not in {finding.rule for finding in gpulab.diagnose(fixed).findings}


@pytest.mark.parametrize("folder", WITH_FIXED_TWIN, ids=lambda folder: folder.name)
def test_the_fixed_twin_is_no_faster_than_the_bound_of_the_fix(folder, request):
    if folder.name in BOUND_EXCEEDED:
        request.applymarker(pytest.mark.xfail(reason=BOUND_EXCEEDED[folder.name], strict=True))
    entry = dataset(folder.name)
    slow, fixed = gpulab.diagnose(entry.load()), gpulab.diagnose(entry.load_fixed())
    if slow.first.gain is None:
        return
    measured = slow.steps.step_ns / fixed.steps.step_ns
    assert measured <= 1.05 * slow.first.gain.step_ns / slow.first.gain.floor_ns  # 5 %: two recordings of one loop


@of_each_folder
def test_only_the_answer_reveals_what_was_planted(folder):
    answer = dataset(folder.name).answer
    if answer is None:
        return
    workloads = {recipe.workload for recipe in answer.recipes.values()}
    texts = [folder / CARD, ROOT / "recorded_runs" / "README.md"]
    text = "".join(path.read_text(encoding="utf-8") for path in texts)
    assert not [word for word in (answer.planted, answer.finding, *workloads) if word and word in text]


@of_each_folder
def test_a_recipe_can_be_followed(folder):
    entry = dataset(folder.name)
    recipes = entry.answer.recipes if entry.answer else {}
    assert not recipes or set(recipes) == set(entry.card.runs)
    assert {recipe.workload for recipe in recipes.values()} <= set(record_drills.LOOPS)
    assert not recipes or f"tools/record_drills.py {folder.name}" in entry.card.command


# Finding them.


def test_all_folders_are_datasets_and_in_order():
    assert [entry.name for entry in datasets()] == [folder.name for folder in FOLDERS]
    assert datasets_folder() == ROOT / "recorded_runs"
    assert dataset("case04").fixed_path == ROOT / "recorded_runs" / "case11" / RUN
    assert dataset("case11").load_fixed() is None
    assert "no_workers" not in repr(dataset("case01"))


def test_a_new_folder_is_a_dataset_without_code(tmp_path):
    added = tmp_path / "added"
    shutil.copytree(ROOT / "recorded_runs" / "case02", added)
    (added / ANSWER).unlink()
    (entry,) = datasets(tmp_path)
    assert (entry.name, entry.answer, entry.load().name) == ("added", None, "case 2")


def test_an_unknown_name_is_answered_with_the_names_that_exist():
    with pytest.raises(GpulabError, match=r"no dataset 'case99'(.|\n)*case01, case02"):
        dataset("case99")


@pytest.mark.parametrize("change", [{"device": 3}, {"date": "yesterday"}, {"extra": 1}, {"licence": None}])
def test_a_card_with_a_wrong_or_missing_field_is_refused(tmp_path, change):
    shutil.copytree(ROOT / "recorded_runs" / "case02", tmp_path / "one")
    path = tmp_path / "one" / CARD
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), **change}), encoding="utf-8")
    with pytest.raises(GpulabError, match=re.escape(f"one/{CARD} cannot be read")):
        _ = datasets(tmp_path)[0].card


def test_datasets_of_a_wheel_come_first_and_another_project_of_that_name_is_not_taken(monkeypatch, tmp_path):
    site, package = tmp_path / "site-packages", tmp_path / "site-packages" / "gpulab"
    (package / "files").mkdir(parents=True)
    (site / "recorded_runs").mkdir()
    (site / "recorded_runs" / "__init__.py").touch()
    monkeypatch.setattr(module, "__file__", str(package / "files" / "datasets.py"))
    with pytest.raises(GpulabError, match="packed without them"):
        datasets_folder()
    shutil.copytree(ROOT / "recorded_runs" / "case02", package / "recorded_runs" / "case02")
    assert datasets_folder() == package / "recorded_runs"


# The tool.


def test_the_tool_refuses_to_replace_a_run_without_being_asked(tmp_path, capsys):
    shutil.copytree(ROOT / "recorded_runs" / "case11", tmp_path / "case11")
    before = {path.name: path.read_bytes() for path in (tmp_path / "case11").iterdir()}
    assert record_drills.main(["case11", "--folder", str(tmp_path)]) == 2
    assert record_drills.main(["--folder", str(tmp_path)]) == 2
    assert "--overwrite" in capsys.readouterr().out
    assert {path.name: path.read_bytes() for path in (tmp_path / "case11").iterdir()} == before


def test_the_tool_records_a_new_dataset_and_fills_in_its_card(tmp_path, capsys):
    pytest.importorskip("torch")
    folder = tmp_path / "memory1"
    shutil.copytree(ROOT / "recorded_runs" / "memory1", folder)
    (folder / RUN).unlink()
    (entry,) = datasets(tmp_path)
    draft = msgspec.structs.replace(entry.card, device="to be filled in", date=datetime.date(2000, 1, 1))
    (folder / CARD).write_bytes(record_drills.encode_card(draft))
    assert record_drills.main(["memory1", "--folder", str(tmp_path)]) == 0
    assert "memory1: recorded" in capsys.readouterr().out
    assert entry.card.device == "virtual T4 (estimated)"
    assert entry.card.date > draft.date
    assert entry.card.runs[RUN].bytes == entry.run_path.stat().st_size
    assert entry.load().machine.container is None
