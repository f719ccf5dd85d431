"""CUDA programs that know nothing of gpulab run on a virtual GPU, or are told what does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.full  # a minute of computing on a busy machine

from tests.support.tiers import at_night  # noqa: E402
from tests.support.virtual import cuda_programs  # noqa: E402 - it needs torch

ROOT = Path(__file__).resolve().parents[2]
WORKS = list(cuda_programs.WORKS)[:: at_night(1, otherwise=3)]
NAMES = [*WORKS, *cuda_programs.REFUSES]


def _run(names):
    """Run snippets in one process; return outcomes by name. A snippet running when the process died has died."""
    command = [sys.executable, "-m", cuda_programs.__name__, *names]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    results = {}
    for line in process.stdout.splitlines():
        if line.startswith('{"name"'):
            result = json.loads(line)
            results[result["name"]] = result
    for result in results.values():
        if result["outcome"] == "begun":
            result.update(outcome="died", text=f"exit status {process.returncode}: {process.stderr[-2000:]}")
    return results


@pytest.fixture(scope="module")
def outcomes():
    """Outcomes of all snippets, run in two processes for speed; snippets without an outcome are run again alone."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(_run, (NAMES[::2], NAMES[1::2]))
    results = first | second
    for name in NAMES:
        if name not in results:
            results.update(_run([name]))
    return results


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", WORKS)
def test_a_cuda_program_runs_unmodified(outcomes, name):
    assert outcomes[name]["outcome"] == "worked", outcomes[name]["text"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", cuda_programs.REFUSES)
def test_an_unsupported_program_raises_an_error_with_reason_and_fix(outcomes, name):
    result = outcomes[name]
    assert result["outcome"] == "refused", result
    problem, why, fix = result["text"].split("\n")
    assert "virtual" in problem
    assert len(why) > len("  why: ") + 10
    assert len(fix) > len("  fix: ") + 10


def test_there_are_at_least_45_programs():
    assert len([*cuda_programs.WORKS, *cuda_programs.REFUSES]) >= 45
