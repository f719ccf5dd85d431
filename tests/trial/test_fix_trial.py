"""Trials of whole cells: they run for some seconds with and without a fix, and leave the user's objects alone."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import linecache
import multiprocessing

import pytest
import torch

import __main__
import gpulab
from gpulab.errors import CaptureError
from gpulab.rules.engine.finding import Finding, Gain, LoaderSettings
from gpulab.trial.cell_runner import CellRunner
from gpulab.trial.fix_trial import finding_to_try, try_fix
from tests.support.runs.made_runs import NO_WORKERS, mark, run_of

SETUP = """
import torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self):
        return 240
    def __getitem__(self, index):
        return torch.full((8,), float(index)), index % 2
model = torch.nn.Linear(8, 2)
optimizer = torch.optim.Adam(model.parameters())
loader = DataLoader(Squares(), batch_size=4, shuffle=True)
history = []
def train_step(inputs, labels):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    history.append(loss.item())
"""
CELL = "for inputs, labels in loader:\n    train_step(inputs, labels)\n"
FIX = "loader = DataLoader(loader.dataset, batch_size=4, num_workers=1)"


def finding(fix=FIX):
    gain = Gain(step_ns=1000, best_ns=500, worst_ns=900, floor_ns=400, basis="a test")
    return Finding(rule="no_workers", claim="It waits", evidence=(), fix=fix, gain=gain)


@pytest.fixture
def namespace():
    """The variables of a notebook after its setup."""
    torch.manual_seed(0)
    variables, before = vars(__main__), dict(vars(__main__))
    exec(SETUP, variables)
    yield variables
    for name in set(variables) - set(before):
        del variables[name]
    variables.update(before)
    gc.collect()


def tried(namespace, cell=CELL, fix=FIX, seconds=10.0, **options):
    """Try a fix; the cell ends by itself long before the time is up, unless it is endless."""
    return try_fix(finding(fix), cell, namespace, seconds=seconds, repeats=1, **options)


@pytest.mark.parametrize(
    ("fixed_ms", "pairs"),
    [
        ((8, 8, 8, 8, 8), 3),  # clearly faster
        ((28, 35, 20, 20, 20), 5),  # one run was disturbed
        ((35, 34, 36, 35, 35), 3),  # no difference
        ((20, 60, 60, 20, 60), 5),  # never clear
    ],
)
def test_runs_are_added_where_the_result_is_not_clear(namespace, monkeypatch, fixed_ms, pairs):
    times = {"unchanged": iter((35, 34, 36, 35, 35)), "fixed": iter(fixed_ms)}

    def record(runner, code, name, fix_for=""):
        step_ms = next(times["fixed" if fix_for else "unchanged"])
        marks = [mark(step_ms * step + 0.1 * (step % 3), 0.1) for step in range(40)]
        return run_of([], marks=marks, loaders=[NO_WORKERS], name=name)

    monkeypatch.setattr(CellRunner, "record", record)
    trial = try_fix(finding(), CELL, namespace)
    assert (len(trial.unchanged), len(trial.fixed)) == (pairs, pairs)
    assert f"{pairs} runs of each variant" in " ".join(str(trial).split())


@pytest.mark.parametrize(("recorded_ms", "applies"), [(35, True), (40, True), (90, False), (12, False)])
def test_a_step_that_is_no_longer_as_recorded_is_pointed_out(namespace, monkeypatch, recorded_ms, applies):
    def record(runner, code, name, fix_for=""):
        step_ms = 20 if fix_for else 35
        marks = [mark(step_ms * step + 0.1 * (step % 3), 0.1) for step in range(40)]
        return run_of([], marks=marks, loaders=[NO_WORKERS], name=name)

    monkeypatch.setattr(CellRunner, "record", record)
    gain = dataclasses.replace(finding().gain, step_ns=recorded_ms * 1_000_000)
    text = " ".join(str(try_fix(dataclasses.replace(finding(), gain=gain), CELL, namespace)).split())
    assert ("prediction does not apply" not in text) == applies


def test_a_trial_compares_both_variants_with_the_prediction(namespace):
    trial = tried(namespace, name="loop")
    assert [loader.workers for run in trial.unchanged for loader in run.loaders] == [0]
    assert [loader.workers for run in trial.fixed for loader in run.loaders] == [1]
    assert trial.comparison.predicted == trial.finding.gain
    assert {"loop.unchanged", "loop.fixed"} <= set(gpulab.runs)
    assert "inserted at the start of the cell" in str(trial)


DIRECT = """
def clipped(model):
    return torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
