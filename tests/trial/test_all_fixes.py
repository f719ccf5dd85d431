"""Trials of all fixes of a diagnosis: the fastest comes first, and those that help are tried together."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch

import gpulab
from gpulab.errors import CaptureError
from gpulab.rules.engine.finding import Finding, Gain
from gpulab.rules.engine.pasted_names import fixes_to_try
from gpulab.run import Loader
from gpulab.trial.all_fixes import try_all_fixes
from gpulab.trial.cell_runner import CellRunner
from tests.support.runs.made_loading_runs import from_main
from tests.support.runs.made_runs import NO_WORKERS, mark, run_of

CELL = "model = build()\nfor inputs in loader:\n    train(model, inputs)\n"
NAMESPACE = {"build": 0, "loader": 0, "train": 0, "faster": 0, "compiled": 0}
LOADER, MODEL = "loader = faster(loader)", "model = compiled(model)"
UNCHANGED_MS = 40


def finding(rule, fix=LOADER, best_ns=500, worst_ns=900):
    gain = Gain(step_ns=1000, best_ns=best_ns, worst_ns=worst_ns, floor_ns=100, basis="a test")
    return Finding(rule=rule, claim=f"{rule} is slow", evidence=(), fix=fix, gain=gain)


@pytest.fixture
def diagnosis():
    """The diagnosis of a measured run, for findings to put in."""
    with gpulab.profile("loop"):
        pass
    found = gpulab.diagnose(gpulab.runs["loop"])
    return lambda *findings: dataclasses.replace(found, findings=findings)


@pytest.fixture
def runner(monkeypatch):
    """Replaces running the cell: each variant has the step times of its fix, in ms, run by run; an error is raised."""
    order, times_ms = [], {}

    def record(runner, code, name, fix_for=""):
        run = order.count(fix_for)
        order.append(fix_for)
        step_ms = times_ms.get(fix_for, UNCHANGED_MS)
        step_ms = step_ms[min(run, len(step_ms) - 1)] if isinstance(step_ms, tuple) else step_ms
        if isinstance(step_ms, Exception):
            raise step_ms
        marks = [mark((step_ms + 0.1 * run) * step + 0.1 * (step % 3), 0.1) for step in range(40)]
        return run_of([], marks=marks, loaders=[NO_WORKERS], name=name)

    monkeypatch.setattr(CellRunner, "record", record)
    return order, times_ms


def test_the_fastest_fix_comes_first_whatever_was_predicted(diagnosis, runner):
    order, times_ms = runner
    times_ms |= {"a": 30, "b": 20, "c": 41}
    trials = try_all_fixes(diagnosis(finding("a"), finding("b"), finding("c")), CELL, NAMESPACE)
    assert [fix.finding.rule for fix in trials.fixes] == ["b", "a", "c"]
    assert [fix.helps for fix in trials.fixes] == [True, True, False]
    assert trials.fixes[0].speedup == pytest.approx(2, rel=0.05)
    assert str(trials).startswith("The fix for b makes the cell ")
    assert order == ["", "a", "b", "c"] * 3
    results = {line.split()[0]: line for line in str(trials).splitlines() if line[:2] in ("a ", "b ", "c ")}
    assert "faster, in the range" in results["a"]
    assert "faster, in the range" in results["b"]
    assert "no clear difference" in results["c"]


def test_fixes_of_different_objects_are_tried_together(diagnosis, runner):
    order, times_ms = runner
    times_ms |= {"a": 30, "b": 25, "c": 20, "c + a": 10}
    found = diagnosis(finding("a", MODEL), finding("b"), finding("c"))
    trials = try_all_fixes(found, CELL, NAMESPACE)
    assert trials.together.finding.rule == "c + a"  # b replaces the same object as c, which is faster
    parts = trials.together.finding.fix.split("\n\n")
    assert [part.splitlines()[1:] for part in parts] == [LOADER.splitlines(), MODEL.splitlines()]
    places = {fix.finding.rule: fix.place for fix in trials.fixes}
    for part, rule in zip(parts, "ca", strict=True):
        assert part.startswith(f"# {rule}, {places[rule]}:")
    assert str(trials).startswith("The fixes for c + a, together, make the cell ")
    assert order[12:] == ["", "c + a"] * 3


def test_other_remedies_of_a_finding_are_tried_too_but_only_one_of_them_together(diagnosis, runner):
    _, times_ms = runner
    times_ms |= {"a: x": 20, "b": 30, "b: other": 25, "a: x + b: other": 10}
    other = dataclasses.replace(finding("b", "train = compiled(train)"), alternative="other")
    code = dataclasses.replace(finding("a"), alternative="x")
    advice = dataclasses.replace(finding("a", fix=""), alternatives=(code,))
    found = diagnosis(advice, dataclasses.replace(finding("b", MODEL), alternatives=(other,)))
    trials = try_all_fixes(found, CELL, NAMESPACE)
    assert sorted(fix.finding.label for fix in trials.fixes) == ["a: x", "b", "b: other"]
    assert trials.together.finding.rule == "a: x + b: other"


def test_fixes_that_are_about_as_fast_are_not_told_apart(diagnosis, runner):
    _, times_ms = runner
    times_ms |= {"a": (20, 21, 20), "b": (20.5, 20, 20.5), "c": 30}
    text = " ".join(str(try_all_fixes(diagnosis(finding("a"), finding("b"), finding("c")), CELL, NAMESPACE)).split())
    assert re.search(r"The intervals of (a and b|b and a) overlap", text)


def test_together_is_no_answer_if_it_is_not_faster(diagnosis, runner):
    _, times_ms = runner
    times_ms |= {"a": 30, "b": 20, "b + a": 21}
    trials = try_all_fixes(diagnosis(finding("a", MODEL), finding("b")), CELL, NAMESPACE)
    assert trials.together.helps
    assert str(trials).startswith("The fix for b makes")
    assert MODEL in str(trials)  # the other one that helps


def test_fixes_that_fail_together_are_listed(diagnosis, runner):
    _, times_ms = runner
    times_ms |= {"a": 30, "b": 20, "b + a": CaptureError("The cell failed.", why="no such layer", fix="")}
    trials = try_all_fixes(diagnosis(finding("a", MODEL), finding("b")), CELL, NAMESPACE)
    text = " ".join(str(trials).split())
    assert text.startswith("The fix for b makes")
    assert "b + a: The cell failed. No such layer." in text


def test_a_fix_that_fails_is_listed_and_tried_no_more(diagnosis, runner):
    order, times_ms = runner
    times_ms |= {"a": CaptureError("The cell failed.", why="no such layer", fix=""), "b": 20}
    trials = try_all_fixes(diagnosis(finding("a"), finding("b")), CELL, NAMESPACE)
    whys = [(fix.finding.rule, fix.error and fix.error.why) for fix in trials.fixes]
    assert whys == [("b", None), ("a", "no such layer")]
    assert order.count("a") == 1
    assert trials.together is None


def test_findings_without_code_and_fixes_without_a_place_are_listed(diagnosis, runner):
    found = diagnosis(finding("advice", ""), finding("nowhere", "other = faster(other)"), finding("a"))
    trials = try_all_fixes(found, CELL, NAMESPACE)
    text = " ".join(str(trials).split())
    assert "Its code uses `other`" in text
    assert "advice: Advice, not code." in text
    assert text.startswith("The fix for a does not make the cell faster")


def test_runs_are_added_for_a_fix_that_is_not_clear(diagnosis, runner):
    order, times_ms = runner
    times_ms |= {"a": 20, "b": (20, 45, 20, 20, 20)}
    try_all_fixes(diagnosis(finding("a"), finding("b")), CELL, NAMESPACE)
    assert (order.count("a"), order.count("b")) == (3, 5)


def test_an_error_of_the_unchanged_cell_ends_the_trials(diagnosis, runner):
    _, times_ms = runner
    times_ms[""] = CaptureError("The cell failed.", why="no GPU", fix="")
    with pytest.raises(CaptureError, match="no GPU"):
        try_all_fixes(diagnosis(finding("a")), CELL, NAMESPACE)


def test_a_run_without_code_to_try_is_refused(diagnosis):
    with pytest.raises(CaptureError, match="advice, not code"):
        try_all_fixes(diagnosis(finding("advice", "")), CELL, NAMESPACE)
    with pytest.raises(CaptureError, match="it has no finding"):
        try_all_fixes(diagnosis(), CELL, NAMESPACE)


def test_more_work_per_step_is_no_slowdown(diagnosis, runner):
    _, times_ms = runner
    times_ms["a"] = 60
    doubled = finding("a")
    doubled = dataclasses.replace(doubled, gain=dataclasses.replace(doubled.gain, work_ratio=2.0))
    trials = try_all_fixes(diagnosis(doubled), CELL, NAMESPACE)
    assert trials.fixes[0].helps
    assert trials.fixes[0].speedup == pytest.approx(4 / 3, rel=0.05)
    assert "for the same work, with 2.00x the work in a step" in " ".join(str(trials).split())


def test_the_same_step_time_for_twice_the_work_is_a_gain_also_together(diagnosis, runner):
    _, times_ms = runner
    times_ms |= {"a": UNCHANGED_MS, "b": 30, "a + b": 30}
    doubled = finding("a")
    doubled = dataclasses.replace(doubled, gain=dataclasses.replace(doubled.gain, work_ratio=2.0))
    trials = try_all_fixes(diagnosis(doubled, finding("b", MODEL)), CELL, NAMESPACE)
    assert [fix.helps for fix in trials.fixes] == [True, True]
    assert trials.together.speedup == pytest.approx(2 * UNCHANGED_MS / 30, rel=0.05)


class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((4,), float(index**2))


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_advice_on_data_loading_has_remedies_that_are_code_and_keep_the_samples():
    setup = Loader(workers=0, batch_size=2, batches=32, batch_bytes=32, name="loader", function="", pin_memory=False)
    found = gpulab.diagnose(from_main(fetch_ms=60, cores=1.5, on_gpu=False, loader=setup)).first
    assert (found.rule, found.fix) == ("no_workers", "")
    tried = fixes_to_try(found)
    assert "no_workers: cached" in [each.label for each in tried]
    for each in tried:
        loader = torch.utils.data.DataLoader(Squares(), batch_size=2)
        variables = {"loader": loader}
        exec(each.fix, variables)
        assert variables["loader"] is not loader
        assert [batch.tolist() for batch in variables["loader"]] == [batch.tolist() for batch in loader]


@pytest.mark.parametrize(
    "changes",
    [
        {"batches": None},
        {"batch_bytes": None},
        {"batches": 10_000},
        {"batch_bytes": 10**9},
        {"dataset_library": "torch"},
    ],
    ids=["length unknown", "size unknown", "takes minutes", "too large", "in memory already"],
)
def test_samples_are_not_cached_in_a_trial_that_would_take_long_or_fill_the_memory(changes):
    setup = Loader(workers=0, batch_size=2, batches=32, batch_bytes=32, name="loader", function="", pin_memory=False)
    run = from_main(fetch_ms=60, cores=1.5, on_gpu=False, loader=dataclasses.replace(setup, **changes))
    found = next(each for each in gpulab.diagnose(run).findings if each.rule == "no_workers")
    assert "no_workers: cached" not in [each.label for each in fixes_to_try(found)]
