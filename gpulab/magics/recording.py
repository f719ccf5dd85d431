"""One profiled cell from its start to its report; whatever fails here, the user's cell goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING

from IPython.core.interactiveshell import InteractiveShell

from gpulab import rules, store
from gpulab.capture.live.snapshot import Live
from gpulab.capture.session import Session
from gpulab.errors import CaptureError, problem_text
from gpulab.magics.arguments import Request
from gpulab.magics.cell_output import Shown, bundle
from gpulab.magics.display_slot import Bundle
from gpulab.magics.interrupt import interrupt_soon
from gpulab.run import Run
from gpulab.views.report.report import Report, report

if TYPE_CHECKING:
    from gpulab.virtual.session import VirtualGpu


class Recording:
    """A session and the place in the cell's output that belongs to it."""

    def __init__(self, shell: InteractiveShell, request: Request) -> None:
        self._shell = shell
        self._request = request
        self._session: Session | VirtualGpu | None = None
        self._shown: Shown | None = None

    def start(self) -> None:
        """Show the live panel and begin to record. Problems are shown; the cell runs in any case."""
        try:
            if threading.current_thread() is not threading.main_thread():
                raise CaptureError(
                    "This cell is not recorded.",
                    why="it does not run in the main thread of the kernel (a subshell runs it)",
                    fix="run it as an ordinary notebook cell",
                )
            session = self._session_asked()
            self._session = session  # at once, so that what an interrupt leaves can be given up
            self._shown = Shown(self._shell, session.name, live=self._request.live)
            self._shown.open()
            session.start()
        except KeyboardInterrupt:
            self._drop()
            self._show(_plain("gpulab: interrupted before the cell began"))
            interrupt_soon()  # it was meant for the cell, and an event before the cell cannot hold the cell back
        except Exception as problem:
            self._drop()
            self._show(_plain(f"gpulab: {problem_text(problem)}\nThe cell runs without being recorded."))

    def _session_asked(self) -> Session | VirtualGpu:
        asked = self._request
        if asked.virtual is not None:
            from gpulab.virtual.session import VirtualGpu  # slow to import, and few cells ask for it

            return VirtualGpu(asked.virtual, asked.name, steps=asked.steps, on_tick=self._tick)
        return Session(asked.name, level=asked.level or "trace", steps=asked.steps, on_tick=self._tick)

    def finish(self, error: BaseException | None) -> None:
        """Stop, and put the report where the panel was; `error` is what ended the cell, if anything did."""
        session = self._session
        if session is None:
            return
        if self._shown is not None:
            self._shown.processing()
        self._session = None
        try:
            run = session.stop(error)
        except KeyboardInterrupt:
            self._show(_plain("gpulab: interrupted before the recording was read; there is no run"))
        except Exception as problem:
            self._show(_plain(f"gpulab: {problem_text(problem)}\nThe cell itself ran as it would have without gpulab."))
        else:
            self._show(self._report(run))

    def abandon(self) -> None:
        """Stop without a report: the end of the cell was never announced, or gpulab is being unloaded."""
        if self._session is not None:
            name = self._session.name
            self._drop()
            self._show(_plain(f"gpulab: the recording of {name!r} was given up"))

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.abandon()

    def _report(self, run: Run) -> Bundle:
        again = f"The run is kept: %gpureport {run.name}"
        try:
            if self._request.out:
                self._shell.user_ns[self._request.out] = run
            view = reported(run)
            if self._request.save is not None:
                self._save(run, view, self._request.save)
            return bundle(view)
        except KeyboardInterrupt:
            return _plain(f"gpulab: interrupted while the report was made. {again}")
        except Exception as problem:
            return _plain(f"gpulab: {problem_text(problem)}\n{again}")

    def _save(self, run: Run, view: Report, path: Path) -> None:
        if path.suffix == ".gpulab":
            store.save(run, path)
        else:
            view.save(path)

    def _tick(self, live: Live) -> None:
        if self._shown is not None:
            self._shown.tick(live)

    def _show(self, data: Bundle) -> None:
        shown, self._shown = self._shown or Shown(self._shell, "", live=False), None
        shown.finish(data)


def reported(run: Run) -> Report:
    """The report of a run."""
    return report(rules.diagnose(run))


def _plain(text: str) -> Bundle:
    return {"text/plain": text}
