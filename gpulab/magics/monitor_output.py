"""Live panel and report of %gpumonitor in a notebook."""

from __future__ import annotations

import contextvars
import time
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.cell_output import mime_bundle, new_panel
from gpulab.magics.display_slot import DisplaySlot, MimeBundle
from gpulab.views.live.monitor import Monitor, current, monitor
from gpulab.views.live.tiles import PanelContent
from gpulab.views.report.report import Report


class MonitorOutput:
    """Output of a cell that shows a monitor; it stays live after the cell ends."""

    every_s = 0.2  # shortest time between two redraws, however often the monitor reads

    def __init__(self, shell: InteractiveShell, monitor: Monitor) -> None:
        self._slot = DisplaySlot(shell, outlives=True)
        self._panel = new_panel(shell, self._slot, stops="the monitor", on_stop=monitor.stop)
        self._context = contextvars.copy_context()  # tells ipykernel whose output this is
        self._next_s, self._phase = 0.0, ""
        self.is_visible = self._panel is not None
        if self._panel is not None:
            self._panel.open(monitor.content)

    def draw(self, glance: PanelContent) -> None:
        """Show this snapshot now; called from any thread."""
        now_s = time.monotonic()
        due = now_s >= self._next_s or glance.phase != self._phase  # a pause is shown before it begins
        if self._panel is not None and due:
            self._next_s, self._phase = now_s + self.every_s, glance.phase
            self._context.copy().run(self._panel.draw, glance)

    def end(self, report: Report | str) -> None:
        """Replace the panel with the report or a message."""
        if self._panel is not None:
            content = {"text/plain": report} if isinstance(report, str) else mime_bundle(report)
            self._context.copy().run(self._end, content)

    def _end(self, content: MimeBundle) -> None:
        live_panel, self._panel = self._panel, None
        if live_panel is not None:
            live_panel.freeze()
            self._slot.end(content)
            live_panel.close()


def start(shell: InteractiveShell, name: str | None, every_s: float, threshold_frac: float, **options: Any) -> str:
    """Start a monitor with these options of `gpulab.monitor`, and show it here.

    Returns a message if it runs already or cannot be shown, else "".
    """
    running = current()
    active = running or monitor(name, every=every_s, threshold=threshold_frac, **options)
    visible = show(shell, active)
    if running is not None:
        suffix = "; it is now shown here, too" if visible else ""
        return f"gpulab: the monitor {running.name!r} is already running{suffix}. %gpumonitor --stop stops it"
    return "" if visible else f"gpulab: the monitor {active.name!r} is running. %gpumonitor --stop stops it and reports"


def stop() -> Report | None:
    """Stop the running monitor and return its report; None if there is none."""
    running = current()
    if running is None:
        return None
    running.stop(quietly=True)
    return running.report()


def show(shell: InteractiveShell, watched: Monitor) -> bool:
    """Show a running monitor in the output of this cell; return whether this is possible."""
    output = MonitorOutput(shell, watched)
    if output.is_visible:
        watched.show(output)
    return output.is_visible
