"""Names of processes: the script, the notebook, the job; never arguments."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from gpulab.watch.process_names import ProcessNames, name_of, program_name


@pytest.mark.parametrize(("line", "name"), [
    ("python train.py --token secret", "train.py"),
    ("/usr/bin/python3.11 -u -X dev /home/ada/run/train.py", "train.py"),
    ("python -W ignore train.py", "train.py"),
    ("python -m package.train --epochs 3", "package.train"),
    ("python -m torch.distributed.run --nproc-per-node 4 train.py", "train.py"),
    ("python -m gpulab run --quiet train.py", "train.py"),
    ("python /venv/bin/torchrun --standalone train.py", "train.py"),
    ("python -c print(1)", "python -c"),
    ("python", "python"),
    ("/opt/app/server --port 1", "server"),
    ("", "unknown program"),
])  # fmt: skip
def test_a_command_line_is_named_by_its_program(line, name):
    assert program_name(line.split()) == name


def child(code, **environment):
    return subprocess.Popen([sys.executable, "-c", code], env={**os.environ, **environment},
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip


def test_a_process_has_its_user_and_start():
    name = name_of(os.getpid())
    assert name.user == psutil.Process().username()
    assert name.started_s == pytest.approx(psutil.Process().create_time(), abs=0.1)


def test_a_slurm_job_has_its_name_and_number():
    process = child("print(1, flush=True); input()", SLURM_JOB_ID="4711", SLURM_JOB_NAME="pretrain")
    process.stdout.readline()  # its environment is known once it runs
    name = name_of(process.pid)
    process.communicate(b"\n")
    assert (name.name, name.job) == ("pretrain", "Slurm 4711")


def test_ranks_of_one_launcher_are_one_job():
    code = (
        "import subprocess, sys\n"
        "ranks = [subprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE) for _ in range(2)]\n"
        "print(*(rank.pid for rank in ranks), flush=True)\n"
        "sys.stdin.readline()\n"
        "[rank.communicate(b'\\n') for rank in ranks]\n"
    )
    launcher = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    pids = [int(pid) for pid in launcher.stdout.readline().split()]
    jobs = {name_of(pid).job for pid in pids}
    launcher.communicate("\n")
    assert len(jobs) == 1


def test_a_process_that_is_not_visible_is_said_to_be_outside():
    name = name_of(2**22 + 12345)
    assert name.user is None
    assert "outside" in name.name


def test_a_number_that_is_used_again_is_looked_up_again():
    names = ProcessNames()
    first = names.of([os.getpid()])[os.getpid()]
    names.of([])
    assert names.of([os.getpid()])[os.getpid()] == first
    assert list(names.of([])) == []
