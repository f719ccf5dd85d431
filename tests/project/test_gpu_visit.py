"""tools/gpu_visit.py without a GPU: what its dry run says, that it resumes, and that no stage can stop the others."""

from __future__ import annotations

import json
import re
import time
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the loops need PyTorch: pip install torch")

from benchmarks.gpu_visit.bare_machine import device_command, prepare_command
from benchmarks.gpu_visit.catalogue import STAGES, Stage
from benchmarks.gpu_visit.planted_loops import PLANTED_LOOPS
from benchmarks.gpu_visit.runner import judged
from gpulab.files.datasets import dataset, device_label
from gpulab.rules import RULES
from tools.gpu_visit import main

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = """
import os, subprocess, sys, time
from benchmarks.gpu_visit.visit import Check, StageResult

def good(visit):
    return StageResult(headline="fine", checks=[Check(name="one", holds=True)], figures={"nan": float("nan")})

def wrong(visit):
    return StageResult(checks=[Check(name="two is three", holds=2 == 3)])

def broken(visit):
    raise RuntimeError("the loop broke")

def endless(visit):
    visit.save(StageResult(headline="half of it", figures={"parts": 1}))
    worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (visit.folder / "worker").write_text(str(worker.pid))
    time.sleep(600)

def silent(visit):
    os._exit(0)
"""


def stage(name, **more):
    return Stage(name=name, about=f"a stage that is {name}", target=f"stand_ins:{name}", **{"limit_s": 60, **more})


@pytest.fixture
def visit(tmp_path, monkeypatch, capsys):
    """Run the tool with stand-ins for the stages; returns its exit code, its output and the results."""
    (tmp_path / "stand_ins.py").write_text(STAND_INS, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def run(*arguments, stages):
        code = main(["--out", str(tmp_path / "out"), *arguments], stages)
        results = {path.stem: json.loads(path.read_text()) for path in (tmp_path / "out").glob("*.json")}
        return code, capsys.readouterr().out, results

    return run


@pytest.mark.full
def test_a_stage_that_fails_or_crashes_does_not_stop_the_next_one(visit, tmp_path):
    stages = [stage(name) for name in ("wrong", "broken", "silent", "good")]
    code, output, results = visit("--dry-run", "--archive", str(tmp_path / "all.zip"), stages=stages)
    statuses = {name: results[name]["status"] for name in ("wrong", "broken", "silent", "good")}
    assert statuses == {"wrong": "failed", "broken": "crashed", "silent": "crashed", "good": "rehearsed"}
    assert results["wrong"]["reason"] == "1 of 1 checks fail: two is three"
    assert results["broken"]["last_lines"][-1] == "RuntimeError: the loop broke"
    assert results["good"]["figures"] == {"nan": None}
    assert code == 1
    assert "| broken | crashed |" in output
    assert {"summary.md", "broken.log", "good.json"} <= set(zipfile.ZipFile(tmp_path / "all.zip").namelist())


@pytest.mark.full
def test_a_stage_over_its_limit_is_stopped_with_its_processes_and_keeps_what_it_had(visit, tmp_path):
    began = time.monotonic()
    code, _, results = visit("--dry-run", stages=[stage("endless", limit_s=8), stage("good")])
    assert time.monotonic() - began < 50
    endless = results["endless"]
    assert (endless["status"], endless["reason"]) == ("timeout", "stopped at its limit, after 8 s")
    assert (endless["headline"], endless["figures"]) == ("(tiny, on the CPU) half of it", {"parts": 1})
    assert results["good"]["status"] == "rehearsed"
    assert code == 1
    worker = Path("/proc") / (tmp_path / "out" / "worker").read_text()
    assert not worker.exists() or "\nState:\tZ" in (worker / "status").read_text()


@pytest.mark.night
def test_a_stage_stopped_by_the_budget_is_repeated_and_one_that_found_no_time_is_not_recorded(visit):
    stages = [stage("endless", least_s=1), stage("good")]
    _, output, results = visit("--dry-run", "--minutes", "0.25", stages=stages)
    assert results["endless"]["status"] == "unfinished"
    assert "good" not in results
    assert "good: not started" in output
    _, output, results = visit("--dry-run", "--minutes", "0.25", stages=stages)
    assert "there is a result already" not in output


def test_a_second_call_does_nothing_and_again_repeats_one_stage(visit):
    stages = [stage("good"), stage("wrong")]
    visit("--dry-run", stages=stages)
    _, output, _ = visit("--dry-run", stages=stages)
    assert output.count("there is a result already") == 2
    _, output, _ = visit("--dry-run", "--again", "wrong", stages=stages)
    assert output.count("there is a result already") == 1
    _, output, _ = visit("--dry-run", "--only", "good", stages=stages)
    assert output.count("there is a result already") == 1


def test_results_of_a_dry_run_are_never_mixed_with_real_ones(visit):
    visit("--dry-run", stages=[stage("good")])
    code, _, _ = visit(stages=[stage("good")])
    assert code == 2


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="there is a GPU")
@pytest.mark.full
def test_without_a_gpu_a_stage_is_skipped_with_the_reason(visit):
    _, _, results = visit(stages=[stage("good")])
    assert (results["good"]["status"], results["good"]["reason"]) == ("skipped", "no CUDA device")
    _, output, results = visit(stages=[stage("good")])
    assert "there is a result already" not in output, "there may be a GPU now"


