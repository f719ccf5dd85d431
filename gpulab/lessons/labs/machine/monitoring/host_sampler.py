"""A thread that reads the CPU load and the memory of this process, as experiment trackers do beside a training loop."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

import psutil

from gpulab.extras import require_extra

if TYPE_CHECKING:
    import pandas as pd

MIB = 2**20


class HostSampler:
    """Reads every `period_s` while a `with` block runs; the first reading is there when the block begins."""

    def __init__(self, period_s: float = 0.02) -> None:
        self._period_s = period_s
        self._process = psutil.Process()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="host sampler", daemon=True)
        self._rows: list[tuple[float, float, float]] = []

    def __enter__(self) -> HostSampler:
        psutil.cpu_percent()  # begins the interval of the first load
        self._read()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()

    @property
    def readings(self) -> pd.DataFrame:
        """The readings in order: `time_s` (as time.time), `cpu_percent` (0-100, all cores), `rss_mib`."""
        require_extra("lab", "pandas", problem="This experiment needs pandas for its table.")
        import pandas as pd

        return pd.DataFrame(self._rows, columns=["time_s", "cpu_percent", "rss_mib"])

    def _run(self) -> None:
        while not self._stop.wait(self._period_s):
            self._read()

    def _read(self) -> None:
        self._rows.append((time.time(), psutil.cpu_percent(), self._process.memory_info().rss / MIB))
