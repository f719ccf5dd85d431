"""`gpulab run`: record a program, which runs in this process as under `python`, and report when it ends.

Nothing that a recording needs is imported before the program has imported PyTorch: see torch_import.
"""

from __future__ import annotations

import contextlib
import math
import os
import shlex
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from gpulab.capture.active_session import give_way_with
from gpulab.capture.job_rank import JobRank, launched_rank, rank_name, rank_of_name
from gpulab.cli.program import Program, ProgramNotFoundError, without_our_frames
from gpulab.cli.restarted_ranks import RestartedRanks
from gpulab.cli.result_folder import RUN_SUFFIX, ResultFolder, default_folder, wait_for_ranks
from gpulab.cli.torch_import import call_after_torch_import
from gpulab.errors import problem_text
from gpulab.wording import duration

if TYPE_CHECKING:
    from gpulab.capture.session import Session
    from gpulab.run import Run
    from gpulab.virtual.session import VirtualGpu

_ABOUT_STEPS = ". If the program has a loop, call gpulab.step() at the end of each iteration."
_MIN_CHILDREN_S = 2.0  # of CPU time


@dataclass(frozen=True)
class RunOptions:
    """How to record a program."""

    program: Program
    level: str = "trace"
    steps: int | None = None
    out: Path | None = None  # folder of the results
    virtual: str | None = None  # name of a virtual GPU
    overwrite: bool = False
    quiet: bool = False  # no report on the terminal


def run_command(options: RunOptions) -> None:
    """Run the program and report. Raises what ends the program: SystemExit, KeyboardInterrupt, its exception."""
    job = launched_rank()
    out = options.out.absolute() if options.out is not None else default_folder(options.program.title, job)
    recording = ProgramRecording(options, ResultFolder(out, job))
    call_after_torch_import(recording.start)
    end: BaseException | None = None
    try:
        failure = _end_of(options.program)
        end = _show_end(failure) if failure is not None else None
        recording.finish(failure)
    finally:
        recording.abandon()  # if the line above failed: a profiler that is on when Python exits crashes it
    if end is not None:
        raise end


def _end_of(program: Program) -> BaseException | None:
    """Run the program; return what it raises, as Python calls sys.excepthook while no exception is handled."""
    try:
        program.run()
    except ProgramNotFoundError:
        raise
    except BaseException as error:
        return error
    return None


