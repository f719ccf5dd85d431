"""The two live panels: a widget with a Stop button, and HTML displayed repeatedly where widgets do not work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.display_slot import DisplaySlot
from gpulab.magics.interrupt import interrupt_main_thread
from gpulab.views.front_end import allow_messages_while_busy
from gpulab.views.live.html_panel import panel_html
from gpulab.views.live.tiles import PanelContent

GRACE_S = 0.6  # time for the front end to prove that its clicks arrive while a cell runs
SILENCE_S = 8.0  # a page that has not answered after this time cannot show widgets


class WidgetPanel:
    """anywidget redrawn from the sampler's thread; shows its Stop button only once the button is known to work.

    A page shows no widget if anywidget is installed beside the kernel but not beside the Jupyter server. Such a page
    never answers: the panel is then HTML, in this cell and in the next ones, until a widget does answer.
    """

    every_s = 0.115  # with sensors read every 100 ms, this gives five redraws a second
    _answered: bool | None = None  # by any widget of this kernel; False: it kept silent for SILENCE_S

    def __init__(
        self,
        shell: InteractiveShell,
        slot: DisplaySlot,
        *,
        stops: str = "the cell",
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        from gpulab.views.live.widget import LivePanel

        self._slot = slot
        self._on_stop = on_stop or interrupt_main_thread
        self._anytime = on_stop is not None  # it does not stop a cell, so a click is never too late
        self._widget: Any = LivePanel(
            hello=_has_subshells(shell) and not self._anytime,
            key=slot.id,
            stops=stops,
            stop="button" if self._anytime else "",
        )
        self._widget.on_msg(self._handle_message)
        self._html = HtmlPanel(slot)
        self._opened_s, self._shows_html = 0.0, False
        self._lock = threading.Lock()
        self._running = True
        allow_messages_while_busy(self._widget.comm)

    def open(self, glance: PanelContent) -> None:
        """Show the widget; the page shows the HTML beside it if it knows no widgets at all."""
        self._widget.now = glance.data()
        data = self._widget._repr_mimebundle_()
        bundle = dict(data[0] if isinstance(data, tuple) else data)
        self._slot.put({**bundle, "text/html": panel_html(glance)})
        self._opened_s = time.monotonic()

    def draw(self, glance: PanelContent) -> None:
        """Send the new values to the widget, or show them as HTML if the page does not answer."""
        if self._is_unanswered():
            self._shows_html = True
            self._html.draw(glance)
            return
        if self._shows_html:
            self._shows_html = False
            self.open(glance)
        self._slot.restore()
        with self._widget.hold_sync():
            self._widget.now = glance.data()
            if not self._widget.stop and glance.elapsed_s > GRACE_S:
                self._widget.stop = "words"

    def freeze(self) -> None:
        """Disable Stop: it is too late now."""
        try:
            self._end()
        except KeyboardInterrupt:  # Stop was pressed just as the cell ended by itself
            self._end()

    def close(self) -> None:
        """Close the widget and the layout that ipywidgets created for it."""
        self._widget.layout.close()
        self._widget.close()

    def _is_unanswered(self) -> bool:
        """Whether the page should have answered by now; if messages cannot arrive during a cell, nobody knows."""
        if self._widget.hello and WidgetPanel._answered is None and time.monotonic() > self._opened_s + SILENCE_S:
            WidgetPanel._answered = False
        return WidgetPanel._answered is False

    def _end(self) -> None:
        with self._lock:
            self._running = False
        self._widget.stop = "done"

    def _handle_message(self, _: object, content: dict[str, Any], __: object) -> None:
        """Handle a message of the front end. In the main thread it comes too late: the cell has ended."""
        WidgetPanel._answered = True
        if threading.current_thread() is threading.main_thread() and not self._anytime:
            return
        with self._lock:
            if not self._running:
                return
            if content.get("kind") == "hello":
                self._widget.stop = "button"
            elif content.get("kind") == "gone" and not self._anytime:
                self._slot.mark_cleared()
            stopping = content.get("kind") == "stop" and self._widget.stop == "button"
            if stopping:
                self._widget.stop = "stopping"
                if not self._anytime:  # under the lock: the cell has certainly not ended
                    self._on_stop()
        if stopping and self._anytime:  # on_stop closes this panel, so the lock must be free
            self._on_stop()


class HtmlPanel:
    """HTML displayed repeatedly under one display id. It has no buttons, and its text says how to stop the cell."""

    every_s = 0.24

    def __init__(self, slot: DisplaySlot) -> None:
        self._slot = slot

    def open(self, glance: PanelContent) -> None:
        """Show the first snapshot."""
        self.draw(glance)

    def draw(self, glance: PanelContent) -> None:
        """Show the next snapshot."""
        self._slot.put({"text/plain": glance.sentence(), "text/html": panel_html(glance)})

    def freeze(self) -> None:
        """Do nothing: there are no buttons."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def forget_page() -> None:
    """Forget whether the page has answered: another one may be open now."""
    WidgetPanel._answered = None


def _has_subshells(shell: InteractiveShell) -> bool:
    """Whether this kernel can receive messages of the front end while a cell runs (ipykernel 7 and later)."""
    return bool(getattr(getattr(shell, "kernel", None), "_supports_kernel_subshells", False))
