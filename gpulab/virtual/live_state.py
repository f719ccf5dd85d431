"""What the live panel shows of a virtual GPU: shares of virtual time, computed while the program runs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from gpulab.capture.hooks.loader_hooks import StepMarks
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.run import Gpu
from gpulab.sensors import GpuReading
from gpulab.virtual.clock import VirtualClock
from gpulab.virtual.op_log.logged_memory import LoggedMemory

RECENT_S = 10.0  # of real time, as for a real GPU


@dataclass(frozen=True)
class _Totals:
    """Virtual times since the first step, in ns, at a real time."""

    elapsed_s: float
    loop_ns: float
    busy_ns: float
    waited_ns: float


class VirtualLiveState:
    """Turns the clock, the memory and the step marks of a virtual GPU into snapshots.

    Called in the ticker's thread while the program runs: it reads single numbers only. The GPU works ahead of the host,
    so the loop lasts until the later of the two.
    """

    def __init__(self, gpu: Gpu, clock: VirtualClock, memory: LoggedMemory, marks: StepMarks) -> None:
        self._gpu, self._clock, self._memory, self._marks = gpu, clock, memory, marks
        self._start: tuple[float, float] | None = None  # of the loop: virtual time and busy time of the GPU
        self._history: deque[_Totals] = deque()
        self._util_frac: float | None = None

    def snapshot(self, elapsed_s: float) -> LiveSnapshot:
        """The state after `elapsed_s` seconds of real time."""
        steps = self._marks.steps
        totals = self._totals(elapsed_s)
        has_loader = bool(self._marks.loaders) and totals is not None
        return LiveSnapshot(
            phase=f"virtual {self._gpu.name}, estimated",
            elapsed_s=elapsed_s,
            steps=steps,
            steps_per_s=steps / (totals.loop_ns / 1e9) if totals and steps > 1 and totals.loop_ns else None,
            waiting_frac=_share(totals.waited_ns, totals.loop_ns) if totals and has_loader else None,
            gpus=(self._reading(totals),),
            core_fracs=(),
            rss_bytes=None,
            workers=len(self._marks.worker_pids),
            frame=None,
            running=totals is not None,
            loop_s=totals.loop_ns / 1e9 if totals else 0.0,
            recent_waiting_frac=self._recent_waiting() if has_loader else None,
            loader_pass=self._marks.loader_pass,
            used_gpus=(0,),
            gpu_busy_frac=_share(totals.busy_ns, totals.loop_ns) if totals else None,
        )

    def _totals(self, elapsed_s: float) -> _Totals | None:
        """Update the history; None before the first step."""
        first_ns = self._marks.first_mark_ns
        if first_ns is None:
            return None
        busy_ns = self._clock.busy_ns
        if self._start is None:
            self._start = float(first_ns), busy_ns
        end_ns = max(self._clock.now_ns, self._clock.busy_until_ns)
        totals = _Totals(elapsed_s, end_ns - self._start[0], busy_ns - self._start[1], self._marks.loader_wait_ns)
        self._history.append(totals)
        while self._history[0].elapsed_s < elapsed_s - RECENT_S:
            self._history.popleft()
        return totals

    def _reading(self, totals: _Totals | None) -> GpuReading:
        """Utilisation since the previous snapshot, or the last one while virtual time stands still, and memory."""
        if totals is not None:
            before = self._history[-2] if len(self._history) > 1 else _Totals(0.0, 0.0, 0.0, 0.0)
            recent = _share(totals.busy_ns - before.busy_ns, totals.loop_ns - before.loop_ns)
            self._util_frac = recent if recent is not None else self._util_frac
        values = {"memory_used_bytes": float(self._memory.reserved_bytes)}
        if self._util_frac is not None:
            values["util_frac"] = self._util_frac
        return GpuReading(gpu=self._gpu, values=values)

    def _recent_waiting(self) -> float | None:
        first, last = self._history[0], self._history[-1]
        return _share(last.waited_ns - first.waited_ns, last.loop_ns - first.loop_ns)


def _share(part_ns: float, total_ns: float) -> float | None:
    return min(max(part_ns / total_ns, 0.0), 1.0) if total_ns > 0 else None