class ProgramRecording:
    """The recording of a program, from its import of PyTorch to its end. No failure of it ends the program."""

    def __init__(self, options: RunOptions, results: ResultFolder) -> None:
        self._options, self._results = options, results
        self._session: Session | VirtualGpu | None = None
        self._pid = os.getpid()
        self._screen = sys.stderr  # the program may replace it
        self._was_started = False
        self._ranks = RestartedRanks(options.program, _options_of_rank(options, results))

    @property
    def _job(self) -> JobRank | None:
        return self._results.job

    def start(self) -> None:
        """Start recording. Whatever fails is shown, and the program goes on."""
        self._was_started = True
        if threading.current_thread() is not threading.main_thread():
            self._show("gpulab: not recorded: the program imported PyTorch in a thread; import it in the main thread")
            return
        self._guarded(self._start, "The program runs without being recorded.")

    def _start(self) -> None:
        restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
        self._results.create(overwrite=self._options.overwrite or restarted)
        session = self._new_session()
        session.start()
        self._session = session
        give_way_with(self._give_way)
        if self._job is None:
            self._ranks.install()

    def _give_way(self) -> None:
        """The program starts a recording of its own, which may not run beside this one."""
        session, self._session = self._session, None
        self._ranks.remove()
        if session is not None:
            session.abandon()
            self._results.remove()
            self._show("gpulab: the program records itself; the recording of `gpulab run` ends here, without a result")

    def _new_session(self) -> Session | VirtualGpu:
        options, name = self._options, self._options.program.title
        if options.virtual is not None:
            from gpulab.virtual.session import VirtualGpu

            return VirtualGpu(options.virtual, name, steps=options.steps)
        from gpulab.capture.session import Session

        return Session(name, level=options.level, steps=options.steps, spool_folder=self._results.spool_path)

    def finish(self, error: BaseException | None) -> None:
        """Stop recording, write the results and show the report; `error`: what ended the program."""
        if os.getpid() != self._pid:  # a forked process that runs to the end of the program
            return
        if not self._was_started:
            self._show(f"gpulab: nothing was recorded, because the program did not import PyTorch{_about_children()}")
        if self._session is None:
            return
        with contextlib.suppress(Exception):  # closed by the program, or of its own making; Python tries again
            sys.stdout.flush()
        self._guarded(lambda: self._finish(error), "The program itself ran as usual.")

    def abandon(self) -> None:
        """Stop recording without a result; does nothing after `finish`."""
        session, self._session = self._session, None
        if session is not None and os.getpid() == self._pid:
            self._ranks.remove()
            session.abandon()

    def _finish(self, error: BaseException | None) -> None:
        session, self._session = self._session, None
        self._ranks.remove()
        assert session is not None
        failed = error if error is not None and not _is_success(error) else None
        try:
            run = session.stop(failed)
        finally:
            session.abandon()
        children: tuple[Run, ...] = getattr(session, "child_runs", ())
        if children and self._job is None:
            self._save_children(children)
            return
        if self._ranks.world_size is not None:
            self._results.finish()  # the mark of a program alone
            self._results = replace(self._results, job=JobRank(0, self._ranks.world_size))
        if self._job is None and self._options.level != "sensors" and not (len(run.event_rows) or len(run.mark_rows)):
            self._results.remove()
            self._show(
                "gpulab: nothing to report, because PyTorch ran no operator while the profiler was on, and no step of "
                f"a loop was seen{_about_children() or _ABOUT_STEPS}"
            )
            return
        self._save(run)
        if self._job is None:
            self._report([run], ())
        elif failed is not None:
            self._show(
                f"gpulab: rank {self._job.rank} ended by {type(failed).__name__}. Its recording is "
                f"{_shown_path(self._results.run_path)}.\n"
                f"Report of all ranks, when they have ended: gpulab report {_shown_path(self._results.path)}"
            )
        elif self._job.rank == 0:
            self._report_job(self._job)

    def _save(self, run: Run) -> None:
        from gpulab import store

        store.save(run, self._results.run_path)
        self._results.finish()

    def _save_children(self, runs: tuple[Run, ...]) -> None:
        """Save and report the ranks that the program started: it only waited for them."""
        from gpulab import store

        for index, run in enumerate(runs):
            rank = index if run.rank is None else run.rank
            store.save(run, self._results.path / f"{rank_name(rank)}{RUN_SUFFIX}")
        self._results.finish()
        self._report(list(runs), ())

    def _report_job(self, job: JobRank) -> None:
        """Report on all ranks, once they have ended."""
        from gpulab.cli.job_report import recover_ranks
        from gpulab.files import load

        folder = self._results.path
        missing = set(wait_for_ranks(folder, job.world_size))
        missing -= {rank_of_name(path.stem) for path in recover_ranks(folder)}
        loaded = load(folder, progress=False)
        self._report([loaded] if not hasattr(loaded, "runs") else list(loaded.runs), tuple(sorted(missing)))

    def _report(self, runs: list[Run], missing: tuple[int, ...]) -> None:
        from gpulab.cli.job_report import PAGE, job_report

        report = job_report(runs, missing)
        report.save(self._results.path)
        if not self._options.quiet:
            text = report.text(self._results.path, folded=False)
            self._show(f"\n{text}")
            if report.has_fix_to_try and self._job is None:
                recording = shlex.quote(_shown_path(self._results.run_path))
                program = self._options.program.command
                self._show(f"\ngpulab: measure the fixes: gpulab fix --recording {recording} {program}")
            if len(text.splitlines()) > _lines_of(self._screen):  # its beginning has scrolled away
                self._show(f"\ngpulab: {report.headline}")
        self._show(f"gpulab: recording and page with all details: {_shown_path(self._results.path / PAGE)}")

    def _guarded(self, function: Callable[[], None], consequence: str) -> None:
        """Call a function of gpulab; show why it failed. What a signal handler of the program raises passes on."""
        try:
            function()
        except Exception as problem:
            from gpulab.capture.protection.guard import is_from_outside

            if is_from_outside(problem):
                raise
            self._show(f"gpulab: {problem_text(problem)}\n{consequence}")

    def _show(self, text: str) -> None:
        """Write to the terminal: to stderr, as stdout belongs to the program."""
        with contextlib.suppress(OSError, ValueError):  # it is closed
            self._screen.write(f"{text}\n")
            self._screen.flush()


