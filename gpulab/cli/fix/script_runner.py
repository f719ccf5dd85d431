"""Runs variants of a script for some seconds, each in a process of its own."""

from __future__ import annotations

import ast
import getpass
import json
import marshal
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from gpulab.analysis.steps.detection import find_steps
from gpulab.capture.protection.temporary_folder import temporary_folder
from gpulab.cli.fix.trial_process import MAX_STARTUP_S, RECORDING, RESULT, TEMPORARY, TrialJob, TrialResult
from gpulab.cli.program import Program
from gpulab.errors import CaptureError
from gpulab.files import load
from gpulab.run import Run
from gpulab.trial.cell_runner import least_steps, too_short
from gpulab.trial.effects.program_guard import REFUSAL
from gpulab.trial.program_code import ProgramCode
from gpulab.wording import count, duration

_MAX_FACTOR, _END_S = 10, 120.0  # of the seconds of a trial, and for the end of a process
_LAST_LINES, _MOST_NAMES = 3, 4
_WHILE_RECORDED = "while it was recorded"
# Trackers would report the run to a server; hubs are asked for what is there already.
_OFFLINE = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "MLFLOW_TRACKING_URI": "",
    "HF_HUB_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
}


class ScriptRunner:
    """Runs variants of a script, with its output hidden. `seconds`: of each run, after its first steps.

    The files that it changes are copies, and it can neither start programs nor open network connections, unless it is
    not `protected`.
    """

    def __init__(self, program: Program, seconds: float, *, protected: bool) -> None:
        self._refused, self._changed = list[str](), list[str]()
        self.isolation = "each in a process of its own, which changes no files" if protected else "unprotected"
        self._program, self._seconds, self._protected = program, seconds, protected
        self._kernel_refuses = True
        self._path = program.source()[0]

    @property
    def effects(self) -> tuple[tuple[str, str], ...]:
        """What the script was not allowed to do, as labelled lines."""
        outermost = [path for path in self._changed if not any(map(self._changed.__contains__, _folders_of(path)))]
        names = [os.path.relpath(path) for path in outermost]
        more = f" and {count(len(names) - _MOST_NAMES, 'other')}" if len(names) > _MOST_NAMES else ""
        rows = {
            "refused": "; ".join(self._refused),
            "discarded": f"what it wrote: {', '.join(names[:_MOST_NAMES])}{more}" if names else "",
            "not held back": "" if self._kernel_refuses else "files that compiled libraries write: no Landlock here",
        }
        return tuple((label, text) for label, text in rows.items() if text)

    def record(self, program: ProgramCode, name: str, fix_for: str = "") -> Run:
        """Run a variant and return its recording. Raises CaptureError if it fails, or if no step is detected."""
        run, result = self.run(program, name, fix_for)
        steps = find_steps(run)
        if int(steps.unprofiled.sum()) < least_steps(steps):
            raise too_short(steps, program.noun, longer_s=3 * self._seconds if result.ended_early else None)
        return run

    def run(
        self, program: ProgramCode, name: str, fix_for: str = "", level: str = "sensors"
    ) -> tuple[Run, TrialResult]:
        """Run a variant and return its recording of any length, and how it ended. Raises CaptureError if it fails."""
        with temporary_folder() as folder:
            (folder / TEMPORARY).mkdir()
            direct = tuple(_caches()) if self._protected else None
            job = TrialJob(
                program=self._program,
                code=_compiled(program.main, self._path),
                changed_files={path: _compiled(program.files[path], path) for path in program.changed},
                name=name,
                level=level,
                seconds=self._seconds,
                folder=folder,
                direct=direct,
            )
            status, output = self._ended(job)
            result = _read(folder / RESULT)
            if result is None or result.error or result.without_steps or not (folder / RECORDING).exists():
                raise self._failure(result, status, output, fix_for or (level != "sensors" and _WHILE_RECORDED) or "")
            self._note(result)
            run = load(folder / RECORDING, progress=False)
        assert isinstance(run, Run)
        return run, result

    def _failure(self, result: TrialResult | None, status: int, output: str, fix_for: str) -> CaptureError:
        if result is not None and result.without_steps:
            return CaptureError(
                "The trial was stopped.",
                why=f"no step was detected within {duration(MAX_STARTUP_S * 1e9)}",
                fix="in a loop without a DataLoader and an optimizer, call gpulab.step() at the end of each iteration",
            )
        why = _reason(result, status, output)
        if result is not None and result.refused and REFUSAL in result.error:
            return CaptureError(
                "This script cannot be tried.",
                why=f"a trial must have no effects; {why}",
                fix="switch that off by an argument of the script, or let it do that in each run: --no-protection",
            )
        if fix_for and fix_for != _WHILE_RECORDED:
            return CaptureError(
                f"The script failed with the fix for {fix_for}.", why=why, fix="adapt the fix to your code"
            )
        return CaptureError(
            f"The script failed {fix_for or 'in a trial without the fix'}.", why=why, fix=self._advice(result)
        )

    def _advice(self, result: TrialResult | None) -> str:
        check = f"check that it runs without input: gpulab run {self._program.command} < /dev/null"
        if result is not None and not result.error:
            return "gpulab measures programs that use PyTorch"
        if not self._protected:
            return check
        return f"{check}. If it does, a trial keeps files or connections from it: --no-protection"

    def _note(self, result: TrialResult) -> None:
        self._kernel_refuses &= result.kernel_refuses or not self._protected
        self._refused += [each for each in result.refused if each not in self._refused]
        self._changed += [each for each in result.changed if each not in self._changed]

    def _ended(self, job: TrialJob) -> tuple[int, str]:
        """Run the job to its end; return the exit status of the process, and what it printed on stderr."""
        path = job.folder / "job"
        path.write_bytes(pickle.dumps(job))
        command = [sys.executable, "-m", "gpulab.cli.fix.trial_process", str(path)]
        environment = {**os.environ, "TMPDIR": str(job.folder / TEMPORARY), **(_OFFLINE if self._protected else {})}
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(_inductor_cache()))
        limit_s = MAX_STARTUP_S + _MAX_FACTOR * job.seconds + _END_S
        with (job.folder / "stderr").open("w+b") as errors:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,  # Ctrl-C ends this process, which ends that one
            )
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                raise CaptureError(
                    "The trial was stopped.",
                    why=f"the script did not end within {duration(limit_s * 1e9)}",
                    fix="check that it ends when Ctrl-C is pressed",
                ) from None
            finally:
                _end_group(process)
            errors.seek(0)
            return process.returncode, errors.read().decode(errors="replace")