def test_in_a_dry_run_what_needs_a_gpu_is_skipped(visit):
    code, _, results = visit("--dry-run", stages=[stage("good", needs_gpu=True)])
    assert (code, results["good"]["status"], results["good"]["reason"]) == (0, "skipped", "no CUDA device")


def test_no_outcome_of_a_dry_run_is_ok():
    outcome = {"skipped": "", "checks": [{"name": "one", "holds": True}]}
    assert judged(0, outcome, dry_run=True)[0] == "rehearsed"
    assert judged(0, outcome, dry_run=False)[0] == "ok"


def test_the_list_names_every_stage_in_order(capsys):
    assert main(["--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [each.name for each in STAGES]


def test_the_command_for_a_bare_machine_is_short_and_needs_no_network(capsys):
    assert main(["--device-command"]) == 0
    command = device_command()
    assert command in capsys.readouterr().out
    assert len(command) < 2000
    assert "--no-index --no-deps" in command
    assert "--minutes 9" in command
    assert '"$OUT' in command
    folder = re.search(r" -d (\S+) ", prepare_command())[1]
    assert f"{folder}/*.whl" in command
    assert f"{folder}/" in (ROOT / ".gitignore").read_text().split()


def test_every_planted_cause_is_a_rule_of_gpulab():
    names = {rule.name for rule in RULES}
    assert {rule for loop in PLANTED_LOOPS for rule in loop.rules} <= names
    assert len({loop.name for loop in PLANTED_LOOPS}) == len(PLANTED_LOOPS) >= 12


@pytest.mark.full
def test_a_dry_run_rehearses_every_stage_and_a_second_one_does_nothing(tmp_path, capsys):
    """Some 60 s on two quiet cores: the planted loops, both sides, really run."""
    assert main(["--dry-run", "--out", str(tmp_path)]) == 0, capsys.readouterr().out
    results = {each.name: json.loads((tmp_path / f"{each.name}.json").read_text()) for each in STAGES}
    assert {record["status"] for record in results.values()} <= {"rehearsed", "skipped"}
    assert all(record["reason"] == "no CUDA device" for record in results.values() if record["status"] == "skipped")
    assert all(record["dry_run"] for record in results.values())
    loops = results["planted"]["figures"]["loops"]
    assert set(loops) == {loop.name for loop in PLANTED_LOOPS}
    assert all(len(sides["real"]["before_ms"]) == 1 and len(sides["real"]["after_ms"]) == 1 for sides in loops.values())
    lost = {name: sides["virtual"]["after"] for name, sides in loops.items() if "error" in sides["virtual"]["after"]}
    assert set(lost) <= {"tiny_layers"}, "the virtual GPU plays all but a CUDA graph"
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.stat().st_size <= 2_000_000 for path in files if path.suffix == ".gpulab")
    for folder in (tmp_path / "datasets").iterdir():
        entry = dataset(folder.name, folder.parent)
        assert entry.card.device == device_label(entry.load())
    capsys.readouterr()
    assert main(["--dry-run", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("there is a result already") == len(STAGES)
