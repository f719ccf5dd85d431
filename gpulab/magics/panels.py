"""The two live panels: a widget with a Stop button, and plain HTML sent again and again where widgets cannot be."""

from __future__ import annotations

import threading
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.interrupt import interrupt
from gpulab.magics.place import Place
from gpulab.views.glance import Glance
from gpulab.views.live_html import markup

GRACE_S = 0.6  # how long the front end has to show that its clicks arrive while a cell runs


class WidgetPanel:
    """An anywidget redrawn from the sampler's thread; its Stop button is shown only once it is known to work."""

    every_s = 0.115  # with sensors read every 100 ms this gives five pictures a second

    def __init__(self, shell: InteractiveShell, place: Place) -> None:
        from gpulab.views.live import LivePanel

        self._place = place
        self._widget: Any = LivePanel(hello=_has_subshells(shell), key=place.id)
        self._widget.on_msg(self._told)
        self._lock = threading.Lock()
        self._running = True
        _reach_during_a_cell(self._widget.comm)

    def open(self, glance: Glance) -> None:
        """Show the widget."""
        self._widget.now = glance.data()
        data = self._widget._repr_mimebundle_()
        self._place.put(dict(data[0] if isinstance(data, tuple) else data))

    def draw(self, glance: Glance) -> None:
        """Send the new values; the widget draws itself."""
        self._place.keep()
        with self._widget.hold_sync():
            self._widget.now = glance.data()
            if not self._widget.stop and glance.elapsed_s > GRACE_S:
                self._widget.stop = "words"

    def freeze(self) -> None:
        """From here on, Stop comes too late."""
        try:
            self._end()
        except KeyboardInterrupt:  # Stop was pressed in the very moment the cell ended by itself
            self._end()

    def close(self) -> None:
        """Close the widget, and the layout that ipywidgets made for it."""
        self._widget.layout.close()
        self._widget.close()

    def _end(self) -> None:
        with self._lock:
            self._running = False
        self._widget.stop = "done"

    def _told(self, _: object, content: dict[str, Any], __: object) -> None:
        """The front end speaks. In the main thread it speaks too late: the cell that held the thread is over."""
        if threading.current_thread() is threading.main_thread():
            return
        with self._lock:
            if not self._running:
                return
            if content.get("kind") == "hello":
                self._widget.stop = "button"
            elif content.get("kind") == "gone":
                self._place.lost()
            elif content.get("kind") == "stop" and self._widget.stop == "button":
                self._widget.stop = "stopping"
                interrupt()


class HtmlPanel:
    """Markup displayed again under one display id. It cannot be clicked, and says what can."""

    every_s = 0.24

    def __init__(self, place: Place) -> None:
        self._place = place

    def open(self, glance: Glance) -> None:
        """Show the first picture."""
        self.draw(glance)

    def draw(self, glance: Glance) -> None:
        """Show the next picture."""
        self._place.put({"text/plain": glance.sentence(), "text/html": markup(glance)})

    def freeze(self) -> None:
        """Nothing to freeze."""

    def close(self) -> None:
        """Nothing to close."""


def _has_subshells(shell: InteractiveShell) -> bool:
    """Whether this kernel can hear the front end while a cell runs (ipykernel 7 and later)."""
    return bool(getattr(getattr(shell, "kernel", None), "_supports_kernel_subshells", False))


def _reach_during_a_cell(comm: Any) -> None:
    """Let messages of the front end arrive while the main thread is busy, without disturbing what it does.

    ipykernel 7.4 sends an answer to the shell that spoke last, which is the busy one: leave the choice to the front
    end. And ipykernel 7 fires IPython's execution events for every message, in the message's thread: matplotlib would
    flush, and lose, the figure that the cell is just drawing (ipykernel issue 1564).
    """
    if comm is None or not hasattr(comm, "_msg_callback"):
        return
    comm._reply_subshell_for = lambda data, default: default
    comm.handle_msg = lambda message: comm._msg_callback(message)
