"""Who else wants the cores: on a virtual GPU it is no time of the program's own."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulab.virtual.device.recorder import OpRecorder
from gpulab.virtual.host import core_waits
from gpulab.virtual.host.core_waits import LONG_NS, STALE_NS, CoreWaits

RIVALS = 3
WORK_NS = 100_000_000


@pytest.fixture
def crowded():
    """This thread shares one core with others that never rest."""
    if not hasattr(os, "sched_setaffinity") or not Path("/proc/thread-self/schedstat").exists():
        pytest.skip("nobody tells here how long a thread waited for a core")
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    busy = "import sys; sys.stdout.write('.'); sys.stdout.flush()\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", busy], stdout=subprocess.PIPE) for _ in range(RIVALS)]
    try:
        for rival in rivals:
            rival.stdout.read(1)
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        for rival in rivals:
            rival.kill()
            rival.communicate()


def worked(turns=1):
    """Compute for that long of this thread's CPU time; what it took of it, and of the clock."""
    begun_ns, until_ns = time.perf_counter_ns(), time.thread_time_ns() + WORK_NS // turns
    while time.thread_time_ns() < until_ns:
        pass
    return time.perf_counter_ns() - begun_ns


@pytest.mark.alone("measures how long this thread waits for a core of this machine")
def test_what_the_program_waited_for_a_core_is_none_of_its_own_time(crowded):
    recorder = OpRecorder(lambda record: None)
    recorder.entered()
    recorder.left()
    wall_ns = worked()
    recorder.entered()
    assert wall_ns > 2 * WORK_NS, "the others had the core in between"
    assert 0.9 * WORK_NS < recorder.take_python_ns() < 0.6 * wall_ns
    recorder.close()


@pytest.mark.alone("measures how long this thread waits for a core of this machine")
def test_waits_inside_of_pytorch_are_not_taken_off_what_the_program_does_afterwards(crowded):
    recorder, own_ns = OpRecorder(lambda record: None), 0
    for _ in range(10):
        recorder.entered()
        worked(10)
        recorder.left()
        recorder.take_python_ns()
        time.sleep(0.01)  # a file that is read, say
        recorder.entered()
        own_ns += recorder.take_python_ns()
        recorder.left()
    assert own_ns >= 0.9 * 10 * 10_000_000
    recorder.close()


@pytest.mark.alone("measures how long this thread waits for a core of this machine")
def test_real_work_of_the_cpu_takes_what_it_takes_without_the_others(crowded):
    recorder = OpRecorder(lambda record: None)
    begun_ns = recorder.start_cpu_timer()
    wall_ns = worked()
    assert 0.9 * WORK_NS < recorder.elapsed_cpu_ns(begun_ns) < 0.6 * wall_ns
    recorder.close()


@pytest.fixture
def told(monkeypatch):
    """A system that tells the waits as this list has them, one after the other."""
    waits = [0]

    class Told(CoreWaits):
        def waited_ns(self):
            return waits.pop(0) if len(waits) > 1 else waits[0]

    now = [0]
    monkeypatch.setattr(core_waits.time, "perf_counter_ns", lambda: now[0])
    return Told, waits, now


def test_a_stretch_is_shorter_by_the_waits_since_it_began(told):
    kind, waits, now = told
    clock = kind()
    now[0], waits[:] = STALE_NS + 1, [700_000]
    assert clock.begin() == now[0]
    waits[:] = [900_000]
    assert clock.end(1_000_000) == 800_000


def test_a_short_stretch_is_taken_as_it_is_and_nothing_is_asked(told):
    kind, waits, _ = told
    clock = kind()
    waits[:] = [5_000_000]
    assert clock.end(LONG_NS - 1) == LONG_NS - 1
    assert clock.end(LONG_NS) == 0


def test_where_nobody_tells_the_waits_all_time_is_the_program_s(monkeypatch):
    def missing(*given):
        raise FileNotFoundError

    monkeypatch.setattr(os, "open", missing)
    clock = CoreWaits()
    assert clock.end(7_000_000) == 7_000_000
    clock.close()


def test_a_closed_one_takes_nothing_off():
    clock = CoreWaits()
    clock.close()
    clock.close()
    assert clock.end(7_000_000) == 7_000_000


def test_work_takes_at_least_the_cpu_time_of_its_thread(monkeypatch):
    recorder = OpRecorder(lambda record: None)
    monkeypatch.setattr(CoreWaits, "end", lambda self, took_ns: 0)  # a wait shortly before is as long as the work
    start, before_ns = recorder.start_cpu_timer(), time.thread_time_ns()
    while time.thread_time_ns() - before_ns < 2_000_000:
        pass
    assert recorder.elapsed_cpu_ns(start) >= 2_000_000
    recorder.close()


@pytest.fixture
def clock():
    """Waits of this thread."""
    waits = CoreWaits()
    if waits._file < 0:
        pytest.skip("this system has no scheduler statistics")
    yield waits
    waits.close()


def test_an_ended_thread_has_no_more_waits(clock, monkeypatch):
    def fail(*arguments):
        raise ProcessLookupError

    monkeypatch.setattr(os, "pread", fail)
    assert clock.waited_ns() == 0


@pytest.mark.parametrize("kind", [TimeoutError, ConnectionError, OSError])
def test_an_exception_of_a_signal_handler_is_not_taken_for_an_ended_thread(clock, kind, monkeypatch):
    def handle(number, frame):
        raise kind

    def interrupted(*arguments):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with monkeypatch.context() as patches:
            patches.setattr(os, "pread", interrupted)
            with pytest.raises(kind):
                clock.waited_ns()
    finally:
        signal.signal(signal.SIGUSR1, before)