for inputs, labels in loader:
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    clipped(model)
    optimizer.step()
"""


@pytest.mark.parametrize("cell", [CELL, DIRECT], ids=["a function trains", "the cell trains"])
def test_a_trial_changes_nothing_of_the_user(namespace, cell):
    before = dict(namespace)
    weights = {name: value.clone() for name, value in namespace["model"].state_dict().items()}
    random_state, children = torch.get_rng_state(), multiprocessing.active_children()
    tried(namespace, cell=cell)
    assert all(namespace[name] is value for name, value in before.items())
    assert set(namespace) == set(before)
    assert all(torch.equal(weights[name], value) for name, value in namespace["model"].state_dict().items())
    assert namespace["history"] == []
    assert namespace["optimizer"].state_dict()["state"] == {}
    assert torch.equal(torch.get_rng_state(), random_state)
    assert multiprocessing.active_children() == children


def test_a_loader_that_no_variable_holds_is_tried_with_other_arguments(namespace):
    inline = CELL.replace("in loader", "in DataLoader(loader.dataset, batch_size=4)")
    settings = LoaderSettings(arguments={"num_workers": 1}, dropped=(), dataset="loader.dataset")
    found = dataclasses.replace(finding(fix=""), loader_settings=settings)
    trial = try_fix(found, inline, namespace, seconds=10.0, repeats=1)
    assert [loader.workers for run in (*trial.unchanged, *trial.fixed) for loader in run.loaders] == [0, 1]
    assert "num_workers=1 in the DataLoader(...) in line 1 of the cell" in " ".join(str(trial).split())


def test_a_loader_that_a_function_of_another_cell_gets_is_tried_with_other_arguments(namespace):
    exec("def train(batches):\n    for inputs, labels in batches:\n        train_step(inputs, labels)\n", namespace)
    settings = LoaderSettings(arguments={"num_workers": 1}, dropped=(), dataset="loader.dataset")
    code = FIX.replace("loader = DataLoader(loader.", "batches = DataLoader(batches.")
    found = dataclasses.replace(finding(fix=code), function="train", loader_settings=settings)
    trial = try_fix(found, "train(DataLoader(loader.dataset, batch_size=4))", namespace, seconds=10.0, repeats=1)
    assert [loader.workers for run in (*trial.unchanged, *trial.fixed) for loader in run.loaders] == [0, 1]


def test_a_fix_for_a_function_of_another_cell_is_tried_in_a_copy_of_it(namespace):
    source = (
        "def train():\n    inner = DataLoader(loader.dataset, 4)\n    for batch in inner:\n        train_step(*batch)\n"
    )
    linecache.cache["<cell 1>"] = (len(source), None, source.splitlines(keepends=True), "<cell 1>")
    exec(compile(source, "<cell 1>", "exec"), namespace)
    function = namespace["train"]
    code = "from torch.utils.data import DataLoader\n" + FIX.replace(
        "loader = DataLoader(loader.", "inner = DataLoader(inner."
    )
    found = dataclasses.replace(finding(fix=code), function="train")
    trial = try_fix(found, "train()", namespace, seconds=10.0, repeats=1)
    assert [loader.workers for run in (*trial.unchanged, *trial.fixed) for loader in run.loaders] == [0, 1]
    assert "inserted in train()" in " ".join(str(trial).split())
    assert namespace["train"] is function


def test_an_endless_loop_ends(namespace):
    endless = "while True:\n    for inputs, labels in loader:\n        train_step(inputs, labels)\n"
    assert tried(namespace, cell=endless, seconds=1.0).fixed


def test_a_cell_that_writes_files_is_refused(namespace, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaptureError, match=r"write log\.txt"):
        tried(namespace, cell=f"file = open('log.txt', 'w')\n{CELL}")
    assert not (tmp_path / "log.txt").exists()


def test_a_fix_that_fails_is_reported(namespace):
    with pytest.raises(CaptureError, match="failed with the fix"):
        tried(namespace, fix="loader = loader.dataset.missing")
    assert namespace["loader"].num_workers == 0


def test_an_interrupt_ends_the_trial_and_restores_the_variables(namespace):
    loader = namespace["loader"]
    with pytest.raises(KeyboardInterrupt):
        tried(namespace, cell=f"loader = list(loader)\nraise KeyboardInterrupt\n{CELL}", fix="model.train()")
    assert namespace["loader"] is loader
    with gpulab.profile("afterwards"):  # no recording is left
        pass


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        (f"get_ipython().run_line_magic('time', '')\n{CELL}", "magics"),
        (f"await something()\n{CELL}", "plain Python"),
        ("for inputs, labels in", "plain Python"),
        ("x = len(loader)", "0 complete steps"),
        ("x = 1", "does not use the variable"),
    ],
)
def test_a_cell_that_cannot_be_tried_is_refused(namespace, cell, why):
    with pytest.raises(CaptureError, match=why):
        tried(namespace, cell=cell)


def test_the_output_of_the_cell_is_hidden(namespace, capsys):
    tried(namespace, cell=f"print('shown')\n{CELL}", quiet=lambda: contextlib.redirect_stdout(None))
    assert "shown" not in capsys.readouterr().out


@pytest.fixture(scope="module")
def diagnosis():
    """The diagnosis of a measured run, for findings to put in."""
    with gpulab.profile("short"):
        pass
    return gpulab.diagnose(gpulab.runs["short"])


def with_findings(diagnosis, *findings):
    return dataclasses.replace(diagnosis, findings=findings)


ADVICE = dataclasses.replace(finding(fix=""), rule="advice")
TEMPLATE = dataclasses.replace(finding(fix="def save_later(path):\n    pass"), rule="template")
MEMORY = dataclasses.replace(finding(), rule="memory", gain=None)


def test_the_first_finding_that_predicts_a_gain_by_code_is_tried(diagnosis):
    findings = with_findings(diagnosis, ADVICE, TEMPLATE, MEMORY, finding())
    assert finding_to_try(findings).rule == "no_workers"
    assert finding_to_try(findings, "memory").rule == "memory"


@pytest.mark.parametrize(
    ("findings", "rule", "why"),
    [
        ((), None, "its findings are none"),
        ((finding(),), "nothing_like_it", "its findings are no_workers"),
        ((ADVICE,), None, "advice"),
        ((TEMPLATE,), None, "your loop must call"),
        ((ADVICE, finding()), "advice", "advice"),
    ],
)
def test_other_findings_are_refused_with_a_reason(diagnosis, findings, rule, why):
    with pytest.raises(CaptureError, match=why):
        finding_to_try(with_findings(diagnosis, *findings), rule)


def test_a_virtual_run_is_refused(diagnosis):
    source = dataclasses.replace(diagnosis.run.source, how="virtual")
    virtual = dataclasses.replace(diagnosis, run=dataclasses.replace(diagnosis.run, source=source))
    with pytest.raises(CaptureError, match="not those of this machine"):
        finding_to_try(virtual)


@pytest.mark.filterwarnings("default")  # PyTorch warns of more workers than cores
def test_with_workers_that_deliver_in_groups_a_trial_needs_more_steps(namespace):
    few = "loader = DataLoader(loader.dataset, batch_size=16, num_workers=4)"
    with pytest.raises(CaptureError) as error:
        tried(namespace, fix=few)
    assert "of 15" in error.value.why
    assert "groups of 4" in error.value.why
    assert "at least 20 steps" in error.value.fix
