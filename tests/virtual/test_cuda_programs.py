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

from tests.support.virtual import cuda_programs  # noqa: E402 - it needs torch

ROOT = Path(__file__).resolve().parents[2]
NAMES = [*cuda_programs.WORKS, *cuda_programs.REFUSES]


def _run(names):
    """What came of these snippets in one process, by name; who was running when it died has died."""
    command = [sys.executable, "-m", cuda_programs.__name__, *names]
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False
    )
    told = {}
    for line in process.stdout.splitlines():
        if line.startswith('{"name"'):
            each = json.loads(line)
            told[each["name"]] = each
    for each in told.values():
        if each["outcome"] == "begun":
            each.update(outcome="died", text=f"exit status {process.returncode}: {process.stderr[-2000:]}")
    return told


@pytest.fixture(scope="module")
def outcomes():
    """All of them, together for speed, in two processes; those that a death left without an answer are run alone."""
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(_run, (NAMES[::2], NAMES[1::2]))
    told = first | second
    for name in NAMES:
        if name not in told:
            told.update(_run([name]))
    return told


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", cuda_programs.WORKS)
def test_it_runs_unmodified(outcomes, name):
    assert outcomes[name]["outcome"] == "worked", outcomes[name]["text"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", cuda_programs.REFUSES)
def test_it_is_refused_by_name_with_a_way_out(outcomes, name):
    told = outcomes[name]
    assert told["outcome"] == "refused", told
    what, why, fix = told["text"].split("\n")
    assert "virtual" in what
    assert len(why) > len("  why: ") + 10
    assert len(fix) > len("  fix: ") + 10


def test_there_are_more_than_forty_five_of_them():
    assert len(NAMES) >= 45
