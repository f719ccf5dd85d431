"""A watch of two GPUs that runs through a scripted day, with faults, in simulated time.

    python simulated_day.py LIBRARY DATABASE START_S END_S HOUR_S SPEED LIFE_S SEED

All readings are functions of the simulated second, so that a test can tell which value each stored row must have.
The program kills itself with SIGKILL after a random real time of at most LIFE_S (0: never); it appends the simulated
second, CPU time and memory to DATABASE.costs now and then.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
LOST, DRIVER_NOT_LOADED, NO_PERMISSION = 15, 9, 4
GPUS = 2
MIB = 2**20
EPOCH_S = 1_790_000_000 // 86_400 * 86_400  # the simulated day begins at a midnight, UTC


def util_percent(gpu: int, at_s: int) -> int:
    return (at_s * 7 + gpu * 31) % 101


def power_mw(gpu: int, at_s: int) -> int:
    return 60_000 + 4_000 * util_percent(gpu, at_s)


def memory_bytes(gpu: int, at_s: int) -> int:
    return (1000 + (at_s // 60 * 13 + gpu * 7) % 40_000) * MIB


def throttle_bits(gpu: int, at_s: int) -> int:
    return 0x4 if (at_s // 97 + gpu) % 5 == 0 else 0


def pid_of(gpu: int, at_s: int, hour_s: int) -> int:
    """One process per GPU and quarter of an hour; the last quarter has none."""
    quarter = at_s * 4 // hour_s
    return 0 if quarter % 4 == 3 else 2_000_000 + quarter % 1000 * 10 + gpu


class Day:
    """Faults by simulated time; a fault lasts from its first to its second time, in hours."""

    lost = (3.1, 3.5)  # GPU 1
    no_driver = (5.0, 5.1)
    permission = (7.0, 8.0)
    forward = 9.0  # the clock is set forward by a tenth of an hour
    back = 11.0  # and back by a twentieth
    disk_full = (13.0, 13.08)
    disk_full_long = (14.0, 14.5)

    def __init__(self, hour_s: int) -> None:
        self.hour_s = hour_s

    def during(self, span: tuple[float, float], at_s: float) -> bool:
        return span[0] <= (at_s - EPOCH_S) / self.hour_s < span[1]


class SimulatedClock:
    """A clock that stands still except while the watch waits."""

    def __init__(self, start_s: float, end_s: float, speed: float, day: Day) -> None:
        self.time_s, self.steady, self._end_s, self._speed, self._day = start_s, 0.0, end_s, speed, day
        self._jumps = {day.forward: day.hour_s / 10, day.back: -day.hour_s / 20}

    def now_s(self) -> float:
        return self.time_s

    def steady_s(self) -> float:
        return self.steady

    uptime_s = steady_s

    def wait(self, seconds: float) -> bool:
        if self._speed:
            time.sleep(seconds / self._speed)
        before_s, self.time_s = self.time_s, self.time_s + seconds
        self.steady += seconds
        for hour, jump_s in list(self._jumps.items()):
            moment_s = EPOCH_S + hour * self._day.hour_s
            if before_s < moment_s <= self.time_s:
                self.time_s += jump_s
                del self._jumps[hour]
        return self.time_s >= self._end_s

    def stop(self) -> None:
        self._end_s = 0.0


def main(library: str, database: str, *numbers: str) -> None:
    start_s, end_s, hour_s, speed, life_s, seed = map(float, numbers)
    sys.path.insert(0, str(ROOT))
    import pynvml

    from gpulab.watch.observation import Observer
    from gpulab.watch.watcher import Watcher
    from tests.support.nvml_standin import Standin

    standin = Standin(Path(library))
    pynvml.nvmlLib = standin.library
    day = Day(int(hour_s))
    clock = SimulatedClock(start_s, end_s, speed, day)
    if life_s:
        life = threading.Timer(random.Random(seed).uniform(0.02, life_s), os.kill, (os.getpid(), signal.SIGKILL))
        life.daemon = True
        life.start()
    scene = Scene(standin, day)
    scene.set(int(start_s))
    watcher = Watcher(Path(database), clock=clock, observer=Observer(clock))
    observe = watcher.observer.observe

    def observe_scene():
        scene.set(int(clock.now_s()))
        scene.fill_disk(watcher.writer._connection, int(clock.now_s()))
        return observe()

    watcher.observer.observe = observe_scene
    costs = Path(f"{database}.costs").open("a")  # noqa: SIM115  (it is open until the process is killed)
    watcher.begin()
    while not clock.wait(watcher._seconds_to_next()):
        watcher.tick()
        if watcher.readings % 500 == 0:
            resident = int(Path("/proc/self/statm").read_text().split()[1]) * 4096
            costs.write(f"{clock.now_s()} {watcher.readings} {time.process_time()} {resident}\n")
            costs.flush()
    watcher.close()


class Scene:
    """Sets the stand-in's readings and faults for a second."""

    def __init__(self, standin, day: Day) -> None:
        self.standin, self.day, self.state, self.full = standin, day, (), False

    def set(self, at_s: int) -> None:
        for gpu in range(GPUS):
            self.standin.set(
                gpu, util=util_percent(gpu, at_s), power=power_mw(gpu, at_s), memory=memory_bytes(gpu, at_s),
                throttle=throttle_bits(gpu, at_s), energy=at_s * 1000 * (gpu + 1),
            )  # fmt: skip
            pid = pid_of(gpu, at_s, self.day.hour_s)
            processes = [(pid, memory_bytes(gpu, at_s) // 2, util_percent(gpu, at_s))] if pid else []
            self.standin.list_processes(gpu, *processes)
        self._set_faults(at_s)

    def _set_faults(self, at_s: int) -> None:
        day = self.day
        state = tuple(day.during(span, at_s) for span in (day.lost, day.no_driver, day.permission))
        if state == self.state:
            return
        self.state = state
        lost, no_driver, denied = state
        self.standin.clear_faults()
        if lost:
            for function in LOST_FUNCTIONS:
                self.standin.fault(function, LOST, gpu=1)
        if no_driver:
            self.standin.fault("nvmlInitWithFlags", DRIVER_NOT_LOADED)
            while self.standin.library.nvmlShutdown() == 0:  # every handle is void now
                pass
        if denied:
            self.standin.fault("nvmlDeviceGetComputeRunningProcesses_v3", NO_PERMISSION)

    def fill_disk(self, connection: sqlite3.Connection, at_s: int) -> None:
        full = self.day.during(self.day.disk_full, at_s) or self.day.during(self.day.disk_full_long, at_s)
        if full != self.full:
            self.full = full
            (pages,) = connection.execute("PRAGMA page_count").fetchone()
            with contextlib.suppress(sqlite3.Error):
                connection.execute(f"PRAGMA max_page_count = {pages if full else 2**30}").fetchall()


LOST_FUNCTIONS = (
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetFieldValues", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetClockInfo",
    "nvmlDeviceGetHandleByIndex_v2",
)  # fmt: skip

if __name__ == "__main__":
    main(*sys.argv[1:])
