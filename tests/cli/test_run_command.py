"""`gpulab run` records a program that knows nothing of it, alone or as the ranks of a job."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.run import KILLED
from gpulab.run_facts import bucket_sizes

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "support" / "programs"
RECORD = ("-m", "gpulab", "run")
TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "gpulab", "run")


def run(folder: Path, *command: object, **extra: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "GPULAB_HISTORY": "off", **extra}
    return subprocess.run(
        [sys.executable, *map(str, command)], cwd=folder, env=environ, capture_output=True, text=True, timeout=170
    )


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(folder, *RECORD, "--out", "results", PROGRAMS / "train.py")


def test_the_output_of_the_program_is_that_of_python(recorded, tmp_path):
    _, result = recorded
    assert result.stdout == run(tmp_path, PROGRAMS / "train.py").stdout
    assert result.returncode == 0


def test_the_report_is_on_stderr_and_is_that_of_the_recording(recorded):
    folder, result = recorded
    verdict = gpulab.diagnose(gpulab.load(folder / "results" / "run.gpulab")).verdict
    assert " ".join(verdict.split()) in " ".join(result.stderr.split())
    assert "%gpu" not in result.stderr  # commands of the shell, not of a notebook
    assert "Checks that could not run" not in result.stderr  # details are in the page


def test_the_results_agree_with_the_recording(recorded):
    folder, _ = recorded
    results = folder / "results"
    assert sorted(path.name for path in results.iterdir()) == ["report.html", "run.gpulab", "summary.json"]
    summary = json.loads((results / "summary.json").read_text())
    loaded = gpulab.load(results / "run.gpulab")
    diagnosis = gpulab.diagnose(loaded)
    assert summary["steps"] == 60
    assert [each["rule"] for each in summary["findings"]] == [each.rule for each in diagnosis.findings]
    assert {"no_workers", "slow_storage"} & {each["rule"] for each in summary["findings"]}
    assert summary["step_ms"] == pytest.approx(diagnosis.step.step_ns / 1e6)
    assert sum(summary["ledger_ms"].values()) == pytest.approx(summary["step_ms"], abs=0.01)
    assert summary["rank"] is None
    assert loaded.name == "train"


@pytest.mark.night
def test_a_recording_is_not_replaced_and_the_program_runs_all_the_same(recorded, tmp_path):
    folder, first = recorded
    before = (folder / "results" / "run.gpulab").read_bytes()
    again = run(folder, *RECORD, "--out", "results", PROGRAMS / "train.py")
    assert again.stdout == first.stdout
    assert again.returncode == 0
    assert "--overwrite" in again.stderr
    assert (folder / "results" / "run.gpulab").read_bytes() == before


def test_the_commands_read_what_it_wrote(recorded):
    folder, _ = recorded
    assert "Where the step time goes" in run(folder, "-m", "gpulab", "report", "results").stdout
    assert json.loads(run(folder, "-m", "gpulab", "report", "--json", "results/run.gpulab").stdout)["steps"] == 60
    waiting = ROOT / "recorded_runs" / "case01" / "run.gpulab"  # a live run may be too uncertain on a busy machine
    assert "Predicted" in run(folder, "-m", "gpulab", "whatif", waiting, "workers=2").stdout
    same = run(folder, "-m", "gpulab", "compare", "results/run.gpulab", "results/run.gpulab", "--fail-over", "5%")
    assert same.returncode == 0
    assert "PASS" in same.stdout
    wrong = run(folder, "-m", "gpulab", "compare", "results", "results/run.gpulab")
    assert wrong.returncode == 2
    assert "results/run.gpulab" in wrong.stderr
    assert run(folder, "-m", "gpulab", "why", "no_workers").stdout.count("num_workers") > 0


@pytest.mark.full
@pytest.mark.parametrize("lines", [12, 500])
def test_on_a_short_terminal_the_cause_is_repeated_below_the_report(tmp_path, lines):
    pytest.importorskip("termios")
    import fcntl
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, 80, 0, 0))
    command = [sys.executable, *RECORD, "--out", "results", PROGRAMS / "train.py"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "GPULAB_HISTORY": "off"}
    with subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL, stderr=slave) as process:
        os.close(slave)
        shown = b""
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal as an error
            while part := os.read(master, 65536):
                shown += part
    os.close(master)
    assert process.returncode == 0
    *_, before, last = shown.decode().splitlines()
    assert "report.html" in last
    claim = json.loads((tmp_path / "results" / "summary.json").read_text())["verdict"]
    assert (claim[:40] in before) is (lines == 12)


@pytest.mark.full
def test_an_exception_ends_the_program_as_under_python_and_the_run_is_kept(tmp_path):
    plain = run(tmp_path, PROGRAMS / "train.py", "--fail-at", 40)
    result = run(tmp_path, *RECORD, "--out", "results", PROGRAMS / "train.py", "--fail-at", 40)
    assert result.returncode == plain.returncode == 1
    assert result.stderr.startswith(plain.stderr)
    loaded = gpulab.load(tmp_path / "results" / "run.gpulab")
    assert loaded.outcome == "RuntimeError"
    assert json.loads((tmp_path / "results" / "summary.json").read_text())["outcome"] == "RuntimeError"


DATASET = """class Data(list):
    def __getitem__(self, i): return {}[i] if i == 40 else torch.ones(4)
