"""gpulab's slot in the output of a cell: the live panel while the cell runs, the report after it."""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable
from typing import Protocol

from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.magics.display_slot import DisplaySlot, MimeBundle
from gpulab.magics.panels import HtmlPanel, WidgetPanel
from gpulab.views import front_end as comm
from gpulab.views.front_end import NOTHING, WIDGET
from gpulab.views.live.panel_content import PanelContentBuilder
from gpulab.views.live.tiles import PanelContent


class Panel(Protocol):
    """Live display in a cell's output, redrawn from the sampler's thread."""

    every_s: float  # shortest time between two redraws

    def open(self, glance: PanelContent) -> None:
        """Show the first snapshot."""

    def draw(self, glance: PanelContent) -> None:
        """Show this snapshot now."""

    def freeze(self) -> None:
        """Disable the buttons: the cell has ended."""

    def close(self) -> None:
        """Release everything in the kernel and in the front end."""


class CellOutput:
    """One output, from panel to report. Without a live panel, the report is an ordinary output."""

    def __init__(self, shell: InteractiveShell, name: str, *, live: bool) -> None:
        self._shell = shell
        self._glances = PanelContentBuilder(name)
        # Drawing happens in another thread; with the cell's context, ipykernel knows whose output it is.
        self._context = contextvars.copy_context()
        self._slot = DisplaySlot(shell)
        self._panel = new_panel(shell, self._slot) if live else None
        self._frozen = False
        self._next_s = 0.0

    def open(self) -> None:
        """Show the empty panel."""
        if self._panel is not None:
            self._panel.open(self._glances.initial())

    def tick(self, live: LiveSnapshot) -> None:
        """Show the state of the session; called from the sampler's thread at any rate."""
        now_s = time.monotonic()
        if self._panel is None or self._frozen or now_s < self._next_s:
            return
        self._next_s = now_s + self._panel.every_s
        self._context.run(self._panel.draw, self._glances.build(live))

    def processing(self) -> None:
        """Announce that the recording is being read: this blocks the interpreter."""
        if self._panel is not None:
            self._panel.freeze()
            self._frozen = True
            self._panel.draw(self._glances.processing())

    def finish(self, data: MimeBundle) -> None:
        """Replace the panel with the report."""
        live, self._panel = self._panel, None
        if live is None:
            # An output that is never updated needs no display id; strict notebook tests do not accept display ids.
            self._shell.display_pub.publish(data=data, metadata={})
        else:
            self._slot.end(data)
            live.close()


def new_panel(
    shell: InteractiveShell, slot: DisplaySlot, *, stops: str = "the cell", on_stop: Callable[[], object] | None = None
) -> Panel | None:
    """The live panel that this front end can show, or None; `on_stop`: action of its button if it stops no cell."""
    kind = live_output_kind(shell)
    if kind == NOTHING:
        return None
    try:
        return WidgetPanel(shell, slot, stops=stops, on_stop=on_stop) if kind == WIDGET else HtmlPanel(slot)
    except ImportError:  # without anywidget, use the display protocol alone
        return HtmlPanel(slot)


def live_output_kind(shell: InteractiveShell) -> str:
    """Kind of live output that the front end of the running cell supports."""
    # A terminal, or output captured by %%capture.
    hidden = getattr(shell, "kernel", None) is None or isinstance(shell.display_pub, CapturingDisplayPublisher)
    return NOTHING if hidden else comm.front_end()


def mime_bundle(view: object) -> MimeBundle:
    """A view as text and HTML only: saved notebooks keep these, and every front end shows them."""
    mimebundle = getattr(view, "_repr_mimebundle_", None)
    if mimebundle is not None:
        return dict(mimebundle())
    data: MimeBundle = {"text/plain": repr(view)}
    as_html = getattr(view, "_repr_html_", None)
    if as_html is not None and (html := as_html()) is not None:
        data["text/html"] = html
    return data