def _compiled(tree: ast.Module, path: str) -> bytes:
    return marshal.dumps(compile(tree, path, "exec", dont_inherit=True))


def _folders_of(path: str) -> list[str]:
    return [str(parent) for parent in Path(path).parents]


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process, and those that it started."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(path: Path) -> TrialResult | None:
    return TrialResult(**json.loads(path.read_text())) if path.exists() else None


def _reason(result: TrialResult | None, status: int, output: str) -> str:
    """Return why a run left no recording."""
    lines = [line.strip() for line in output.splitlines() if line.strip()][-_LAST_LINES:]
    if result is None:
        end = f"signal {signal.Signals(-status).name}" if status < 0 else f"the status {status}"
        return "; ".join([f"its process ended with {end}", *lines])
    if not result.error:
        return "it did not import PyTorch in its main thread"
    exits = result.error.startswith("it exits")
    return "; ".join([result.error, *lines[-1:]]) if exits else result.error


def _caches() -> list[Path]:
    """Return the folders of caches: what a script keeps there only saves time."""
    home = Path.home()
    variables = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH")
    folders = [Path(os.environ[name]) for name in variables if os.environ.get(name)]
    folders = [path for path in (*folders, home / ".cache", home / ".triton", home / ".nv") if path.exists()]
    # Made here, because importing the profiler of PyTorch makes it.
    _inductor_cache().mkdir(parents=True, exist_ok=True)
    return [*folders, _inductor_cache()]


def _inductor_cache() -> Path:
    """Return where torch.compile keeps its results: by default in the folder for temporary files."""
    default = Path(tempfile.gettempdir(), f"torchinductor_{getpass.getuser()}")
    return Path(os.environ.get("TORCHINDUCTOR_CACHE_DIR") or default)
