"""The place in a cell's output that is gpulab's: the live panel while the cell runs, the report after it."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import Protocol

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from gpulab.capture.live.snapshot import Live
from gpulab.magics.display_slot import Bundle, Place
from gpulab.magics.panels import HtmlPanel, WidgetPanel
from gpulab.views import front_end as comm
from gpulab.views.front_end import NOTHING, WIDGET
from gpulab.views.live.panel_content import Glances
from gpulab.views.live.tiles import Glance


class Panel(Protocol):
    """Something live in the output, redrawn from the sampler's thread."""

    every_s: float  # the shortest time between two drawings

    def open(self, glance: Glance) -> None:
        """Show the first picture."""

    def draw(self, glance: Glance) -> None:
        """Show this now."""

    def freeze(self) -> None:
        """The cell has ended: no button does anything from here on."""

    def close(self) -> None:
        """Leave nothing behind, in the kernel or in the front end."""


class Shown:
    """One output, from the panel to the report. Where nothing live can be shown, the report is an ordinary output."""

    def __init__(self, shell: InteractiveShell, name: str, *, live: bool) -> None:
        self._shell = shell
        self._glances = Glances(name)
        # Drawing happens in another thread; with the cell's context, ipykernel knows whose output it is.
        self._context = contextvars.copy_context()
        self._place = Place(shell)
        self._panel = panel(shell, self._place) if live else None
        self._frozen = False
        self._next_s = 0.0

    def open(self) -> None:
        """Show the panel, empty as yet."""
        if self._panel is not None:
            self._panel.open(self._glances.starting())

    def tick(self, live: Live) -> None:
        """Show the state of the session; called from the sampler's thread as often as it likes."""
        now_s = time.monotonic()
        if self._panel is None or self._frozen or now_s < self._next_s:
            return
        self._next_s = now_s + self._panel.every_s
        self._context.run(self._panel.draw, self._glances.of(live))

    def processing(self) -> None:
        """The cell has ended and its recording is being read, which holds the interpreter: say so first."""
        if self._panel is not None:
            self._panel.freeze()
            self._frozen = True
            self._panel.draw(self._glances.processing())

    def finish(self, data: Bundle) -> None:
        """Put the report in the panel's place."""
        live, self._panel = self._panel, None
        if live is None:
            # Shown once and never again, it needs no name, and strict notebook tests know no named displays.
            self._shell.display_pub.publish(data=data, metadata={})
        else:
            self._place.end(data)
            live.close()


def panel(
    shell: InteractiveShell, place: Place, *, stops: str = "the cell", on_stop: Callable[[], object] | None = None
) -> Panel | None:
    """The live panel that this front end can show, if any; `on_stop`: what its button does, where that is no cell."""
    kind = front_end(shell)
    if kind == NOTHING:
        return None
    try:
        return WidgetPanel(shell, place, stops=stops, on_stop=on_stop) if kind == WIDGET else HtmlPanel(place)
    except ImportError:  # without anywidget the display protocol alone will do
        return HtmlPanel(place)


def front_end(shell: InteractiveShell) -> str:
    """What the front end of the running cell can show while the cell runs."""
    # A terminal, or output that %%capture keeps.
    hidden = getattr(shell, "kernel", None) is None or isinstance(shell.display_pub, CapturingDisplayPublisher)
    return NOTHING if hidden else comm.front_end()


def bundle(view: object) -> Bundle:
    """A view as text and HTML and nothing else: what a saved notebook keeps and every front end shows."""
    whole = getattr(view, "_repr_mimebundle_", None)
    if whole is not None:
        return dict(whole())
    data: Bundle = {"text/plain": repr(view)}
    as_html = getattr(view, "_repr_html_", None)
    if as_html is not None and (html := as_html()) is not None:
        data["text/html"] = html
    return data
