"""A run beside the earlier runs of its program and name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpulab import diagnose, report
from gpulab.run import Loader, Machine, Model
from gpulab.tables import EventKind
from gpulab.user_data import run_history
from gpulab.user_data.run_history import change_since, earlier_runs, remember_run, usual_step_s
from tests.support.runs.made_runs import MS, event, run_of, stepped


@pytest.fixture(autouse=True)
def own_file(tmp_path, monkeypatch):
    monkeypatch.setenv("GPULAB_RUNS", str(tmp_path / "runs.jsonl"))
    monkeypatch.delenv("GPULAB_HISTORY", raising=False)
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/ada/train.ipynb")
    return tmp_path / "runs.jsonl"


def run(step_ms, number, *, name="baseline", torch="2.12.0", batch=32):
    events = stepped(lambda at: [event(EventKind.OP, "aten::mm", at, 0.8 * step_ms)], step_ms=step_ms)
    machine = Machine(cores_allowed=8.0, torch=torch)
    made = run_of(events, machine=machine, loaders=[Loader(workers=2, batch_size=batch)], name=name)
    return replace(made, began_ns=10**18 + number * 10**12)


def remember(*runs):
    for made in runs:
        remember_run(made, diagnose(made).steps.step_ns)


def text_of(made):
    return " ".join(repr(report(made)).split())


def test_a_slower_run_is_compared_with_the_median_and_the_changes_are_named():
    remember(*(run(step_ms, number) for number, step_ms in enumerate((100, 101, 99, 102, 100))))
    text = text_of(run(141, 9, torch="2.13.0", batch=64))
    assert "41 % slower than the median of the last 5 runs of this name" in text
    assert "torch 2.12.0 to 2.13.0" in text
    assert "batch 32 to 64" in text


def test_a_faster_run_is_said_to_be_faster():
    remember(run(100, 1), run(101, 2))
    assert "% faster than the median of the last 2 runs" in text_of(run(50, 3))


def test_a_run_like_the_others_is_not_mentioned():
    remember(run(100, 1), run(104, 2), run(97, 3))
    assert "of this name" not in text_of(run(103, 4))


def test_a_run_within_the_spread_of_the_others_is_not_mentioned():
    remember(run(100, 1), run(160, 2), run(90, 3))
    assert "of this name" not in text_of(run(140, 4))


def test_one_earlier_run_is_too_few():
    remember(run(100, 1))
    assert "of this name" not in text_of(run(200, 2))


def test_a_loop_with_another_model_is_another_loop():
    small, large = ((Model(kind=kind, tensors=count),) for kind, count in (("Linear", 2), ("ResNet", 62)))
    remember(*(replace(run(100, number), models=large) for number in (1, 2)))
    assert "2 runs of this name" in text_of(replace(run(50, 3), models=large))
    assert "of this name" not in text_of(replace(run(50, 4), models=small))


def test_other_names_programs_and_later_runs_do_not_count(monkeypatch):
    remember(run(100, 1), run(100, 2), run(100, 3, name="other"))
    assert len(earlier_runs(run(100, 5))) == 2
    assert earlier_runs(run(100, 1)) == ()
    monkeypatch.setenv("JPY_SESSION_NAME", "/home/ada/other.ipynb")
    assert earlier_runs(run(100, 5)) == ()


@pytest.mark.parametrize("name", ["run1", "run27"])
def test_automatic_names_are_not_remembered(name):
    remember(run(100, 1, name=name), run(100, 2, name=name))
    assert change_since(run(200, 3, name=name), 200 * MS) is None


def test_a_run_is_remembered_once(own_file):
    remember(run(100, 1), run(100, 1))
    assert len(own_file.read_text().splitlines()) == 1


def test_a_failed_run_is_not_remembered(own_file):
    remember(replace(run(100, 1), outcome="RuntimeError"))
    assert not own_file.exists()


def test_damaged_lines_are_skipped(own_file):
    remember(run(100, 1), run(100, 2))
    own_file.write_text("{broken\n[]\nnull\n" + own_file.read_text() + '{"program": 3}\n')
    assert len(earlier_runs(run(100, 3))) == 2


@pytest.mark.parametrize("variable", ["GPULAB_RUNS", "GPULAB_HISTORY"])
def test_it_can_be_switched_off(variable, monkeypatch, own_file):
    monkeypatch.setenv(variable, "off")
    remember(run(100, 1), run(100, 2))
    assert run_history.runs_path() is None
    assert not own_file.exists()


def test_the_usual_step_is_the_median_of_the_last_five():
    remember(*(run(step_ms, number) for number, step_ms in enumerate((500, 100, 101, 99, 102, 100))))
    assert usual_step_s("baseline") == pytest.approx(0.1)
    assert usual_step_s("never") is None
