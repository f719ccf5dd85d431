"""The alert of the live panel: a GPU has been idle for a while, and what the training loop does meanwhile."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass

from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.wording import duration, percent

THRESHOLD_FRAC, PATIENCE_S = 0.5, 10.0
SMOOTH_S = 2.0  # one driver reading covers less than a second: the mean over this time is compared with the threshold
_MOSTLY_FRAC = 0.3  # a source line is worth naming if it appears in this fraction of the samples


@dataclass(frozen=True, kw_only=True)
class IdleGpuAlert:
    """The current alert; `announcement` is its text at the start of the episode, for a screen reader to read once."""

    gpus: tuple[int, ...]
    since_s: float
    text: str
    announcement: str


class IdleGpuDetector:
    """Detects idle GPUs in a series of `LiveSnapshot` snapshots.

    An episode begins when a GPU has been below the threshold for `patience_s`. Only time in which steps are running
    counts: between cells the GPU is expected to be idle. With several GPUs, only those count that the loop has used
    at all, because a program may use one of eight.
    """

    def __init__(self, threshold_frac: float = THRESHOLD_FRAC, patience_s: float = PATIENCE_S) -> None:
        self._threshold_frac, self._patience_s = threshold_frac, patience_s
        self._readings: dict[int, deque[tuple[float, float]]] = {}
        self._below_since_s: dict[int, float] = {}
        self._frames: deque[tuple[float, str]] = deque()
        self._announcement = ""

    def update(self, live: LiveSnapshot) -> IdleGpuAlert | None:
        """Add a snapshot and return the alert of the current episode, if there is one."""
        now_s = live.elapsed_s
        if not live.running or live.steps < 2:
            self._readings.clear()
            self._below_since_s.clear()
            self._frames.clear()
            self._announcement = ""
            return None
        if live.frame is not None:
            self._frames.append((now_s, live.frame))
        while self._frames and self._frames[0][0] < now_s - self._patience_s:
            self._frames.popleft()
        for index in live.used_gpus:
            self._add_reading(index, now_s, live.gpus[index].util_frac)
        idle_s = {index: now_s - since_s for index, since_s in self._below_since_s.items()}
        idle_s = {index: seconds for index, seconds in idle_s.items() if seconds >= self._patience_s}
        if not idle_s:
            self._announcement = ""
            return None
        since_s = min(idle_s.values())
        gpus = tuple(sorted(idle_s))
        text = (
            f"{_gpu_names(gpus, len(live.gpus))} below {percent(self._threshold_frac)} utilisation "
            f"for {duration(1e9 * round(since_s))}{self._reason(live)}"
        )
        self._announcement = self._announcement or text
        return IdleGpuAlert(gpus=gpus, since_s=since_s, text=text, announcement=self._announcement)

    def _add_reading(self, index: int, now_s: float, util_frac: float | None) -> None:
        readings = self._readings.setdefault(index, deque())
        if util_frac is None:  # not measured is not idle
            readings.clear()
            self._below_since_s.pop(index, None)
            return
        readings.append((now_s, util_frac))
        while readings[0][0] < now_s - SMOOTH_S:
            readings.popleft()
        if sum(value for _, value in readings) / len(readings) < self._threshold_frac:
            self._below_since_s.setdefault(index, now_s)
        else:
            self._below_since_s.pop(index, None)

    def _reason(self, live: LiveSnapshot) -> str:
        """Return the share of time spent waiting for data; if it is below half, also the most frequent source line."""
        waiting_frac = live.recent_waiting_frac
        text = f"; the loop waits for data {percent(waiting_frac)} of the time" if waiting_frac is not None else ""
        if waiting_frac is not None and waiting_frac >= 0.5:
            return text
        line, times = next(iter(Counter(line for _, line in self._frames).most_common(1)), ("", 0))
        if times >= _MOSTLY_FRAC * max(len(self._frames), 1) and line:
            text += f"; the main thread is most often at {line}"
        return text


def _gpu_names(gpus: tuple[int, ...], gpu_count: int) -> str:
    if gpu_count == 1:
        return "GPU"
    if len(gpus) == gpu_count:
        return f"All {len(gpus)} GPUs"
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    return f"GPUs {', '.join(map(str, gpus[:-1]))} and {gpus[-1]}"
