"""Epochs with a real loader and a declared GPU step, and CPU time of two ways to wait.

The step is a sleep of known length that stands in for the GPU, so the busy time is known and the rest is measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class EpochTime:
    """Measured seconds of an epoch, and the declared seconds in which the stand-in for the GPU works."""

    wall_s: float
    busy_s: float

    @property
    def busy_frac(self) -> float:
        """Utilisation."""
        return self.busy_s / self.wall_s


def measure_epoch(batches: Iterable[Any], step_s: float) -> EpochTime:
    """Run an epoch with a step of this length after each batch."""
    begin_s, steps = time.perf_counter(), 0
    for _ in batches:
        time.sleep(step_s)
        steps += 1
    return EpochTime(wall_s=time.perf_counter() - begin_s, busy_s=steps * step_s)


def fastest_epoch(batches: Iterable[Any], step_s: float, repeats: int = 3) -> EpochTime:
    """Return the fastest of several epochs."""
    return min((measure_epoch(batches, step_s) for _ in range(repeats)), key=lambda one: one.wall_s)


def periodic_epoch(wait_s: float, step_s: float, steps: int = 20) -> EpochTime:
    """Return the fastest of three epochs that wait before each step; waits and steps are sleeps of known length."""
    return fastest_epoch(LateBatches(wait_s, steps), step_s)


class LateBatches:
    """Numbers, each of which comes after a wait."""

    def __init__(self, wait_s: float, count: int) -> None:
        self.wait_s, self.count = wait_s, count

    def __iter__(self) -> Iterator[int]:
        for index in range(self.count):
            if self.wait_s:
                time.sleep(self.wait_s)
            yield index


@dataclass(frozen=True, kw_only=True)
class WaitCost:
    """A wait: its length, and the CPU time of this process in it."""

    wall_s: float
    cpu_s: float

    @property
    def core_frac(self) -> float:
        """Share of a core that the wait occupies."""
        return self.cpu_s / self.wall_s


class SlowSignal:
    """Stands in for an event of a GPU: it is set after a known time, by a thread that sleeps."""

    def __init__(self, delay_s: float) -> None:
        self._event = threading.Event()
        self._timer = threading.Timer(delay_s, self._event.set)
        self._timer.start()

    def query(self) -> bool:
        """Return whether it is set, without waiting."""
        return self._event.is_set()

    def wait(self) -> None:
        """Block until it is set; the operating system wakes the thread."""
        self._event.wait()


def measure_wait(wait: Any, delay_s: float = 0.3) -> WaitCost:
    """Measure the wait for a signal; `wait` is a function of the signal."""
    signal = SlowSignal(delay_s)
    begin_s, cpu_begin_s = time.perf_counter(), time.process_time()
    wait(signal)
    return WaitCost(wall_s=time.perf_counter() - begin_s, cpu_s=time.process_time() - cpu_begin_s)


def cpu_energy_reason() -> str:
    """Return why the energy of this CPU cannot be read; empty if it can."""
    from gpulab.sensors.host.cpu_energy import CpuEnergy

    meter = CpuEnergy()
    meter.read()
    return meter.why
