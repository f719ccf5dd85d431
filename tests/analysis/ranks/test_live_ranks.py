"""Live ranks on gloo: they share the clock of their host, and sleep by a schedule that the analysis should find."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpulab
from gpulab.analysis.ranks.bandwidth import bandwidths
from gpulab.analysis.ranks.clock_alignment import align_clocks
from gpulab.analysis.ranks.waits import job_waits

ROOT = Path(__file__).resolve().parents[3]
LATE_S = 0.04
PROGRAM = f"""
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(6)]))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for step in range(60):
    if dist.get_rank() == 1:
        time.sleep({LATE_S})
    model(torch.randn(64, 256)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def live_ranks(tmp_path_factory):
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("live")
    (folder / "train.py").write_text(PROGRAM)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launcher, "-m", "gpulab", "run", "--out", "job", "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "GPULAB_PROGRESS": "off"}
    result = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr
    return list(gpulab.load(folder / "job"))


@pytest.mark.night
def test_aligned_clocks_agree_with_the_clock_of_the_host(live_ranks):
    first, second = live_ranks
    clock = align_clocks(live_ranks).clocks[1]
    assert abs(clock.offset_ns - (second.began_ns - first.began_ns)) <= clock.error_ns + 1e6
    assert abs(clock.drift_frac) < 0.01


@pytest.mark.full
def test_the_rank_that_sleeps_is_the_one_that_the_other_waits_for(live_ranks):
    waits = job_waits(live_ranks)
    assert waits.matrix_ns[0, 1] > waits.matrix_ns[1, 0]
    assert np.median(waits.skew_ns[1]) >= 0.5 * LATE_S * 1e9


@pytest.mark.full
def test_the_bandwidth_between_ranks_of_a_cpu_has_no_link_to_compare_with(live_ranks):
    entries = bandwidths(live_ranks)
    assert entries
    assert all(entry.link_frac is None and "CPU" in entry.link.reason for entry in entries)
