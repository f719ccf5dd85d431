"""The live panel without a cell: it watches in the background until it is stopped, and then there is a run."""

from __future__ import annotations

import contextvars
import sys
import threading
from types import TracebackType
from typing import Any, Protocol

from gpulab.capture.live.monitoring import Monitoring
from gpulab.capture.live.snapshot import Live
from gpulab.errors import CaptureError
from gpulab.run import Run
from gpulab.views.live.html_panel import markup
from gpulab.views.live.panel_content import Glances
from gpulab.views.live.tiles import Glance, clock
from gpulab.views.report.report import Report, report

EVERY_S, LEAST_S, MOST_S = 0.5, 0.1, 60.0
STOP = "to stop: %gpumonitor --stop"


class Viewer(Protocol):
    """A place where the monitor is shown."""

    def draw(self, glance: Glance) -> None:
        """Show this now; called in any thread."""

    def end(self, shown: Report | str) -> None:
        """Show this for good."""


class Monitor:
    """Watches GPU, CPU, memory, workers and steps in the background; see `monitor`."""

    def __init__(self, name: str | None, every_s: float, threshold_frac: float) -> None:
        self._recording = Monitoring(name, every_s=every_s, on_tick=self._tick)
        self.name = self._recording.name
        self._glances = Glances(self.name, threshold_frac=threshold_frac, stop=STOP)
        self._viewers: list[Viewer] = []
        self._report: Report | None = None

    @property
    def run(self) -> Run | None:
        """What was recorded, once it was stopped."""
        return self._recording.run

    @property
    def glance(self) -> Glance:
        """What there is to show at this moment."""
        return self._glances.latest()

    def start(self) -> None:
        """Begin to watch. Raises CaptureError while another monitor is on, or a cell is recorded."""
        global _current
        self._recording.start()
        _current = self

    def stop(self, *, quietly: bool = False) -> Run:
        """End, and give the run, which is kept in `gpulab.runs`; its report takes the place of the panel.

        quietly: the place of the panel only says that it ended. A second time gives the same run.
        """
        ended, run = self.run is not None, self._end()
        if not ended:
            said = f"gpulab: the monitor {self.name!r} was stopped after {clock(run.span_ns / 1e9)}"
            self._say(f"{said}; its report: %gpureport {self.name}" if quietly else self.report())
        return run

    def abandon(self) -> None:
        """End without a run."""
        self._recording.abandon()
        _forget(self)
        self._say(f"gpulab: the monitor {self.name!r} was given up")

    def report(self) -> Report:
        """The report of its run, once it was stopped."""
        if self._report is None:
            self._report = report(self._end())
        return self._report

    def show(self, viewer: Viewer) -> None:
        """From now on, show it there as well."""
        self._viewers.append(viewer)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        self._say(self.report())

    def __repr__(self) -> str:
        if self.run is not None:
            took = clock(self.run.span_ns / 1e9)
            return f"gpulab monitor {self.name!r}, stopped after {took}: gpulab.report(gpulab.runs[{self.name!r}])"
        return self.glance.sentence().replace("gpulab, run", "gpulab monitor", 1)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if self.run is not None:
            return self.report()._repr_mimebundle_()
        text = {"text/plain": repr(self)}
        if "ipykernel" not in sys.modules:  # a terminal
            return text
        try:
            widget = WidgetViewer(self)
        except ImportError:  # without anywidget: as it is now
            return {**text, "text/html": markup(self.glance)}
        self.show(widget)
        return {**widget.bundle(), **text}

    def _end(self, error: BaseException | None = None) -> Run:
        run = self._recording.stop(error)
        _forget(self)
        return run

    def _say(self, shown: Report | str) -> None:
        viewers, self._viewers = self._viewers, []
        for viewer in viewers:
            viewer.end(shown)

    def _tick(self, live: Live) -> None:
        glance = self._glances.of(live)
        for viewer in tuple(self._viewers):
            viewer.draw(glance)


class WidgetViewer:
    """The panel as a widget by itself, where the magics are not loaded: it cannot be replaced by the report."""

    def __init__(self, monitor: Monitor) -> None:
        from gpulab.views.front_end import reach_during_a_cell
        from gpulab.views.live.widget import LivePanel

        self._monitor = monitor
        self._context = contextvars.copy_context()  # tells ipykernel whose output this is
        self._widget: Any = LivePanel(now=monitor.glance.data(), stops="the monitor", stop="button")
        self._widget.on_msg(self._told)
        self._lock = threading.Lock()
        reach_during_a_cell(self._widget.comm)

    def bundle(self) -> dict[str, Any]:
        """What shows it."""
        data = self._widget._repr_mimebundle_()
        return dict(data[0] if isinstance(data, tuple) else data)

    def draw(self, glance: Glance) -> None:
        """Show this now."""
        self._context.copy().run(setattr, self._widget, "now", glance.data())

    def end(self, shown: Report | str) -> None:
        """No button does anything from here on, and the panel says that it is over."""
        glance = {**self._monitor.glance.data(), "phase": "stopped", "alert": "", "alert_said": ""}
        glance["line"] = f"its report: gpulab.report(gpulab.runs[{self._monitor.name!r}])"
        with self._lock, self._widget.hold_sync():
            self._widget.now, self._widget.stop = glance, "done"

    def _told(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("kind") == "stop" and self._widget.stop == "button":
            self._widget.stop = "stopping"
            self._monitor.stop()


_current: Monitor | None = None


def current() -> Monitor | None:
    """The monitor that runs, if one does."""
    return _current


def _forget(monitor: Monitor) -> None:
    global _current
    if _current is monitor:
        _current = None


def monitor(name: str | None = None, *, every: float = EVERY_S, threshold: float = 0.5) -> Monitor:
    """Watch GPU, CPU, memory, DataLoader workers and steps in the background, across cells, until it is stopped.

    End a cell with it, or display it, to see the live panel; print it for one line. `.stop()`, its Stop button,
    %gpumonitor --stop or the end of a `with` block end it: then its run is in `gpulab.runs`. It gives way while a cell
    is profiled. every: seconds between two readings. threshold: a GPU that stays under this share of its time for 10 s
    while steps are made is told. Raises CaptureError for a second monitor, and for values that make no sense.
    """
    if not LEAST_S <= every <= MOST_S:
        raise CaptureError(
            f"Sensors cannot be read every {every:g} s.",
            why="the driver's own period is a fraction of a second, and a monitor must not cost what it measures",
            fix=f"take between {LEAST_S:g} and {MOST_S:g} seconds; {EVERY_S:g} if left out",
        )
    if not 0 <= threshold <= 1:
        raise CaptureError(
            f"A GPU cannot be busy {threshold:g} of its time.",
            why="threshold is a share between 0 and 1",
            fix="write 0.5 for 50 %; 0 never tells",
        )
    made = Monitor(name, every, threshold)
    made.start()
    return made
