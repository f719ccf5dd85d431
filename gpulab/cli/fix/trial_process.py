"""One run of a script in a trial: a process of its own, which records some seconds and leaves nothing behind.

`python -m gpulab.cli.fix.trial_process FILE`, started by script_runner.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import marshal
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING
from unittest.mock import patch

from gpulab.cli.program import Program
from gpulab.cli.torch_import import TORCH, call_after_import
from gpulab.trial.effects.overlay import Overlay
from gpulab.trial.effects.program_guard import ProgramGuard
from gpulab.trial.effects.redirected_files import RedirectedFiles
from gpulab.trial.effects.write_limits import allow_writes_only_in
from gpulab.trial.timed_run import TimedRun

if TYPE_CHECKING:
    from gpulab.capture.session import Session

MAX_STARTUP_S = 300.0  # until the first step: imports, data and models of a script take their time
RECORDING, RESULT, TEMPORARY = "run.gpulab", "result.json", "tmp"
# Of CUDA, as is the folder of its Multi-Process Service.
_DEVICES = (Path("/dev"), Path("/proc"), Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")))
_PARENT_DEATH_SIGNAL = 1  # of prctl
_LONGEST = 300  # characters of an error
_PACKAGE = str(Path(__file__).parents[2])


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """What the process is to do. It writes into `folder`, which is empty but for its folder for temporary files."""

    program: Program
    code: bytes  # of the program, with a fix or without; `marshal` reads it
    changed_files: Mapping[str, bytes]  # the code of files that it imports, with a fix, by path
    name: str  # of the recording
    level: str
    seconds: float  # after the first steps
    folder: Path
    direct: tuple[Path, ...] | None  # where the program may write; None: it may do what it does


@dataclass(frozen=True, kw_only=True)
class TrialResult:
    """How the run ended."""

    error: str = ""  # what the program raised
    ended_early: bool = False
    without_steps: bool = False
    refused: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)  # files that it wrote or removed, as it believes
    kernel_refuses: bool = False  # whether compiled code is held back, too


class TrialRecording:
    """The recording of a script, from its import of PyTorch on."""

    def __init__(self, job: TrialJob) -> None:
        self._job = job
        self._session: Session | None = None

    @property
    def steps(self) -> int:
        """Steps so far."""
        return 0 if self._session is None else self._session.live().steps

    def start(self) -> None:
        """Start to record."""
        from gpulab.capture.session import Session

        job = self._job
        session = Session(job.name, level=job.level, spool_folder=job.folder / "spool")
        session.start()
        self._session = session

    def save(self) -> None:
        """Stop, and save the recording, if there is one."""
        if self._session is not None:
            from gpulab import store

            store.save(self._session.stop(), self._job.folder / RECORDING)


def run_job(job: TrialJob) -> TrialResult:
    """Run the program of a job in this process, for good: what is changed for the program stays so."""
    recording, guard = TrialRecording(job), ProgramGuard()
    timed = TimedRun(job.seconds, lambda: recording.steps, startup_s=MAX_STARTUP_S)
    error, overlay, kernel_refuses = "", None, False
    with contextlib.ExitStack() as stack:
        call_after_import(TORCH, recording.start)
        if job.changed_files:
            stack.enter_context(_changed_modules(job.changed_files))
        if job.direct is not None:
            direct = (*job.direct, job.folder, *_DEVICES)
            (job.folder / "files").mkdir()
            overlay, kernel_refuses = Overlay(job.folder / "files", direct), allow_writes_only_in(direct)
            redirected = RedirectedFiles(overlay)
            call_after_import(TORCH, redirected.redirect_torch)
            call_after_import("safetensors", redirected.redirect_safetensors)
            stack.enter_context(redirected.active())
            stack.enter_context(guard.active())
        try:
            timed.run(lambda: job.program.run(marshal.loads(job.code)))
        except SystemExit as end:
            kind = "the message" if isinstance(end.code, str) else "the status"
            error = "" if end.code in (None, 0) else f"it exits with {kind} {end.code}"
        except BaseException as problem:  # the program may raise anything
            error = _error_text(problem, job)
    recording.save()
    return TrialResult(
        error=error,
        ended_early=timed.ended_early,
        without_steps=timed.without_steps,
        refused=guard.refused,
        changed=[] if overlay is None else overlay.changed,
        kernel_refuses=kernel_refuses,
    )


def _error_text(problem: BaseException, job: TrialJob) -> str:
    """Return what the program raised, and in which line of its own: the last outside of installed packages."""
    text = " ".join(str(problem).replace(str(job.folder / "files"), "").split())
    message = f"{type(problem).__name__}: {text[:_LONGEST]}{'...' if len(text) > _LONGEST else ''}"
    frames = [frame for frame in traceback.extract_tb(problem.__traceback__) if _is_of_users(frame.filename)]
    return f"{message} ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else message


def _is_of_users(path: str) -> bool:
    return not any(part in path for part in ("site-packages", "dist-packages", _PACKAGE, os.__file__[:-5], "<"))


@contextlib.contextmanager
def _changed_modules(files: Mapping[str, bytes]) -> Iterator[None]:
    """Import these files with other code."""
    original = SourceFileLoader.get_code
    codes = {os.path.realpath(path): code for path, code in files.items()}

    def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
        code = codes.get(os.path.realpath(loader.get_filename(fullname)))
        return original(loader, fullname) if code is None else marshal.loads(code)

    with patch.object(SourceFileLoader, "get_code", get_code):
        yield


def _end_with_parent() -> None:
    """Let Linux end this process if the one that started it is killed."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL)


def main(path: str) -> None:
    """Run the job of this file, write the result, and end without what the program has left to do at exit."""
    _end_with_parent()
    job: TrialJob = pickle.loads(Path(path).read_bytes())
    tempfile.tempdir = str(job.folder / TEMPORARY)
    result = run_job(job)
    (job.folder / RESULT).write_text(json.dumps(asdict(result)))
    for process in multiprocessing.active_children():
        process.terminate()
    os._exit(0)


if __name__ == "__main__":
    # By its name, so that the job is unpickled as an object of this module, not of __main__, which the program becomes.
    from gpulab.cli.fix.trial_process import main as run_main

    run_main(sys.argv[1])
