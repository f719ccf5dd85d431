"""The folder of a recorded job: one recording per rank, and a mark of each rank that has not finished yet."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpulab.capture.job_rank import JobRank, rank_name
from gpulab.errors import GpulabError

PARENT = Path("gpulab-results")
RUN_SUFFIX = ".gpulab"
_POLL_S = 0.1
_MAX_WAIT_S = 120.0  # for ranks of this machine that still process their recording
_MAX_WAIT_UNSEEN_S = 10.0  # for ranks that have left no mark here, or are on other machines


@dataclass(frozen=True)
class ResultFolder:
    """Where one process of a job writes its recording."""

    path: Path
    job: JobRank | None

    @property
    def stem(self) -> str:
        """Name of this process's files: "run", or "rank3"."""
        return "run" if self.job is None else rank_name(self.job.rank)

    @property
    def run_path(self) -> Path:
        """The file of the recording."""
        return self.path / f"{self.stem}{RUN_SUFFIX}"

    @property
    def spool_path(self) -> Path:
        """Folder of the copy from which a killed process is recovered."""
        return spool_of(self.path, self.stem)

    def create(self, *, overwrite: bool) -> None:
        """Create the folder and leave a mark. Raises GpulabError if it has a recording of this process already."""
        if self.run_path.exists() and not overwrite:
            raise GpulabError(
                f"The folder {str(self.path)!r} contains a recording already.",
                why=f"{self.run_path.name} would be replaced",
                fix="choose another folder with --out, or replace it with --overwrite",
            )
        from gpulab.sensors.host.process_identity import current_process

        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.run_path.unlink(missing_ok=True)
            _mark_of(self.path, self.stem).write_text(str(current_process()))
        except OSError as problem:
            raise GpulabError(
                f"The folder {str(self.path)!r} cannot be used for results.",
                why=problem.strerror or type(problem).__name__,
                fix="choose another folder with --out",
            ) from problem

    def finish(self) -> None:
        """Remove the mark, and what is left of the copy."""
        with suppress(OSError):
            _mark_of(self.path, self.stem).unlink(missing_ok=True)
        with suppress(OSError):
            self.spool_path.rmdir()

    def remove(self) -> None:
        """Remove the mark, and the folder if nothing else is in it: there is no recording."""
        self.finish()
        with suppress(OSError):
            self.path.rmdir()
        if self.path.parent.name == PARENT.name:
            with suppress(OSError):
                self.path.parent.rmdir()


def spool_of(folder: Path, stem: str) -> Path:
    """Folder of the copy of a recording in progress."""
    return folder / f".{stem}"


def default_folder(title: str, job: JobRank | None) -> Path:
    """Return a new folder below gpulab-results, named after program and start.

    The ranks that one launcher has started on a machine share it: its start is part of the name.
    """
    if job is None:
        began_s = time.time()
    else:
        import psutil

        began_s = psutil.Process(os.getppid()).create_time()
    stamp = datetime.datetime.fromtimestamp(began_s).strftime("%Y%m%d-%H%M%S")
    base = PARENT / f"{title}-{stamp}"
    path, number = base, 2
    while job is None and path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path.absolute()  # the program may change the current folder


def wait_for_ranks(folder: Path, world_size: int) -> tuple[int, ...]:
    """Wait until all ranks have written their recordings; return those that will not: they were killed, or are away."""
    began_s = time.monotonic()
    while True:
        waiting = [rank for rank in range(world_size) if not (folder / f"{rank_name(rank)}{RUN_SUFFIX}").exists()]
        states = {rank: _is_running(folder, rank) for rank in waiting}
        elapsed_s = time.monotonic() - began_s
        pending = [
            rank
            for rank, is_running in states.items()
            if (is_running and elapsed_s < _MAX_WAIT_S) or (is_running is None and elapsed_s < _MAX_WAIT_UNSEEN_S)
        ]
        if not pending:
            return tuple(waiting)
        time.sleep(_POLL_S)


def unfinished_stems(folder: Path) -> Sequence[str]:
    """Names of the files of processes that were killed: there is a copy, and the process has ended."""
    from gpulab.capture.spool.folder import find_leftovers

    copies = sorted(path for path in folder.glob(".*") if path.is_dir())
    return [path.name.removeprefix(".") for path in copies if find_leftovers(path)]


def _mark_of(folder: Path, stem: str) -> Path:
    return folder / f".{stem}.running"


def _is_running(folder: Path, rank: int) -> bool | None:
    """Whether a rank is still running; None if this machine cannot tell."""
    from gpulab.sensors.host.process_identity import ProcessIdentity

    try:
        process = ProcessIdentity.parse(_mark_of(folder, rank_name(rank)).read_text())
    except OSError:
        return None  # not started yet, or just finished
    if process is None or not process.is_local:
        return None
    return not process.has_ended
