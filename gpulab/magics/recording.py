"""Recording of one profiled cell, from start to report. If anything fails here, the user's cell still runs."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from gpulab import questions, rules, store
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.run_registry import runs
from gpulab.capture.session import Session
from gpulab.errors import CaptureError, GpulabError, problem_text
from gpulab.magics.arguments import ProfileOptions
from gpulab.magics.cell_output import CellOutput, mime_bundle
from gpulab.magics.display_slot import MimeBundle
from gpulab.magics.interrupt import interrupt_soon
from gpulab.questions.run_names import find_run
from gpulab.run import Run
from gpulab.user_data.run_history import remember_run
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.report.earlier_runs import typical_step_ns
from gpulab.views.report.report import Report, report
from gpulab.views.sheet.sheet import Line
from gpulab.views.sheet.view import View
from gpulab.wording import shell_word

if TYPE_CHECKING:
    from gpulab.virtual.session import VirtualGpu


class CellRecording:
    """A session and its slot in the output of the cell."""

    def __init__(self, shell: InteractiveShell, request: ProfileOptions) -> None:
        self._shell = shell
        self._request = request
        self._session: Session | VirtualGpu | None = None
        self._output: CellOutput | None = None
        self._before: Run | None = None  # the run to compare with

    @property
    def name(self) -> str | None:
        """The name of the run; None if the cell is not recorded."""
        return self._session.name if self._session is not None else None

    def start(self) -> None:
        """Show the live panel and start recording. Problems are shown; the cell runs in any case."""
        try:
            if threading.current_thread() is not threading.main_thread():
                raise CaptureError(
                    "This cell is not recorded.",
                    why="it runs outside the kernel's main thread (in a subshell)",
                    fix="run it as an ordinary notebook cell",
                )
            if self._request.compare is not None:
                self._before = find_run(self._request.compare)  # now: the new run may take its name
            session = self._new_session()
            self._session = session  # first, so that an interrupt below can discard it
            self._output = CellOutput(self._shell, session.name, live=self._request.live)
            self._output.open()
            session.start()
        except KeyboardInterrupt:
            self._discard_session()
            self._show(_text_bundle("gpulab: interrupted while the recording started. This cell was not recorded."))
            interrupt_soon()  # the interrupt was meant for the cell, and an event before the cell cannot stop the cell
        except Exception as problem:
            self._discard_session()
            self._show(_text_bundle(f"gpulab: {problem_text(problem)}\nThe cell runs without being recorded."))

    def _new_session(self) -> Session | VirtualGpu:
        options = self._request
        if options.virtual is not None:
            from gpulab.virtual.session import VirtualGpu  # slow to import, and few cells ask for it

            return VirtualGpu(options.virtual, options.name, steps=options.steps, on_tick=self._tick)
        return Session(options.name, level=options.level or "trace", steps=options.steps, on_tick=self._tick)

    def finish(self, error: BaseException | None) -> None:
        """Stop recording and replace the panel with the report; `error`: the exception that ended the cell, if any."""
        session = self._session
        if session is None:
            return
        try:
            try:
                if self._output is not None:
                    self._output.processing()
                run = session.stop(error)
                self._session = None
            finally:
                self._discard_session()  # whatever stopped it, e.g. SystemExit of a signal handler
        except KeyboardInterrupt:
            self._show(_text_bundle("gpulab: interrupted before the recording was read; there is no run"))
        except Exception as problem:
            self._show(_text_bundle(f"gpulab: {problem_text(problem)}\nThe cell itself ran as usual."))
        else:
            self._show(self._report(run))

    def abandon(self) -> None:
        """Stop without a report: the end of the cell was not announced, or gpulab is being unloaded."""
        if self._session is not None:
            name = self._session.name
            self._discard_session()
            self._show(_text_bundle(f"gpulab: the recording of {name!r} was discarded"))

    def _discard_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.abandon()

    def _report(self, run: Run) -> MimeBundle:
        hint = f"The run is available: %gpureport {shell_word(run.name)}"
        try:
            if self._request.out:
                self._shell.user_ns[self._request.out] = run
            view = diagnosis_report(run)
            remember_run(run, typical_step_ns(view.diagnosis))
            if self._request.save is not None:
                self._save(run, view, self._request.save)
            return mime_bundle(view if self._before is None else _comparison_or_report(self._before, view))
        except KeyboardInterrupt:
            return _text_bundle(f"gpulab: interrupted while the report was created. {hint}")
        except Exception as problem:
            return _text_bundle(f"gpulab: {problem_text(problem)}\n{hint}")

    def _save(self, run: Run, view: Report, path: Path) -> None:
        if path.suffix == ".gpulab":
            store.save(run, path)
        else:
            view.save(path)

    def _tick(self, live: LiveSnapshot) -> None:
        if self._output is not None:
            self._output.tick(live)

    def _show(self, data: MimeBundle) -> None:
        output, self._output = self._output or CellOutput(self._shell, "", live=False), None
        output.finish(data)


def diagnosis_report(run: Run, *, everything: bool = False) -> Report:
    """The report of a run; if it started ranks, that of the ranks. `everything`: as for `gpulab.report`."""
    ranks = runs.with_ranks(run.name) if runs.holds(run) else (run,)
    return report(rules.diagnose(ranks[0]) if len(ranks) == 1 else ranks, everything=everything)


def _comparison_or_report(before: Run, after: Report) -> View:
    """The comparison of two runs; if they cannot be compared, the report of the second one, with the reason."""
    run = after.diagnosis.run
    try:
        compared = questions.compare(before, run)
    except GpulabError as problem:
        reason = Line(f"gpulab: {problem_text(problem)}")
        return replace(after, sheet=replace(after.sheet, blocks=(reason, *after.sheet.blocks)))
    return comparison_view(compared, (Line(f"Report of this run: %gpureport {shell_word(run.name)}", soft=True),))


def _text_bundle(text: str) -> MimeBundle:
    return {"text/plain": text}
