"""A watch in a thread of this process, for `%gpumonitor --keep`."""

from __future__ import annotations

import threading
from pathlib import Path

from gpulab.watch.clock import Clock
from gpulab.watch.database import default_path
from gpulab.watch.watcher import Watcher

_JOIN_S = 5.0  # a driver call can hang


class BackgroundWatch:
    """Watches from `start()` to `stop()`, once a second. A `gpulab watch` may write to the same history."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = default_path() if path is None else path
        self._clock = Clock()
        self._watcher = Watcher(self.path, clock=self._clock)
        self._thread = threading.Thread(target=self._watcher.run, name="gpulab-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and wait until everything is written."""
        self._clock.stop()
        if self._thread.is_alive():
            self._thread.join(_JOIN_S)
