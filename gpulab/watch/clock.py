"""Time as a value that tests can replace."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Clock:
    """The clocks of the system. `stop` ends every wait."""

    _stopping: threading.Event = field(default_factory=threading.Event)

    def now_s(self) -> float:
        """UNIX time. It jumps if somebody sets the clock."""
        return time.time()

    def steady_s(self) -> float:
        """Time since an arbitrary moment. It never jumps; on Linux, it stops while the machine is suspended."""
        return time.monotonic()

    def uptime_s(self) -> float:
        """Time since the start of the machine, with the time it was suspended."""
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait. Returns True at once when the clock is stopped."""
        return self._stopping.wait(max(0.0, seconds))

    def stop(self) -> None:
        """End the wait, and all later ones."""
        self._stopping.set()
