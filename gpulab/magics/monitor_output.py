"""%gpumonitor: the monitor's panel in a notebook, and the end of it."""

from __future__ import annotations

import contextvars
import time

from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.cell_output import bundle, panel
from gpulab.magics.display_slot import Bundle, Place
from gpulab.views.live.monitor import Monitor, current, monitor
from gpulab.views.live.tiles import Glance
from gpulab.views.report.report import Report


class MonitorOutput:
    """One output of a cell in which a monitor is shown; it goes on after that cell."""

    every_s = 0.2  # the panel of a monitor that reads more often than that is not drawn more often

    def __init__(self, shell: InteractiveShell, watched: Monitor) -> None:
        self._place = Place(shell, outlives=True)
        self._panel = panel(shell, self._place, stops="the monitor", on_stop=watched.stop)
        self._context = contextvars.copy_context()  # with it, ipykernel knows whose output it is
        self._next_s, self._phase = 0.0, ""
        self.visible = self._panel is not None
        if self._panel is not None:
            self._panel.open(watched.glance)

    def draw(self, glance: Glance) -> None:
        """Show this now; called in any thread."""
        now_s = time.monotonic()
        due = now_s >= self._next_s or glance.phase != self._phase  # that it pauses is told before it does
        if self._panel is not None and due:
            self._next_s, self._phase = now_s + self.every_s, glance.phase
            self._context.copy().run(self._panel.draw, glance)

    def end(self, shown: Report | str) -> None:
        """Put this in the panel's place."""
        if self._panel is not None:
            self._context.copy().run(self._end, {"text/plain": shown} if isinstance(shown, str) else bundle(shown))

    def _end(self, content: Bundle) -> None:
        shown, self._panel = self._panel, None
        if shown is not None:
            shown.freeze()
            self._place.end(content)
            shown.close()


def start(shell: InteractiveShell, name: str | None, every_s: float, threshold_frac: float) -> str:
    """Begin to monitor and show it here; where that cannot be, or there is one already, words that say so."""
    running = current()
    watched = running or monitor(name, every=every_s, threshold=threshold_frac)
    visible = show(shell, watched)
    if running is not None:
        where = ", and is shown here as well" if visible else ""
        return f"gpulab: {running.name!r} is monitored already{where}. %gpumonitor --stop ends it"
    return "" if visible else f"gpulab: {watched.name!r} is monitored. %gpumonitor --stop ends it and reports"


def stop() -> Report | None:
    """End the monitor that runs, and give its report; None where none runs."""
    running = current()
    if running is None:
        return None
    running.stop(quietly=True)
    return running.report()


def show(shell: InteractiveShell, watched: Monitor) -> bool:
    """Show a running monitor in the output of this cell; whether that could be done."""
    output = MonitorOutput(shell, watched)
    if output.visible:
        watched.show(output)
    return output.visible
