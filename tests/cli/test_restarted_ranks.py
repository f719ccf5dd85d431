"""Which of the commands that a program starts are ranks of itself, and what becomes of the others: nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from gpulab.cli.program import Program
from gpulab.cli.restarted_ranks import RestartedRanks

RANK = {"LOCAL_RANK": "1", "WORLD_SIZE": "4"}
OPTIONS = ["--level", "trace"]
RECORDED = ["-m", "gpulab", "run", *OPTIONS]
PYTHON = sys.executable


@pytest.fixture
def started(monkeypatch, tmp_path):
    """Call Popen as a program does; return the command and the environment that reach it."""
    monkeypatch.chdir(tmp_path)

    def start(command, program="train.py", is_module=False, **given):
        seen = {}
        monkeypatch.setattr(subprocess.Popen, "__init__", lambda popen, *args, **kwargs: seen.update(kwargs, args=args))
        monkeypatch.setattr(subprocess.Popen, "__del__", lambda popen: None)
        ranks = RestartedRanks(Program(program, (), is_module), OPTIONS)
        ranks.install()
        try:
            subprocess.Popen(command, **given)
        finally:
            ranks.remove()
        return seen["args"][0], seen.get("env"), ranks.world_size

    return start


def as_a_rank(**more):
    return {**os.environ, **RANK, **more}


def test_a_rank_of_the_same_script_is_recorded(started, tmp_path):
    command, environ, world_size = started([PYTHON, str(tmp_path / "train.py"), "--lr", "1"], env=as_a_rank())
    assert command == [PYTHON, *RECORDED, str(tmp_path / "train.py"), "--lr", "1"]
    assert (environ["GPULAB_RANK"], environ["GPULAB_WORLD_SIZE"], world_size) == ("1", "4", 4)
    assert {name: environ[name] for name in RANK} == RANK


def test_flags_of_python_stay_its_own(started):
    assert started([PYTHON, "-u", "train.py"], env=as_a_rank())[0] == [PYTHON, "-u", *RECORDED, "train.py"]


def test_a_rank_of_the_same_module_is_recorded(started):
    command = started([PYTHON, "-m", "package.train", "x"], "package.train", True, env=as_a_rank())[0]
    assert command == [PYTHON, *RECORDED, "-m", "package.train", "x"]


def test_the_environment_may_be_that_of_the_program(started, monkeypatch):
    for name, value in RANK.items():
        monkeypatch.setenv(name, value)
    assert started([PYTHON, "train.py"])[0] == [PYTHON, *RECORDED, "train.py"]


def test_a_relative_script_is_that_of_the_folder_in_which_it_will_run(started, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    assert started([PYTHON, "train.py"], env=as_a_rank(), cwd="elsewhere")[0] == [PYTHON, "train.py"]


@pytest.mark.parametrize(
    "command",
    [
        [PYTHON, "other.py"],
        [PYTHON, "-c", "print()"],
        [PYTHON, "-m", "train"],
        [PYTHON, "-W", "train.py"],
        [PYTHON],
        [],
        ["train.py"],
        ["git", "train.py"],
        "python train.py",
        b"python",
        iter((PYTHON, "train.py")),
    ],
)
def test_other_commands_are_left_alone(started, command):
    environ = as_a_rank()
    given, unchanged, world_size = started(command, env=environ)
    assert given is command
    assert unchanged is environ
    assert world_size is None


@pytest.mark.parametrize(
    "more",
    [
        {"LOCAL_RANK": "0"},
        {"LOCAL_RANK": "4"},
        {"LOCAL_RANK": "x"},
        {"WORLD_SIZE": ""},
        {"NODE_RANK": "1"},
        {"RANK": "1"},
    ],
    ids=str,
)
def test_a_process_that_is_no_further_rank_is_left_alone(started, more):
    command = [PYTHON, "train.py"]
    assert started(command, env=as_a_rank(**more))[0] is command


@pytest.mark.parametrize("given", [{"shell": True}, {"executable": "/bin/sh"}], ids=str)
def test_unusual_ways_to_start_a_process_are_left_alone(started, given):
    command = [PYTHON, "train.py"]
    assert started(command, env=as_a_rank(), **given)[0] is command


def test_the_constructor_is_restored_unless_the_program_replaced_it(monkeypatch):
    original = subprocess.Popen.__init__
    ranks = RestartedRanks(Program("train.py", ()), OPTIONS)
    ranks.install()
    assert subprocess.Popen.__init__ is not original
    ranks.remove()
    assert subprocess.Popen.__init__ is original
    ranks.install()
    replacement = lambda *args, **kwargs: None  # noqa: E731
    monkeypatch.setattr(subprocess.Popen, "__init__", replacement)
    ranks.remove()
    assert subprocess.Popen.__init__ is replacement
