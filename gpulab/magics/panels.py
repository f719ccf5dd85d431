"""The two live panels: a widget with a Stop button, and plain HTML sent again and again where widgets cannot be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from gpulab.magics.display_slot import Place
from gpulab.magics.interrupt import interrupt
from gpulab.views.front_end import reach_during_a_cell
from gpulab.views.live.html_panel import markup
from gpulab.views.live.tiles import Glance

GRACE_S = 0.6  # how long the front end has to show that its clicks arrive while a cell runs


class WidgetPanel:
    """An anywidget redrawn from the sampler's thread; its Stop button is shown only once it is known to work."""

    every_s = 0.115  # with sensors read every 100 ms this gives five pictures a second

    def __init__(
        self,
        shell: InteractiveShell,
        place: Place,
        *,
        stops: str = "the cell",
        on_stop: Callable[[], object] | None = None,
    ) -> None:
        from gpulab.views.live.widget import LivePanel

        self._place = place
        self._on_stop = on_stop or interrupt
        self._anytime = on_stop is not None  # what is stopped is no cell: then a click never comes too late
        self._widget: Any = LivePanel(
            hello=_has_subshells(shell) and not self._anytime,
            key=place.id,
            stops=stops,
            stop="button" if self._anytime else "",
        )
        self._widget.on_msg(self._told)
        self._lock = threading.Lock()
        self._running = True
        reach_during_a_cell(self._widget.comm)

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
        if threading.current_thread() is threading.main_thread() and not self._anytime:
            return
        with self._lock:
            if not self._running:
                return
            if content.get("kind") == "hello":
                self._widget.stop = "button"
            elif content.get("kind") == "gone" and not self._anytime:
                self._place.lost()
            stopping = content.get("kind") == "stop" and self._widget.stop == "button"
            if stopping:
                self._widget.stop = "stopping"
                if not self._anytime:  # while it is sure that the cell has not ended
                    self._on_stop()
        if stopping and self._anytime:  # what this stops will close this panel
            self._on_stop()


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
