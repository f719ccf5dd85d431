"""The number of events is estimated from the heap; slow readings of it never slow the loop down for long."""

import threading
import time

import pytest

from gpulab.capture.protection import event_budget
from gpulab.capture.protection.event_budget import BYTES_PER_EVENT, PLAIN_READ_TIMES, EventWatch


@pytest.fixture
def heap(monkeypatch):
    """A heap of a given size whose readings take a given time."""

    class Heap:
        used_bytes, cost_s, readings = 0, 0.0, 0

        def read(self):
            self.readings += 1
            time.sleep(self.cost_s)
            return self.used_bytes

    heap = Heap()
    monkeypatch.setattr(event_budget, "heap_bytes", heap.read)
    return heap


def test_the_heap_is_not_read_once_no_window_follows(heap):
    watch = EventWatch(lambda: None)
    watch.start()
    watch.profiler_started(1000)
    assert watch.step_started() == 0
    watch.profiler_stopped(for_good=True)
    watch._thread.join(10)
    assert not watch._thread.is_alive()
    readings = heap.readings
    assert watch.step_started() is None
    assert heap.readings == readings
    watch.stop()


def test_plain_steps_spend_little_time_on_slow_readings(heap):
    watch = EventWatch(lambda: None)
    watch.profiler_started(1000)
    watch.profiler_stopped(for_good=False)
    heap.cost_s = 0.01
    watch._read_s = 0.0
    began_s, readings = time.monotonic(), heap.readings
    while heap.readings < readings + 3:
        watch.step_started()
    assert time.monotonic() - began_s >= 2 * PLAIN_READ_TIMES * heap.cost_s


def test_a_window_that_starts_while_the_watch_waits_is_watched_at_once(heap):
    heap.cost_s = 0.4  # the watch would wait for twenty seconds
    exceeded = threading.Event()
    watch = EventWatch(exceeded.set)
    watch.start()
    watch.profiler_stopped(for_good=False)
    while heap.readings < 3:
        time.sleep(0.01)
    heap.cost_s = 0.0
    watch.profiler_started(1000)
    heap.used_bytes = 2000 * BYTES_PER_EVENT
    assert exceeded.wait(10)
    watch.stop()


def test_a_heap_that_cannot_be_read_counts_nothing(monkeypatch):
    monkeypatch.setattr(event_budget, "heap_bytes", lambda: None)
    watch = EventWatch(lambda: None)
    watch.start()
    watch.profiler_started(1000)
    assert watch.step_started() is None
    assert watch._thread.ident is None
    watch.stop()
