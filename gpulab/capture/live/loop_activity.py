"""Loop activity over repeated snapshots: whether the loop runs, how long it waits for data, how busy its GPUs are."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType

from gpulab.capture.hooks.loader_hooks import StepMarks
from gpulab.sensors import GpuReading
from gpulab.sensors.thread_frames import current_frame

STOPPED_AFTER_NS = (
    5_000_000_000  # no step for this long, and for three times the longest gap so far: the loop is not running
)
RECENT_NS = 10_000_000_000
USED_GPU_FRAC = 0.05  # a GPU that was never busier than this while the loop ran is not used by it
_DEEP = 200  # frames between DataLoader.__next__ and the innermost one, at most


@dataclass(frozen=True, kw_only=True)
class LoopActivity:
    """Result of a look; None without a loop, a loader or a GPU."""

    running: bool = False
    loop_s: float = 0.0
    waiting_frac: float | None = None
    recent_waiting_frac: float | None = None
    used_gpus: tuple[int, ...] = ()
    gpu_busy_frac: float | None = None


class ActivityTracker:
    """Updates totals from a session's marks, several times a second."""

    def __init__(self) -> None:
        self._last_look_ns = 0
        self._last_state: tuple[int | None, int] = (None, 0)  # last mark and number of steps at the previous look
        self._active_ns = 0  # time of the last sign of activity
        self._longest_ns = 0  # longest time between two signs of activity
        self._silent_from_ns: int | None = None
        self._silence_ns = 0
        self._pending: tuple[int, int] | None = None  # when an unfinished wait was first seen, and waited_ns before it
        self._history: deque[tuple[int, int, int]] = deque()  # time, loop time, waiting time
        self._gpu_ns: dict[int, list[float]] = {}  # busy time and measured time of each GPU
        self._worked: set[int] = set()

    def update(self, now_ns: int, marks: StepMarks, gpus: Sequence[GpuReading]) -> LoopActivity:
        """Update the totals at this time and return the current values."""
        passed_ns, self._last_look_ns = now_ns - (self._last_look_ns or now_ns), now_ns
        if marks.first_mark_ns is None:
            return LoopActivity()
        waiting_ns = self._waiting_ns(now_ns, marks)
        running = self._is_running(now_ns, marks, waiting=waiting_ns is not None)
        if running:
            self._add_gpus(passed_ns, gpus)
        upto_ns = now_ns if self._silent_from_ns is None else self._silent_from_ns
        loop_ns = max(upto_ns - marks.first_mark_ns - self._silence_ns, 0)
        waited_ns = marks.loader_wait_ns + (waiting_ns or 0)
        self._record_history(now_ns, loop_ns, waited_ns)
        used = self._used(len(gpus))
        has_loader = bool(marks.loaders)
        return LoopActivity(
            running=running,
            loop_s=loop_ns / 1e9,
            waiting_frac=_share(waited_ns, loop_ns) if has_loader else None,
            recent_waiting_frac=self._waiting_lately() if has_loader else None,
            used_gpus=used,
            gpu_busy_frac=self._busy(used),
        )

    def _waiting_ns(self, now_ns: int, marks: StepMarks) -> int | None:
        """Duration so far of an unfinished wait for a batch; `waited_ns` counts finished waits only."""
        frame = current_frame(marks.thread)
        if not _in_next(frame):
            self._pending = None
            return None
        if self._pending is None or self._pending[1] != marks.loader_wait_ns:
            self._pending = now_ns, marks.loader_wait_ns
        return now_ns - self._pending[0]

    def _is_running(self, now_ns: int, marks: StepMarks, *, waiting: bool) -> bool:
        state = marks.last_mark_ns, marks.steps
        alive = waiting or state != self._last_state
        self._last_state = state
        between_ns = now_ns - (self._active_ns or now_ns)
        timeout_ns = max(STOPPED_AFTER_NS, 3 * self._longest_ns)
        if alive:
            if self._silent_from_ns is not None:
                self._silence_ns += now_ns - self._silent_from_ns
                self._silent_from_ns = None
            elif between_ns <= timeout_ns:
                self._longest_ns = max(self._longest_ns, between_ns)
            self._active_ns = now_ns
        elif between_ns > timeout_ns and self._silent_from_ns is None:
            self._silent_from_ns = self._active_ns
        return self._silent_from_ns is None

    def _add_gpus(self, passed_ns: int, gpus: Sequence[GpuReading]) -> None:
        for index, gpu in enumerate(gpus):
            if gpu.util_frac is None:
                continue
            sums = self._gpu_ns.setdefault(index, [0.0, 0.0])
            sums[0] += gpu.util_frac * passed_ns
            sums[1] += passed_ns
            if gpu.util_frac > USED_GPU_FRAC:
                self._worked.add(index)

    def _used(self, count: int) -> tuple[int, ...]:
        return tuple(sorted(self._worked)) or tuple(range(count))

    def _busy(self, used: tuple[int, ...]) -> float | None:
        means = [_share(*self._gpu_ns[index]) for index in used if index in self._gpu_ns]
        measured = [mean for mean in means if mean is not None]
        return sum(measured) / len(measured) if measured else None

    def _record_history(self, now_ns: int, loop_ns: int, waited_ns: int) -> None:
        self._history.append((now_ns, loop_ns, waited_ns))
        while self._history[0][0] < now_ns - RECENT_NS:
            self._history.popleft()

    def _waiting_lately(self) -> float | None:
        (_, loop_before, waited_before), (_, loop_now, waited_now) = self._history[0], self._history[-1]
        return _share(max(waited_now - waited_before, 0), loop_now - loop_before)


def _share(part: float, total: float) -> float | None:
    return min(1.0, part / total) if total > 0 else None


def _in_next(frame: FrameType | None) -> bool:
    """Whether this stack is inside a DataLoader's `__next__`."""
    marked = StepMarks._next.__code__
    for _ in range(_DEEP):
        if frame is None:
            return False
        if frame.f_code is marked:
            return True
        frame = frame.f_back
    return False
