"""A run can be given by its name or by the path of its file, in every public function that takes one."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gpulab
from gpulab import integrations
from gpulab.capture.run_registry import runs
from gpulab.errors import GpulabError, RunError
from gpulab.files.datasets import dataset
from gpulab.questions import compare, diagnose
from gpulab.run import Run
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.live.monitor import monitor

# What a function needs besides the run; one that is not here is called with the run alone.
MORE: dict[str, tuple[Any, ...]] = {
    "save": ("run.gpulab",),
    "to_perfetto": ("run.json",),
    "compare": ("before",),
    "tensorboard.log_run": (None,),
    "wandb.log_run": (type("WandbRun", (), {"summary": {}}),),
}


def public_functions() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every public function, with its name."""
    for name in gpulab.__all__:
        if inspect.isfunction(function := getattr(gpulab, name)):
            yield name, function
    for chart in gpulab.charts.CHARTS:
        yield f"charts.{chart.__name__}", getattr(gpulab.charts, chart.__name__)
    for name in gpulab.virtual.__all__:
        yield f"virtual.{name}", getattr(gpulab.virtual, name)
    for module in pkgutil.iter_modules(integrations.__path__):
        try:
            functions = vars(importlib.import_module(f"gpulab.integrations.{module.name}"))
        except ImportError:  # its framework is not installed
            continue
        if "log_run" in functions:
            yield f"{module.name}.log_run", functions["log_run"]


def takes_run(function: Callable[..., Any]) -> bool:
    """Whether one of its parameters is a run, judged by the annotation."""
    annotations = (str(parameter.annotation) for parameter in inspect.signature(function).parameters.values())
    return any("Run" in annotation for annotation in annotations)


FUNCTIONS = {name: function for name, function in public_functions() if takes_run(function)}


@pytest.fixture(autouse=True)
def recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """A recorded run named before; nothing else has a name."""
    run = dataclasses.replace(dataset("case05").load(), name="before")
    monkeypatch.setattr(runs, "_runs", {"before": run})
    monkeypatch.chdir(tmp_path)
    return run


def test_the_functions_that_take_runs_are_found() -> None:
    assert {"report", "diagnose", "compare", "timeline", "whatif", "summary", "save", "to_perfetto"} <= set(FUNCTIONS)
    assert {f"charts.{chart.__name__}" for chart in gpulab.charts.CHARTS} <= set(FUNCTIONS)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_looks_up_the_name_of_a_run(name: str) -> None:
    with pytest.raises(RunError) as refused:
        FUNCTIONS[name]("befor", *MORE.get(name, ()))
    assert refused.value.fix == "did you mean before?"
    assert "before" in refused.value.why


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_opens_the_path_of_a_file(name: str) -> None:
    with pytest.raises(GpulabError) as refused:
        FUNCTIONS[name]("nowhere/other.gpulab", *MORE.get(name, ()))
    assert "There is no file" in refused.value.problem


def test_a_name_and_a_path_give_the_answer_of_the_run(recorded: Run, tmp_path: Path) -> None:
    path = gpulab.save("before", tmp_path / "stored.gpulab")
    for subject in ("before", path, str(path)):
        assert diagnose(subject).verdict == diagnose(recorded).verdict
        assert gpulab.report(subject).diagnosis.run.name == "before"
    assert gpulab.charts.ledger("before").table.rows == gpulab.charts.ledger(recorded).table.rows
    assert repr(gpulab.timeline("before", "before")) == repr(gpulab.timeline(recorded, recorded))


def test_a_third_name_is_that_of_a_run_or_of_a_rule(recorded: Run) -> None:
    for name in ("after", "last"):
        runs.add(dataclasses.replace(recorded, name=name))
    assert [side.name for side in compare("before", "after", "last").sides] == ["before", "after", "last"]
    rule = diagnose(recorded).findings[0].rule
    assert compare("before", "after", rule).acted_on.rule == rule
    with pytest.raises(RunError, match="did you mean last"):
        compare("before", "after", "lastt")


def test_a_comparison_shows_itself(recorded: Run) -> None:
    runs.add(dataclasses.replace(recorded, name="after"))
    for compared in (compare("before", "after"), compare("before", "after", "before")):
        view = comparison_view(compared)
        assert repr(compared) == repr(view)
        assert compared._repr_mimebundle_() == view._repr_mimebundle_()


def test_a_folder_of_several_runs_is_not_one_run(recorded: Run, tmp_path: Path) -> None:
    for rank in range(2):
        gpulab.save(dataclasses.replace(recorded, rank=rank), tmp_path / f"rank{rank}.gpulab")
    with pytest.raises(RunError, match="2 runs"):
        gpulab.charts.ledger(str(tmp_path))


@pytest.mark.parametrize(
    ("mistake", "near"),
    [
        (lambda: gpulab.charts.legder, "ledger"),
        (lambda: gpulab.reprot, "report"),
        (lambda: dataset("caes05"), "case05"),
        (lambda: runs["before"].gpu_rows["util_fraction"], "util_frac"),
        (lambda: gpulab.whatif("before", "wokers=2"), "workers"),
        (lambda: gpulab.whatif("before", "gpu=h10"), "H100 SXM"),
        (lambda: gpulab.virtual_gpu("A1000-80 SXM"), "A100-80 SXM"),
        (lambda: gpulab.lab("data_loding"), "05_data_loading"),
        (lambda: gpulab.profile("x", level="trase").__enter__(), "trace"),
        (lambda: monitor(alerts=["temprature > 80 C"]), "temperature"),
        (lambda: compare("before", "before", "dispatch_bond"), "dispatch_bound"),
        (lambda: gpulab.timeline("before").show("dispatch_bond"), "dispatch_bound"),
    ],
)
def test_a_name_that_is_nearly_right_is_answered_with_the_right_one(mistake: Callable[[], object], near: str) -> None:
    with pytest.raises((GpulabError, AttributeError, KeyError)) as refused:
        mistake()
    assert f"did you mean {near}?" in str(refused.value).replace("'", "").replace('"', "")