def _options_of_rank(options: RunOptions, results: ResultFolder) -> list[str]:
    """Return the options with which a further rank of this program is recorded in the same folder."""
    steps = [] if options.steps is None else ["--steps", str(options.steps)]
    virtual = [] if options.virtual is None else ["--virtual", options.virtual]
    overwrite = ["--overwrite"] if options.overwrite else []
    return ["--level", options.level, *steps, *virtual, *overwrite, "--out", str(results.path)]


def _about_children() -> str:
    """Return what to do if the work is done by processes that the program started and waited for; "" if it is not."""
    times = os.times()
    seconds = times.children_user + times.children_system
    if seconds < _MIN_CHILDREN_S or seconds < times.user + times.system:
        return ""
    return (
        f". Processes that it started used {duration(1e9 * seconds)} of CPU time and were not recorded. Put gpulab "
        "after the launcher that starts them: torchrun ... -m gpulab run train.py, accelerate launch ... -m gpulab run "
        "train.py"
    )


def _is_success(error: BaseException) -> bool:
    return isinstance(error, SystemExit) and error.code in (None, 0)


def _show_end(error: BaseException) -> BaseException:
    """Show what ended the program as `python` does, without frames of gpulab, and keep Python from showing it again.

    Return what ends this process: the same, or the SystemExit of the program's own sys.excepthook.
    """
    if isinstance(error, SystemExit):
        return error
    link: BaseException | None = error
    chain: list[BaseException] = []
    while link is not None and not any(link is earlier for earlier in chain):
        chain.append(link)
        # Not by assignment, which the class of the exception may refuse, as a frozen dataclass does.
        BaseException.with_traceback(link, without_our_frames(link.__traceback__))
        link = link.__cause__ or link.__context__
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
    if sys.version_info >= (3, 12):
        sys.last_exc = error
    try:
        sys.excepthook(*_parts(error))
    except SystemExit as end:
        return end
    except BaseException as problem:
        _show_failed_hook(problem, error)
    sys.excepthook = _show_nothing
    return error


def _show_failed_hook(problem: BaseException, error: BaseException) -> None:
    """Show both as Python does if sys.excepthook itself fails."""
    problem = BaseException.with_traceback(problem, without_our_frames(problem.__traceback__))
    for title, failure in (("Error in sys.excepthook", problem), ("\nOriginal exception was", error)):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # no stderr, or a closed one
            sys.stderr.write(f"{title}:\n")
            sys.__excepthook__(*_parts(failure))


def _parts(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    return type(error), error, error.__traceback__


def _show_nothing(*_: object) -> None:
    """Show no traceback: it has been shown."""


def _shown_path(path: Path) -> str:
    """Return a path relative to the current folder if it is inside."""
    with contextlib.suppress(ValueError, OSError):
        return str(path.relative_to(Path.cwd()))
    return str(path)


def _lines_of(screen: TextIO) -> float:
    """Return how many lines a terminal shows; infinite for a file or a pipe, of which nothing scrolls away."""
    try:
        return os.get_terminal_size(screen.fileno()).lines or math.inf  # 0: unknown
    except (OSError, ValueError):
        return math.inf
