"""A recording that a framework starts and ends: one run for each rank, saved and reported."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from gpulab.capture.active_session import is_recording
from gpulab.capture.job_rank import rank_name
from gpulab.capture.profile_block import ProfiledBlock, profile
from gpulab.capture.protection.guard import is_from_outside
from gpulab.capture.session import Session
from gpulab.errors import CaptureError, problem_text
from gpulab.run import Run
from gpulab.run_summary import summary
from gpulab.store import save
from gpulab.views.report.report import Report, report
from gpulab.views.terminal import terminal_text
from gpulab.views.whatif.command import has_magics


class RecordedTraining:
    """Records from `start()` to `end()`, unless a recording is active already, as that of `%%gpuprofile`.

    out: a folder for `NAME.gpulab` and `NAME.html`; each of several ranks writes `rankN.gpulab`. level, steps: as for
    gpulab.profile. report: print the report to stderr, on rank 0. An instance can be pickled while it does not record.
    """

    def __init__(self, out: str | Path | None, name: str, level: str, steps: int | None, report: bool) -> None:
        self.run: Run | None = None
        self.log: Callable[[dict[str, float]], None] | None = None  # receives the numbers of the summary, on rank 0
        self._out = None if out is None else Path(out)
        self._name, self._level, self._steps, self._prints = name, level, steps, report
        self._report: Report | None = None
        self._block: ProfiledBlock | None = None
        self._session: Session | None = None
        self._rank, self._world_size = 0, 1

    @property
    def is_running(self) -> bool:
        """Whether it records now."""
        return self._block is not None

    @property
    def report(self) -> Report | None:
        """The report of `run`; None before."""
        if self._report is None and self.run is not None:
            self._report = report(self.run)
        return self._report

    def start(self, rank: int, world_size: int) -> None:
        """Start recording; does nothing while another recording is active.

        Raises CaptureError if the level or the number of steps is invalid, or the folder cannot be created.
        """
        if is_recording():
            return
        if self._out is not None:
            _create_folder(self._out)
        block = profile(self._name, level=self._level, steps=self._steps)
        self._session = block.__enter__()
        self._block, self._rank, self._world_size = block, rank, world_size
        self.run = self._report = None

    def end(self, error: BaseException | None = None) -> None:
        """End the recording, save the run, and print the report; does nothing if it does not record.

        error: the exception that ended the training. Warns if the run cannot be recorded, saved or diagnosed.
        """
        block, session = self._block, self._session
        self._block = self._session = None
        if block is None or session is None:
            return
        block.__exit__(type(error) if error is not None else None, error, None)
        if session.run is None:
            return
        run = session.run
        is_one_of_many = self._world_size > 1 and run.rank is None
        self.run = replace(run, rank=self._rank) if is_one_of_many else run
        try:
            self._publish(self.run)
        except Exception as problem:  # protects the training, which may have taken days
            if is_from_outside(problem):
                raise
            with contextlib.suppress(Warning):
                warnings.warn(f"gpulab: {problem_text(problem)}", stacklevel=2)

    def _publish(self, run: Run) -> None:
        saved: list[Path] = []
        if self._out is not None:
            file_name = self._name if self._world_size == 1 else rank_name(self._rank)
            saved.append(save(run, self._out / f"{file_name}.gpulab"))
        if not self._rank and self.log is not None:
            self.log(summary_metrics(run))
        if self._rank or not (self._prints or self._out):
            return
        view = report(run)
        self._report = view
        if self._out is not None:
            saved.append(view.save(self._out / f"{self._name}.html"))
        if self._prints:
            # A progress bar of the framework's may have left an unfinished line.
            file = saved[0] if self._out is not None else None
            text = repr(view) if has_magics() else terminal_text(view, file)
            lines = [f"\ngpulab: report of {self._name!r}", text, *(f"gpulab: saved {path}" for path in saved)]
            sys.stderr.write("\n".join(lines) + "\n")


def summary_metrics(run: Run) -> dict[str, float]:
    """Return the numbers of `run.summary()` for a tracker: "gpulab/step_s", ..."""
    return {f"gpulab/{name}": float(value) for name, value in summary(run).items() if not isinstance(value, str)}


class RecordsTraining:
    """Base of the callbacks: the results of their recording."""

    _recording: RecordedTraining

    @property
    def run(self) -> Run | None:
        """The run of the latest training in this process; None before it ends."""
        return self._recording.run

    @property
    def report(self) -> Report | None:
        """The report of `run`."""
        return self._recording.report


def _create_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        problem, why = f"The folder {path} cannot be created.", error.strerror or str(error)
        raise CaptureError(problem, why=why, fix="pass another folder as out") from error
