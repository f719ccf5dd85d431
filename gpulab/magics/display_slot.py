"""An output in the running cell that survives `clear_output`."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from IPython.core.interactiveshell import InteractiveShell

MimeBundle = dict[str, Any]  # content for the front end: text by MIME type


class DisplaySlot:
    """Display that can be shown and replaced from any thread.

    Training cells often clear their output to redraw a loss curve. A cleared display cannot be updated any more, so
    the report would be lost. Therefore messages to the front end are watched, and the display comes back with the first
    output after the clearing. We must not trigger a clearing that waits for the next output: it clears the user's
    output. A display that outlives its cell is not restored: later cells clear their own outputs.
    """

    def __init__(self, shell: InteractiveShell, *, outlives: bool = False) -> None:
        self._publisher: Any = shell.display_pub
        self._watched = not outlives and hasattr(self._publisher, "register_hook")
        self.id = uuid4().hex
        self._lock = threading.RLock()
        self._content: MimeBundle | None = None
        self._visible = False
        self._clearing = False  # the next output will clear the current one
        self._displays = False  # the cell displays more than printed lines
        self._sending = False

    def put(self, content: MimeBundle) -> None:
        """Show this content now."""
        with self._lock:
            if self._content is None and self._watched:
                self._publisher.register_hook(self._watch)  # sees the messages of this thread, which are the cell's
            self._content = content
            if self._visible:
                self._send(update=True)
            else:
                self.restore()

    def restore(self) -> None:
        """Show the content again if it was cleared."""
        with self._lock:
            if not self._visible and not self._clearing and self._content is not None:
                self._send(update=False)

    def mark_cleared(self) -> None:
        """Note that the front end cleared the display."""
        with self._lock:
            self._visible = self._clearing = False

    def end(self, content: MimeBundle) -> None:
        """Show the final content."""
        with self._lock:
            if self._content is not None and self._watched:
                self._publisher.unregister_hook(self._watch)
            if self._clearing and not self._displays:  # printed lines are not watched: they have cleared it already
                self._visible = False
            self._content = content
            self._send(update=self._visible)

    def _watch(self, message: dict[str, Any]) -> dict[str, Any]:
        kind = message["header"]["msg_type"]
        with self._lock:
            if kind == "clear_output":
                self._clearing = bool(message["content"].get("wait"))
                self._visible = self._visible and self._clearing
            elif kind == "display_data" and not self._sending:
                self._displays = True
                if self._clearing or not self._visible:
                    self._clearing = False
                    self._send(update=False)
        return message

    def _send(self, *, update: bool) -> None:
        self._visible = self._sending = True
        try:
            self._publisher.publish(data=self._content, metadata={}, transient={"display_id": self.id}, update=update)
        finally:
            self._sending = False
