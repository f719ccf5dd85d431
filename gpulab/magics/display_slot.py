"""One output of the running cell that is gpulab's, kept there although the cell may clear its output."""

from __future__ import annotations

import threading
from typing import Any
from uuid import uuid4

from IPython.core.interactiveshell import InteractiveShell

Bundle = dict[str, Any]  # what a front end is sent: text by MIME type


class Place:
    """A display that can be shown and replaced from any thread.

    Training cells often clear their output to draw a loss curve afresh, and what is cleared cannot be updated any
    more: the report would be lost. So messages to the front end are watched, and the display comes back with the
    first output after the clearing. A clearing that waits for the next output must not be set off by us: what it
    clears is the user's. A display that outlives its cell is not brought back: later cells clear their own outputs.
    """

    def __init__(self, shell: InteractiveShell, *, outlives: bool = False) -> None:
        self._publisher: Any = shell.display_pub
        self._watched = not outlives and hasattr(self._publisher, "register_hook")
        self.id = uuid4().hex
        self._lock = threading.RLock()
        self._content: Bundle | None = None
        self._there = False
        self._clearing = False  # the next output will clear what is there
        self._displays = False  # the cell shows more than printed lines
        self._sending = False

    def put(self, content: Bundle) -> None:
        """Show this here now."""
        with self._lock:
            if self._content is None and self._watched:
                self._publisher.register_hook(self._watch)  # sees what this thread sends, which is the cell's
            self._content = content
            if self._there:
                self._send(update=True)
            else:
                self.keep()

    def keep(self) -> None:
        """Show it again if it was cleared."""
        with self._lock:
            if not self._there and not self._clearing and self._content is not None:
                self._send(update=False)

    def lost(self) -> None:
        """The front end says that it is cleared."""
        with self._lock:
            self._there = self._clearing = False

    def end(self, content: Bundle) -> None:
        """Show this here for good."""
        with self._lock:
            if self._content is not None and self._watched:
                self._publisher.unregister_hook(self._watch)
            if self._clearing and not self._displays:  # printed lines are not watched: they cleared it long ago
                self._there = False
            self._content = content
            self._send(update=self._there)

    def _watch(self, message: dict[str, Any]) -> dict[str, Any]:
        kind = message["header"]["msg_type"]
        with self._lock:
            if kind == "clear_output":
                self._clearing = bool(message["content"].get("wait"))
                self._there = self._there and self._clearing
            elif kind == "display_data" and not self._sending:
                self._displays = True
                if self._clearing or not self._there:
                    self._clearing = False
                    self._send(update=False)
        return message

    def _send(self, *, update: bool) -> None:
        self._there = self._sending = True
        try:
            self._publisher.publish(data=self._content, metadata={}, transient={"display_id": self.id}, update=update)
        finally:
            self._sending = False
