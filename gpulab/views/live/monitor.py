"""The background monitor: shows the live panel across cells and, when it is stopped, leaves a run."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Protocol

from gpulab.capture.live.monitoring import MonitorSession
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.errors import CaptureError
from gpulab.run import Run
from gpulab.run_facts import ALERTS
from gpulab.user_data.run_history import usual_step_s
from gpulab.views.live.html_panel import panel_html
from gpulab.views.live.loop_alerts import LoopAlerts
from gpulab.views.live.panel_content import PanelContentBuilder
from gpulab.views.live.tiles import PanelContent
from gpulab.views.report.report import Report, report
from gpulab.watch.alerts import Alert, parse_alert
from gpulab.watch.alerts.delivery import Delivery, Receiver, log_receiver
from gpulab.watch.alerts.webhook import Webhook
from gpulab.watch.background import BackgroundWatch
from gpulab.wording import clock_time, number, shell_word

PERIOD_S, MIN_PERIOD_S, MAX_PERIOD_S = 0.5, 0.1, 60.0
MAX_ALERTS = 200  # lines in the run
STOP_HINT = "- stop: %gpumonitor --stop"


class Viewer(Protocol):
    """A display of the monitor."""

    def draw(self, glance: PanelContent) -> None:
        """Show the current content; may be called from any thread."""

    def end(self, result: Report | str) -> None:
        """Replace the panel by the report or by a last message."""


class Monitor:
    """Monitors GPU, CPU, memory, workers and steps in the background; see `monitor`."""

    def __init__(
        self,
        name: str | None,
        every_s: float,
        threshold_frac: float,
        *,
        alerts: LoopAlerts | None = None,
        watch: BackgroundWatch | None = None,
    ) -> None:
        self._alerts, self._watch = alerts, watch
        self._recording = MonitorSession(name, every_s=every_s, on_tick=self._tick)
        self.name = self._recording.name
        self._glances = PanelContentBuilder(self.name, threshold_frac=threshold_frac, stop=STOP_HINT)
        self._viewers: list[Viewer] = []
        self._report: Report | None = None

    @property
    def run(self) -> Run | None:
        """The recorded run, or None while the monitor is running."""
        return self._recording.run

    @property
    def content(self) -> PanelContent:
        """The current content of the panel."""
        return self._glances.latest()

    def start(self) -> None:
        """Start monitoring. Raises CaptureError if another monitor is running, or if a cell is being recorded."""
        global _current
        self._recording.start()
        if self._watch is not None:
            self._watch.start()
        _current = self

    def stop(self, *, quietly: bool = False) -> Run:
        """Stop monitoring and return the run, which is also added to `gpulab.runs`; the report replaces the panel.

        quietly: a message replaces the panel instead of the report. A second call returns the same run.
        """
        already_stopped, run = self.run is not None, self._end()
        if not already_stopped:
            message = f"gpulab: monitor {self.name!r} stopped after {clock_time(run.span_ns / 1e9)}"
            self._end_viewers(f"{message}. Report: %gpureport {shell_word(self.name)}" if quietly else self.report())
        return run

    def abandon(self) -> None:
        """Stop monitoring and discard the recording."""
        self._recording.abandon()
        _forget(self)
        self._end_watch()
        self._end_viewers(f"gpulab: monitor {self.name!r} stopped; its recording was discarded")

    def report(self) -> Report:
        """Return the report of the run; stops the monitor if it is still running."""
        if self._report is None:
            self._report = report(self._end())
        return self._report

    def show(self, viewer: Viewer) -> None:
        """Add a viewer, which is updated from now on."""
        self._viewers.append(viewer)

    def __enter__(self) -> Monitor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end(error)
        self._end_viewers(self.report())

    def __repr__(self) -> str:
        if self.run is not None:
            elapsed = clock_time(self.run.span_ns / 1e9)
            return f"gpulab monitor {self.name!r}, stopped after {elapsed}: gpulab.report(gpulab.runs[{self.name!r}])"
        return self.content.sentence().replace("gpulab, run", "gpulab monitor", 1)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, Any]:
        if self.run is not None:
            return self.report()._repr_mimebundle_()
        text = {"text/plain": repr(self)}
        if "ipykernel" not in sys.modules:  # a terminal
            return text
        try:
            widget = WidgetViewer(self)
        except ImportError:  # without anywidget: a static picture of the current state
            return {**text, "text/html": panel_html(self.content)}
        self.show(widget)
        return {**widget.bundle(), **text}

    def _end(self, error: BaseException | None = None) -> Run:
        if self._alerts is not None and self._alerts.log:
            self._recording.add_fact(ALERTS, "\n".join(self._alerts.log[-MAX_ALERTS:]))
        try:
            run = self._recording.stop(error)
        except BaseException:  # also of a signal handler, before `stop` began to remove hooks and threads
            self._recording.abandon()
            _forget(self)
            self._end_watch()
            raise
        _forget(self)
        self._end_watch()
        return run

    def _end_watch(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        if self._alerts is not None:
            self._alerts.close()

    def _end_viewers(self, result: Report | str) -> None:
        viewers, self._viewers = self._viewers, []
        for viewer in viewers:
            viewer.end(result)

    def _tick(self, live: LiveSnapshot) -> None:
        glance = self._glances.build(live, "" if self._alerts is None else self._alerts.update(live))
        for viewer in tuple(self._viewers):
            viewer.draw(glance)


class WidgetViewer:
    """The panel as a widget of its own, used when the magics are not loaded: the report cannot replace it."""

    def __init__(self, monitor: Monitor) -> None:
        from gpulab.views.front_end import allow_messages_while_busy
        from gpulab.views.live.widget import LivePanel

        self._monitor = monitor
        self._context = contextvars.copy_context()  # ipykernel finds the cell of an output by it
        self._widget: Any = LivePanel(now=monitor.content.data(), stops="the monitor", stop="button")
        self._widget.on_msg(self._receive)
        self._lock = threading.Lock()
        allow_messages_while_busy(self._widget.comm)

    def bundle(self) -> dict[str, Any]:
        """Return the MIME bundle that displays the widget."""
        data = self._widget._repr_mimebundle_()
        return dict(data[0] if isinstance(data, tuple) else data)

    def draw(self, glance: PanelContent) -> None:
        """Send the current content to the widget."""
        self._context.copy().run(setattr, self._widget, "now", glance.data())

    def end(self, result: Report | str) -> None:
        """Remove the Stop button and show that the monitor has stopped."""
        glance = {**self._monitor.content.data(), "phase": "stopped", "alert": "", "alert_announcement": ""}
        glance["line"] = f"report: gpulab.report(gpulab.runs[{self._monitor.name!r}])"
        with self._lock, self._widget.hold_sync():
            self._widget.now, self._widget.stop = glance, "done"

    def _receive(self, _: object, content: dict[str, Any], __: object) -> None:
        if content.get("kind") == "stop" and self._widget.stop == "button":
            self._widget.stop = "stopping"
            self._monitor.stop()


_current: Monitor | None = None


def current() -> Monitor | None:
    """Return the running monitor, or None."""
    return _current


def _forget(monitor: Monitor) -> None:
    global _current
    if _current is monitor:
        _current = None


def monitor(
    name: str | None = None,
    *,
    every: float = PERIOD_S,
    threshold: float = 0.5,
    alerts: Sequence[str | Alert] = (),
    on_alert: Callable[[str], None] | None = None,
    webhook: str | None = None,
    keep: bool = False,
) -> Monitor:
    """Monitor GPU, CPU, memory, DataLoader workers and steps in the background, across cells, until it is stopped.

    Make the monitor the last expression of a cell, or display it, to see the live panel; print it for one line.
    `.stop()`, the Stop button, %gpumonitor --stop or the end of a `with` block stop it and add its run to
    `gpulab.runs`. It pauses while a cell is profiled. every: seconds between two readings. threshold: the panel shows
    an alert if a GPU stays below this utilisation (a fraction) for 10 s while steps are running. alerts: more of them,
    in words ("waiting for data > 40 % for 1 min") or as gpulab.watch.alerts.Alert; each is shown in the panel, written
    to the log `gpulab.alerts`, and passed to `on_alert` and to the webhook. keep: also record all GPUs in the history,
    as `gpulab watch` does. Raises CaptureError for a second monitor, and for invalid values.
    """
    if not MIN_PERIOD_S <= every <= MAX_PERIOD_S:
        raise CaptureError(
            f"Sensors cannot be read every {every} s.",
            why="the driver updates its sensors only a few times a second, and reading them must not slow the loop",
            fix=f"pass {number(MIN_PERIOD_S)} to {number(MAX_PERIOD_S)} seconds; the default is {number(PERIOD_S)}",
        )
    if not 0 <= threshold <= 1:
        raise CaptureError(
            f"The alert threshold {threshold} is not a fraction.",
            why="the threshold is a GPU utilisation between 0 and 1",
            fix="pass 0.5 for 50 %; 0 turns the alert off",
        )
    if not alerts and (webhook is not None or on_alert is not None):
        raise CaptureError(
            "There is no alert to deliver.",
            why="a receiver of alerts was given without any alert",
            fix='add one: alerts=["waiting for data > 40 %"], or --alert "waiting for data > 40 %"',
        )
    new_monitor = Monitor(
        name,
        every,
        threshold,
        alerts=_loop_alerts(name, alerts, on_alert, webhook, every) if alerts else None,
        watch=BackgroundWatch() if keep else None,
    )
    new_monitor.start()
    return new_monitor


def _loop_alerts(
    name: str | None,
    alerts: Sequence[str | Alert],
    on_alert: Callable[[str], None] | None,
    webhook: str | None,
    every_s: float,
) -> LoopAlerts:
    """Return the checks of these alerts, with their receivers."""
    receivers: list[Receiver] = [log_receiver]
    if on_alert is not None:
        receivers.append(on_alert)
    if webhook is not None:
        receivers.append(Webhook(webhook))
    parsed = [parse_alert(alert) if isinstance(alert, str) else alert for alert in alerts]
    earlier_step_s = None if name is None else usual_step_s(name)
    return LoopAlerts(parsed, Delivery(receivers), period_s=every_s, earlier_step_s=earlier_step_s)