for batch in torch.utils.data.DataLoader(Data(range(90)), batch_size=8, num_workers=WORKERS): step(batch)
"""
FAILING = {
    "dataset": DATASET.replace("WORKERS", "0"),
    "dataset of a worker": DATASET.replace("WORKERS", "1"),
    "model": "for number in range(9):\n    failing.append(number == 3)\n    step(torch.ones(2, 4))",
    "hook of an optimizer": "optimizer.register_step_pre_hook(lambda *_: {}[3] if len(taken) == 3 else None)\n"
    "while True: step(torch.ones(2, 4))",
    "chained": "try:\n    next(iter(torch.utils.data.DataLoader([], batch_sampler=[[0]])))\n"
    "except IndexError as error:\n    raise RuntimeError('no data') from error",
}
LOOP = """import torch
failing, taken = [False], []
class Net(torch.nn.Linear):
    def forward(self, x):
        return {}[x] if failing[-1] else super().forward(x)
net = Net(4, 1)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
def step(batch):
    net(batch).mean().backward()
    optimizer.step()
    taken.append(batch)
"""


@pytest.mark.full
@pytest.mark.parametrize("where", FAILING)
def test_an_error_that_passes_hooks_reads_as_under_python(tmp_path, where):
    (tmp_path / "failing.py").write_text(LOOP + FAILING[where])
    plain = run(tmp_path, "failing.py")
    result = run(tmp_path, *RECORD, "--out", "results", "failing.py")
    assert result.returncode == plain.returncode == 1
    assert "Error" in plain.stderr
    assert result.stderr.startswith(plain.stderr)


@pytest.mark.full
@pytest.mark.parametrize("package", ["transformers", "accelerate", "lightning"])
def test_a_program_whose_first_import_looks_for_torch_is_recorded(tmp_path, package):
    pytest.importorskip(package)
    (tmp_path / "first.py").write_text(
        f"import {package}\nimport torch\nwith torch.no_grad():\n    for _ in range(30):\n        torch.ones(9).sum()\n"
    )
    result = run(tmp_path, *RECORD, "--out", "results", "first.py")
    assert (tmp_path / "results" / "run.gpulab").exists(), result.stderr
    assert gpulab.load(tmp_path / "results" / "run.gpulab").events["name"].tolist().count("aten::ones") == 30


@pytest.mark.full
def test_a_program_whose_work_is_done_by_another_process_is_told_so(tmp_path):
    (tmp_path / "starter.py").write_text(
        "import subprocess, sys\n"
        "work = 'import time\\nwhile time.process_time() < 4: pass'\n"
        "subprocess.run([sys.executable, '-c', work], check=True)\n"
    )
    result = run(tmp_path, *RECORD, "starter.py")
    assert result.returncode == 0
    used = re.search(r"Processes that it started used (\d+(?:\.\d+)?) s of CPU time", result.stderr)
    assert used is not None
    assert float(used[1]) > 3.5  # the kernel's account of it lags behind the process's own by some ms
    assert "accelerate launch ... -m gpulab run train.py" in result.stderr


@pytest.mark.full
def test_settings_made_before_the_import_of_torch_count(tmp_path):
    (tmp_path / "threads.py").write_text(
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'\nimport torch\nprint(torch.get_num_threads())\n"
    )
    result = run(tmp_path, *RECORD, "--quiet", "threads.py", OMP_NUM_THREADS="2")
    assert result.stdout == "1\n"


def test_a_program_that_records_itself_does_so(tmp_path):
    (tmp_path / "own.py").write_text(
        "import torch, gpulab\nwith gpulab.profile('mine'):\n    torch.ones(3).sum()\nprint(list(gpulab.runs))\n"
    )
    result = run(tmp_path, *RECORD, "own.py")
    assert result.stdout == "['mine']\n"
    assert result.returncode == 0
    assert "records itself" in result.stderr


@pytest.mark.full
def test_ranks_of_torchrun_give_one_report_that_names_the_slow_one(tmp_path):
    result = run(tmp_path, *TORCHRUN, "--out", "job", PROGRAMS / "ranks.py", "--slow-rank", 1)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == [
        "rank0.gpulab",
        "rank1.gpulab",
        "report.html",
        "summary.json",
    ]
    ranks = gpulab.load(tmp_path / "job")
    assert [each.rank for each in ranks] == [0, 1]
    assert {each.facts["world_size"] for each in ranks} == {"2"}
    assert [bucket_sizes(each) for each in ranks] == [(35344,), (35344,)]  # bytes of 8,836 parameters
    first = gpulab.diagnose(ranks).first
    assert first.rule == "straggler"
    assert first.numbers["rank"] == 1
    assert result.stderr.count("Rank 1 is a straggler") == 1
    assert json.loads((tmp_path / "job" / "summary.json").read_text())["ranks"] == [0, 1]
    interior = [set(np.flatnonzero(find_steps(each).interior).tolist()) for each in ranks]
    assert len(interior[0] & interior[1]) >= 8  # the ranks record the same steps
    prediction = gpulab.whatif(ranks, "no_straggler").prediction
    assert prediction.speedup > 1.5  # it sleeps for 30 ms, which is most of a step


@pytest.mark.night
def test_ranks_that_are_late_in_turn_are_no_straggler(tmp_path):
    run(tmp_path, *TORCHRUN, "--quiet", "--out", "job", PROGRAMS / "ranks.py", "--rotating")
    diagnosis = gpulab.diagnose(gpulab.load(tmp_path / "job"))
    assert "straggler" not in {finding.rule for finding in diagnosis.findings}


@pytest.mark.night
def test_a_rank_that_fails_is_named_and_leaves_its_run(tmp_path):
    result = run(tmp_path, *TORCHRUN, "--out", "job", PROGRAMS / "ranks.py", "--fail-rank", 1)
    assert result.returncode != 0
    assert "rank 1 ended by RuntimeError" in result.stderr
    report = run(tmp_path, "-m", "gpulab", "report", "job").stdout
    assert re.search(r"(Rank 1 was|Ranks 0-1 were) ended by RuntimeError", report)  # rank 0 loses its connection
    assert gpulab.load(tmp_path / "job" / "rank1.gpulab").outcome == "RuntimeError"


@pytest.mark.night
def test_a_killed_rank_is_recovered_by_the_report(tmp_path):
    result = run(tmp_path, *TORCHRUN, "--out", "job", PROGRAMS / "ranks.py", "--kill-rank", 1, GPULAB_SPOOL="")
    assert result.returncode != 0
    report = run(tmp_path, "-m", "gpulab", "report", "job")
    assert "killed" in report.stdout.partition("\n")[0], report.stderr
    assert gpulab.load(tmp_path / "job" / "rank1.gpulab").outcome == KILLED


@pytest.mark.full
@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(name, marks=pytest.mark.night) for name in ("spawn", "script"))]
)
def test_ranks_that_the_program_starts_are_recorded_too(tmp_path, method):
    options = ("--start", method, "--slow-rank", 0)
    result = run(tmp_path, *RECORD, "--out", "job", PROGRAMS / "ranks.py", *options, STORE=str(tmp_path / "store"))
    assert result.returncode == 0, result.stderr
    ranks = gpulab.load(tmp_path / "job")
    assert [each.rank for each in ranks] == [0, 1]
    first = gpulab.diagnose(ranks).first
    assert first.rule == "straggler"
    assert first.numbers["rank"] == 0
    assert min(len(find_steps(each)) for each in ranks) >= 59  # of 60


@pytest.mark.night
def test_the_ranks_that_lightning_starts_are_recorded_too(tmp_path):
    pytest.importorskip("lightning")
    result = run(tmp_path, *RECORD, "--out", "job", PROGRAMS / "lightning_ddp.py")
    assert result.returncode == 0, result.stderr
    ranks = gpulab.load(tmp_path / "job")
    assert [each.rank for each in ranks] == [0, 1]
    findings = gpulab.diagnose(ranks).findings
    assert findings[0].rule == "straggler"
    assert findings[0].numbers["rank"] == 1
    assert "unfused_optimizer" not in {finding.rule for finding in findings}  # its step() waits for the other rank
