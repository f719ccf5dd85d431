"""Who a process belongs to, what it is, and which job it is part of.

Arguments of programs are not stored, because they may contain passwords: only the name of the script or module is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

import psutil

_OUTSIDE = "a process outside this container"
_OPTIONS_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed", "mpirun")
_SERVERS = ("jupyter", "jupyterhub", "code-server", "pytest", "gpulab")
_RUNNERS = ("gpulab", *_LAUNCHERS)


@dataclass(frozen=True, kw_only=True)
class ProcessName:
    """A process as the history stores it; None: not visible to this user."""

    pid: int
    started_s: float  # with the pid, this identifies a process of a host; 0 if unknown
    user: str | None
    name: str
    job: str  # equal for all processes of a job, such as the ranks of one launcher


class ProcessNames:
    """Names of processes; each is looked up once."""

    def __init__(self) -> None:
        self._names: dict[int, ProcessName] = {}

    def of(self, pids: Sequence[int]) -> Mapping[int, ProcessName]:
        """Return the name of each process, and forget all others: their numbers may be used again."""
        self._names = {pid: self._names.get(pid) or name_of(pid) for pid in pids}
        return self._names


def name_of(pid: int) -> ProcessName:
    """Look up a process."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            started_s, user, command = process.create_time(), _user(process), _command(process)
    except psutil.NoSuchProcess:
        return ProcessName(pid=pid, started_s=0.0, user=None, name=_OUTSIDE, job=f"{pid}")
    environment = _environment(process)
    name = environment.get("SLURM_JOB_NAME") or _notebook(command, environment) or program_name(command)
    return ProcessName(pid=pid, started_s=round(started_s, 2), user=user, name=name, job=_job(process, environment))


def program_name(command: Sequence[str]) -> str:
    """Return the script or module that a command line runs: "train.py" of "python -u train.py --token x"."""
    if not command:
        return "unknown program"
    program = PurePath(command[0]).name
    if not program.startswith(("python", "pypy")):
        return program
    parts = iter(command[1:])
    for word in parts:
        if word in _OPTIONS_WITH_VALUE:
            next(parts, None)
        elif word == "-m":
            return _target(next(parts, program), list(parts))
        elif word == "-c":
            return "python -c"
        elif not word.startswith("-"):
            return _target(PurePath(word).name, list(parts))
    return program


def _target(name: str, rest: list[str]) -> str:
    """Return the program that a launcher starts, instead of the launcher."""
    if name not in _RUNNERS:
        return name
    scripts = [word for word in rest if word.endswith(".py")]
    return PurePath(scripts[0]).name if scripts else name


def _notebook(command: Sequence[str], environment: Mapping[str, str]) -> str | None:
    if not any("ipykernel" in word for word in command):
        return None
    return PurePath(environment.get("JPY_SESSION_NAME", "a notebook")).name


def _job(process: psutil.Process, environment: Mapping[str, str]) -> str:
    if slurm := environment.get("SLURM_JOB_ID"):
        return f"Slurm {slurm}"
    top = process
    with contextlib.suppress(psutil.Error):
        for parent in process.parents():
            command = _command(parent)
            if not command or not _starts_ranks(command):
                break
            top = parent
    return f"{top.pid}"


def _starts_ranks(command: Sequence[str]) -> bool:
    """Whether this is a launcher or a Python program, and no server that starts unrelated programs."""
    parts = [PurePath(word).name for word in command[:4]]
    if any(word.startswith(server) for word in parts for server in _SERVERS) and "run" not in parts:
        return False
    return parts[0].startswith("python") or any(word in _LAUNCHERS for word in parts)


def _user(process: psutil.Process) -> str | None:
    try:
        return process.username()
    except (psutil.AccessDenied, KeyError):
        return None


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.AccessDenied, psutil.ZombieProcess):
        return []


def _environment(process: psutil.Process) -> Mapping[str, str]:
    try:
        return process.environ()
    except (psutil.Error, OSError):  # of other users
        return {}
