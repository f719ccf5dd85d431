"""Time and peak memory of this process and its children while a block runs."""

from __future__ import annotations

import threading
import time
from types import TracebackType

import psutil

_INTERVAL_S = 0.05


class Watch:
    """Measure a block: wall time, CPU time, peak memory of each child process, and of all processes together.

    CPU time does not depend on other programs that share the cores.
    """

    def __init__(self) -> None:
        self.wall_s = 0.0
        self.peak_bytes: dict[int, int] = {}  # by process, without this one
        self.total_peak_bytes = 0  # of all processes at one time, with this one
        self._cpu_s: dict[int, float] = {}  # by process, as last seen
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._start_s = self._start_cpu_s = 0.0
        self._this_cpu_s = 0.0

    def __enter__(self) -> Watch:
        self._start_s, self._start_cpu_s = time.perf_counter(), time.process_time()
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.wall_s = time.perf_counter() - self._start_s
        self._this_cpu_s = time.process_time() - self._start_cpu_s
        self._stop.set()
        self._thread.join()

    @property
    def worker_peak_bytes(self) -> int:
        """Peak memory of the largest child process."""
        return max(self.peak_bytes.values(), default=0)

    @property
    def cpu_s(self) -> float:
        """CPU time of this process and all child processes."""
        return self._this_cpu_s + sum(self._cpu_s.values())

    def _sample(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(_INTERVAL_S):
            total = this.memory_info().rss
            for child in this.children(recursive=True):
                try:
                    size = child.memory_info().rss
                    times = child.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                total += size
                self._cpu_s[child.pid] = times.user + times.system
                self.peak_bytes[child.pid] = max(self.peak_bytes.get(child.pid, 0), size)
            self.total_peak_bytes = max(self.total_peak_bytes, total)
