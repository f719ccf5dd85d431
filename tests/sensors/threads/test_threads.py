"""The Python threads of this process: whose CPU time is whose."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpulab.sensors.host.threads import ThreadReader

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock for each thread")


class ReadingThread:
    """Takes readings in a separate thread, like the sampler."""

    def __init__(self, threads: ThreadReader) -> None:
        self.threads = threads

    def read(self) -> dict[str, float]:
        readings: list[dict[str, float]] = []
        asking = threading.Thread(target=lambda: readings.append(self.threads.read()))
        asking.start()
        asking.join()
        return readings[0]


@pytest.fixture
def other():
    """A thread that uses 50 ms of CPU time for each call of the fixture, and waits otherwise."""
    work, done, end = threading.Semaphore(0), threading.Semaphore(0), threading.Event()

    def run():
        while True:
            work.acquire()
            if end.is_set():
                return
            start_s = time.thread_time()
            while time.thread_time() - start_s < 0.05:
                pass
            done.release()

    thread = threading.Thread(target=run, name="augmenting")
    thread.start()

    def compute():
        work.release()
        done.acquire()

    yield compute
    end.set()
    work.release()
    thread.join()


def compute(seconds):
    start_s = time.thread_time()
    while time.thread_time() - start_s < seconds:
        pass


@linux_only
def test_cpu_time_of_the_recorded_thread_is_separate_from_the_others(other):
    reader = ReadingThread(ThreadReader(threading.get_ident()))
    before = reader.read()
    compute(0.05)
    first = reader.read()
    other()
    second = reader.read()
    assert first["main_cpu_s"] - before["main_cpu_s"] >= 0.05
    assert first["others_cpu_s"] - before["others_cpu_s"] < 0.05
    assert second["others_cpu_s"] - first["others_cpu_s"] >= 0.05
    assert second["main_cpu_s"] - first["main_cpu_s"] < 0.05


@linux_only
def test_the_location_of_the_busiest_other_thread_is_recorded(other):
    threads = ThreadReader(threading.get_ident())
    reader = ReadingThread(threads)
    reader.read()
    other()
    reader.read()
    assert threads.busiest is not None
    assert "run (test_threads.py:" in threads.busiest
    reader.read()
    assert threads.busiest is None, "no thread computed since then"


def test_a_thread_without_user_code_is_shown_by_name():
    idle = threading.Event()
    thread = threading.Thread(target=idle.wait, name="pin_memory")
    thread.start()
    used = {thread.native_id: iter([0.0, 1.0])}
    threads = ThreadReader(threading.get_ident(), cpu_s=lambda native: next(used.get(native, iter([0.0]))))
    reader = ReadingThread(threads)
    reader.read()
    reader.read()
    idle.set()
    thread.join()
    assert threads.busiest == "pin_memory"


@pytest.mark.alone("measures how long a thread waits for a core of this machine")
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="this kernel does not count waits for a core")
def test_time_waiting_for_a_core_is_counted():
    reader = ReadingThread(ThreadReader(threading.get_ident()))
    allowed = os.sched_getaffinity(0)
    alone = reader.read()
    time.sleep(0.2)
    slept = reader.read()
    assert slept["main_delayed_s"] - alone["main_delayed_s"] < 0.1, "who sleeps wants no core"
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as rival:  # on the same core
            time.sleep(0.2)
            before = reader.read()
            compute(0.2)
            after = reader.read()
            rival.kill()
    finally:
        os.sched_setaffinity(0, allowed)
    assert after["main_delayed_s"] - before["main_delayed_s"] > 0.03


@linux_only
def test_cpu_time_of_an_ended_thread_is_kept():
    threads = ThreadReader(threading.get_ident())
    reader = ReadingThread(threads)
    started, end = threading.Event(), threading.Event()

    def run():
        compute(0.05)
        started.set()
        end.wait()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    alive = reader.read()["others_cpu_s"]
    end.set()
    thread.join()
    assert reader.read()["others_cpu_s"] >= alive >= 0.05


def test_without_thread_clocks_cpu_times_are_unknown_with_a_gap():
    threads = ThreadReader(threading.get_ident(), cpu_s=lambda _: math.nan)
    values = ReadingThread(threads).read()
    assert math.isnan(values["main_cpu_s"])
    assert math.isnan(values["others_cpu_s"])
    assert [gap.what for gap in threads.gaps] == ["CPU time of single threads"]
