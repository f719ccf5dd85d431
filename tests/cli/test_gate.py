"""The performance test of `gpulab compare --fail-over`: it fails for a regression, not for noise."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from gpulab.cli.gate import judge
from gpulab.comparison import compare
from tests.support.runs.made_runs import NO_WORKERS, awaited, loader_call, mark, run_of

SEEDS = range(10)
ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "docs" / "examples" / "performance.yml"


def recorded(step_ms, seed):
    """A loop of 80 steps, each up to 8 % longer or shorter than `step_ms`."""
    random = np.random.default_rng(seed)
    events, marks, at = [], [], 0.0
    for _ in range(80):
        work_ms = step_ms * float(random.uniform(0.92, 1.08)) - 1
        events.append(loader_call(at, 1))
        events += awaited("ampere_sgemm", at + 1, work_ms, number=len(events))
        marks.append(mark(at, 1))
        at += work_ms + 1
    return run_of(events, marks=marks, loaders=[NO_WORKERS], windows=[(at * 0.4, at * 0.9)])


def verdicts(before_ms, after_ms, limit):
    pairs = ((recorded(before_ms, seed), recorded(after_ms, seed + 100)) for seed in SEEDS)
    return [judge(compare(before, after), limit) for before, after in pairs]


def test_equal_code_passes():
    assert all(each.passes for each in verdicts(50, 50, 0.05))


def test_a_planted_slowdown_of_30_percent_fails():
    assert not any(each.passes for each in verdicts(50, 65, 0.05))


def test_three_runs_per_side_find_a_planted_slowdown_of_10_percent():
    failed = 0
    for seed in SEEDS:
        before = [recorded(50, 10 * seed + index) for index in range(3)]
        after = [recorded(55, 1000 + 10 * seed + index) for index in range(3)]
        failed += not judge(compare(before, after), 0.05).passes
    assert failed >= 9


@pytest.mark.parametrize("crashed", [0, 1], ids=["the baseline", "the change"])
def test_a_run_that_crashed_fails(crashed):
    pair = [recorded(60, 0), recorded(50, 1)]
    pair[crashed] = replace(pair[crashed], name="new", outcome="ValueError")
    verdict = judge(compare(*pair), 0.05)
    assert not verdict.passes
    assert "new crashed (ValueError)" in verdict.text


def test_a_faster_program_passes():
    assert all(each.passes for each in verdicts(60, 50, 0.0))


def test_a_slowdown_below_the_limit_passes():
    assert all(each.passes for each in verdicts(50, 65, 0.5))


def test_a_slowdown_that_noise_may_explain_passes_and_says_so():
    (verdict,) = {each.text.partition(":")[0] for each in verdicts(50, 53, 0.01)}
    assert verdict == "PASS, not conclusive"


def test_a_small_change_with_an_interval_that_exceeds_the_limit_is_not_conclusive():
    before = [recorded(ms, ms) for ms in (46, 50, 54)]
    assert judge(compare(before, before), 0.5).text.startswith("PASS: ")
    verdict = judge(compare(before, before), 0.02)
    assert verdict.passes
    assert "not conclusive" in verdict.text
    assert "slowdowns above the limit" in verdict.text


@pytest.mark.parametrize("after_ms", [50, 65])
def test_the_text_has_the_measured_change_and_the_limit(after_ms):
    compared = compare(recorded(50, 1), recorded(after_ms, 2))
    text = judge(compared, 0.05).text
    assert "limit 5 %" in text
    assert ("+30" in text or "+29" in text or "+31" in text) == (after_ms == 65)


@pytest.mark.night
def test_the_commands_of_the_example_workflow_record_both_versions_and_compare_them(tmp_path):
    for version in ("main", "change"):
        (tmp_path / version / "benchmarks").mkdir(parents=True)
        shutil.copy(ROOT / "benchmarks" / "gate" / "program.py", tmp_path / version / "benchmarks" / "train_small.py")
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["step-time"]["steps"]
    commands = {step["name"]: step["run"] for step in steps if "run" in step}
    assert "1 2 3 4 5 6 7" in commands["Record"]
    commands["Record"] = commands["Record"].replace("1 2 3 4 5 6 7", "1 2")  # enough to see that the commands work
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

    def shell(name):
        return subprocess.run(
            ["bash", "-euc", commands[name]],
            cwd=tmp_path,
            env={**os.environ, "PATH": path, "GPULAB_HISTORY": "off"},
            capture_output=True,
            text=True,
            timeout=600,
        )

    recorded = shell("Record")
    assert (recorded.returncode, recorded.stdout) == (0, ""), recorded.stderr
    assert len(list(tmp_path.glob("runs/*/report.html"))) == 4
    compared = shell("Compare")
    verdict = next(line for line in compared.stdout.splitlines() if line.startswith(("PASS", "FAIL")))
    assert compared.returncode == verdict.startswith("FAIL")  # which of them depends on what else the machine does
    assert "limit 5 %" in verdict
