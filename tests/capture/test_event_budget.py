"""The number of events is estimated from the heap; slow readings of it never slow the loop down for long."""

import threading
import time

import pytest

from gpulab.capture.protection import event_budget
from gpulab.capture.protection.event_budget import BYTES_PER_EVENT, PLAIN_READ_TIMES, EventWatch, likely_events


@pytest.fixture
def heap(monkeypatch):
    """A heap of a given size whose readings take a given CPU time, and wait for a given time."""

    class Heap:
        used_bytes, cost_s, wait_s, readings = 0, 0.0, 0.0, 0

        def read(self):
            self.readings += 1
            time.sleep(self.wait_s)
            end_s = time.thread_time() + self.cost_s
            while time.thread_time() < end_s:
                pass
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
    watch._thread.wait(10)
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


@pytest.mark.full
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


def test_a_reading_that_waits_for_the_gil_is_not_slow(heap):
    watch = EventWatch(lambda: None)
    heap.wait_s = 0.05
    watch.profiler_started(1000)
    assert watch._cost_s < heap.wait_s


def test_memory_that_the_program_frees_hides_no_events(heap):
    heap.used_bytes = 10**9
    watch = EventWatch(lambda: None)
    watch.profiler_started(1000)
    heap.used_bytes, watch._read_s = 10**6, 0.0
    watch.step_started()
    heap.used_bytes += 500 * BYTES_PER_EVENT
    watch._read_s = 0.0
    assert watch.step_started() == 500


def test_memory_that_was_no_events_is_not_taken_for_events_again(heap):
    alarms = []
    watch = EventWatch(lambda: alarms.append(heap.readings))
    tensor_bytes = 5000 * BYTES_PER_EVENT
    watch.profiler_started(1000)
    watch._read_s, heap.used_bytes = 0.0, tensor_bytes
    assert watch.step_started() == 5000
    watch.profiler_stopped(for_good=False, events=0)
    heap.used_bytes = 0
    watch.profiler_started(1000)
    watch.start()
    heap.used_bytes, readings = tensor_bytes + 300 * BYTES_PER_EVENT, heap.readings
    while heap.readings < readings + 5:
        time.sleep(0.01)
    assert not alarms
    heap.used_bytes += 1000 * BYTES_PER_EVENT
    while not alarms:
        time.sleep(0.01)
    watch.stop()


def test_memory_that_the_profiler_needs_to_stop_is_no_memory_of_the_program(heap):
    watch = EventWatch(lambda: None)
    watch.profiler_started(1000)
    heap.used_bytes, watch._read_s = 500 * BYTES_PER_EVENT, 0.0
    watch.step_started()
    watch.profiler_stops()
    heap.used_bytes, watch._read_s = 10**9, 0.0
    watch._heap_bytes()
    watch.profiler_stopped(for_good=False, events=500)
    assert watch._tensor_bytes == 0


def test_a_heap_that_cannot_be_read_counts_nothing(monkeypatch):
    monkeypatch.setattr(event_budget, "heap_bytes", lambda: None)
    watch = EventWatch(lambda: None)
    watch.start()
    watch.profiler_started(1000)
    assert watch.step_started() is None
    assert watch._thread.ident is None
    watch.stop()


def test_gradients_that_live_at_every_step_boundary_are_no_events(heap):
    gradients_bytes, events = 9_000_000, 600
    heap.used_bytes = 50_000_000 + gradients_bytes
    watch = EventWatch(lambda: None)
    watch.profiler_started(40_000)
    heap.used_bytes -= gradients_bytes  # zero_grad() frees them
    watch._read_s = 0.0
    watch._heap_bytes()
    for step in range(1, 4):
        heap.used_bytes = 50_000_000 + gradients_bytes + step * events * BYTES_PER_EVENT
        watch._read_s = 0.0
        assert watch.step_started() == step * events
        heap.used_bytes -= gradients_bytes
    watch.stop()


@pytest.mark.parametrize(
    ("growth", "events_per_s", "likely"),
    [
        (13_000, 37_000, 1480),  # activations of a transformer grow in 10 ms by what 13,000 events would need
        (300, 37_000, 300),
        (-5000, 37_000, 0),  # memory was freed
        (13_000, None, 13_000),  # in the first step of a window, all may be events
    ],
)
def test_memory_that_grows_within_a_step_counts_at_the_rate_of_the_steps_so_far(growth, events_per_s, likely):
    assert likely_events(growth, 0.01, events_per_s) == pytest.approx(likely)


def test_the_rate_of_events_is_that_of_the_steps_in_the_window(heap, monkeypatch):
    class Clock:
        now_s = 100.0

        def monotonic(self):
            return self.now_s

        thread_time = monotonic

    clock = Clock()
    monkeypatch.setattr(event_budget, "time", clock)
    watch = EventWatch(lambda: None)
    watch.profiler_started(40_000)
    assert watch._events_per_s is None
    for step in range(1, 4):
        clock.now_s += 0.12
        heap.used_bytes = step * 4400 * BYTES_PER_EVENT
        watch.step_started()
        assert watch._events_per_s == pytest.approx(4400 / 0.12)
    watch.profiler_started(40_000)
    assert watch._events_per_s is None
