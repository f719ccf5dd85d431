"""Looking at another thread never hangs the program, and leaves the garbage collector as the program set it."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref

import pytest

from gpulab.sensors.thread_frames import current_frame

# A collection may run at every allocation, and starts a thread each time.
THREADS_FROM_THE_COLLECTOR = """
import _thread, gc, threading, time
from gpulab.sensors.thread_frames import current_frame

def work():
    while True:
        sum(number for number in range(50))

threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
busy = []
def start_thread(phase, _):
    if phase == "start" and not busy:
        busy.append(1)
        _thread.start_new_thread(int, ())
        busy.pop()
gc.callbacks.append(start_thread)
gc.set_threshold(1)
for _ in range(300):
    current_frame(threads[0].ident)
gc.callbacks.clear()
print("ended")
"""


def test_a_collection_that_starts_threads_does_not_hang_the_program():
    """Python 3.11.7 itself hangs here: with `sys._current_frames()` instead, this program never ends."""
    command = [sys.executable, "-c", THREADS_FROM_THE_COLLECTOR]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "ended\n"


@pytest.mark.parametrize("enabled", [False, True])
def test_the_collector_stays_as_the_program_set_it(enabled):
    try:
        (gc.enable if enabled else gc.disable)()
        for _ in range(100):
            assert current_frame(threading.get_ident()) is not None
        assert gc.isenabled() is enabled
    finally:
        gc.enable()


def test_a_thread_that_has_ended_has_no_frame():
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    assert current_frame(thread.ident) is None
    assert current_frame(None) is None


def test_the_frame_is_that_of_the_thread():
    waiting, done = threading.Event(), threading.Event()

    def wait_here() -> None:
        waiting.set()
        done.wait()

    thread = threading.Thread(target=wait_here)
    thread.start()
    waiting.wait()
    frame, names = current_frame(thread.ident), []
    done.set()
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    thread.join()
    assert "wait_here" in names


class Batch:
    """An object that a variable of a function holds."""


@pytest.mark.parametrize("enabled", [False, True])
def test_a_look_keeps_nothing_alive(enabled):
    """What a function holds while another thread looks is freed as the function returns, without the collector."""
    alive: list[weakref.ref[Batch]] = []

    def train() -> None:
        batch = Batch()
        alive.append(weakref.ref(batch))
        looker = threading.Thread(target=current_frame, args=(threading.main_thread().ident,))
        looker.start()
        looker.join()
        current_frame(threading.get_ident())

    thresholds = gc.get_threshold()
    try:
        gc.set_threshold(0)  # never by itself
        (gc.enable if enabled else gc.disable)()
        train()
        assert alive[0]() is None
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
