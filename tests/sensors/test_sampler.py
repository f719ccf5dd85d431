from __future__ import annotations

import contextvars
import itertools
import math
import os
import threading
import time

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.rows import concat
from gpulab.run import Gpu
from gpulab.sensors import Sensors
from gpulab.sensors.host.process import HostSensors
from gpulab.sensors.nvidia.nvml import Nvml
from gpulab.sensors.sampler import Reader, Sampler, SamplingTimes
from tests.support import nvml_standin
from tests.support.nvml_standin import EXPECTED, LOST, NOT_SUPPORTED

MS = 1_000_000
PERIOD = 100 * MS


class Clock:
    """A clock that advances only during waits and work; it stops the sampler after this number of rounds."""

    def __init__(self, rounds: int) -> None:
        self.now_ns = 5_000 * MS
        self.rounds = rounds

    def __call__(self) -> int:
        return self.now_ns

    def wait(self, seconds: float) -> bool:
        if not self.rounds:
            return True
        self.rounds -= 1
        self.now_ns += round(seconds * 1e9)
        return False

    def sampled(self, *readers: Reader) -> Sampler:
        """Run a sampler to its end on this clock."""
        sampler = Sampler(readers, period_ns=PERIOD, clock_ns=self, steady_ns=self, wait=self.wait)
        sampler.start()
        sampler.stop()
        return sampler


def collector(ticks: list, work=lambda tick: None) -> Reader:
    def read(tick):
        ticks.append(tick)
        work(tick)

    return Reader(label="a sensor", read=read)


# The schedule.


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=50), st.integers(1, 100))
def test_every_scheduled_tick_is_served_once_or_missed(waits, period):
    schedule = SamplingTimes(first_ns=0, period_ns=period)
    now, served = 0, []
    for wait in waits:
        now = max(now + wait, schedule.due_ns)
        due = schedule.due_ns
        late = schedule.advance(now)
        served.append(due)
        assert due % period == 0
        assert late == now - due >= 0
        assert schedule.due_ns > now
    assert served == sorted(set(served))
    assert len(served) + schedule.missed == schedule.due_ns // period


# The thread, on a clock of the test's own.


def test_ticks_do_not_drift_however_long_a_reading_takes():
    clock, ticks = Clock(rounds=5), []

    def work(_):
        clock.now_ns += 30 * MS

    clock.sampled(collector(ticks, work))
    assert [tick.at_ns // MS for tick in ticks[:5]] == [5000, 5100, 5200, 5300, 5400]
    assert [tick.late_ns for tick in ticks[:5]] == [0] * 5


def sampled_with_a_pause(pause_ms):
    """Four rounds, in the second of which the reader takes so long; gives the sampler and the ticks in ms."""
    clock, ticks = Clock(rounds=4), []
    pauses = iter([0, pause_ms * MS, 0, 0, 0])

    def work(_):
        clock.now_ns += next(pauses)

    sampler = clock.sampled(collector(ticks, work))
    return sampler, [(tick.at_ns // MS, tick.late_ns // MS) for tick in ticks[:4]]


def test_a_late_tick_says_how_late_and_the_next_is_on_time_again():
    sampler, ticks = sampled_with_a_pause(160)
    assert ticks == [(5000, 0), (5100, 0), (5260, 60), (5300, 0)]
    assert sampler.missed == 0


def test_ticks_that_were_missed_are_counted_and_not_made_up_for():
    sampler, ticks = sampled_with_a_pause(1_030)
    assert ticks == [(5000, 0), (5100, 0), (6130, 930), (6200, 0)]
    assert sampler.missed == 9
    (gap,) = sampler.gaps
    assert gap.what == f"9 of {9 + sampler.ticks} sensor readings"
    assert "930 ms" in gap.why


@pytest.mark.parametrize(("rounds", "pause_ms", "reported"), [(3, 550, 0), (3, 650, 1), (99, 950, 0), (70, 950, 1)])
def test_only_many_missed_ticks_are_a_gap(rounds, pause_ms, reported):
    clock = Clock(rounds)
    pauses = itertools.chain([pause_ms * MS], itertools.repeat(0))

    def work(_):
        clock.now_ns += next(pauses)

    sampler = clock.sampled(collector([], work))
    assert sampler.missed == pause_ms // 100 - 1
    assert len(sampler.gaps) == reported


def test_a_last_reading_is_taken_unless_one_was_taken_just_now():
    clock, ticks = Clock(rounds=2), []
    sampler = Sampler([collector(ticks)], period_ns=PERIOD, clock_ns=clock, steady_ns=clock, wait=clock.wait)
    sampler._loop()
    assert len(ticks) == 2, "no time has passed since the last"
    clock.now_ns += 70 * MS
    sampler._loop()
    assert [(tick.at_ns // MS, tick.late_ns) for tick in ticks[2:]] == [(5170, 0)]


def test_a_failing_reader_affects_no_other_and_stops_after_three_failures():
    calls, ticks = [], []

    def broken(tick):
        calls.append(tick)
        raise ValueError("no such thing")

    sampler = Clock(rounds=6).sampled(Reader(label="the live panel", read=broken), collector(ticks))
    assert len(calls) == 3
    assert len(ticks) >= 6
    (gap,) = sampler.gaps
    assert gap.what == "the live panel"
    assert gap.why == "reading failed with ValueError: no such thing (3 times)"


def test_a_reader_with_occasional_failures_continues():
    calls = []

    def moody(tick):
        calls.append(tick)
        if len(calls) % 2:
            raise OSError("busy")

    sampler = Clock(rounds=8).sampled(Reader(label="a sensor", read=moody))
    assert len(calls) >= 8
    assert len(sampler.gaps) == 1


# The thread, for real: nothing here depends on how fast it is.


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_the_thread_is_gone_after_stop():
    sampler = Sampler([], period_ns=MS)
    before = threads()
    sampler.start()
    assert "gpulab-sampler" in threads()
    sampler.stop()
    sampler.stop()
    assert threads() == before


def test_stop_does_not_wait_for_the_next_tick():
    ticks = []
    first = threading.Event()
    sampler = Sampler([collector(ticks, lambda _: first.set())], period_ns=10**15)
    sampler.start()
    first.wait(10)
    sampler.stop()
    assert len(ticks) == 1


def test_a_reader_may_stop_the_sampler():
    done = threading.Event()

    def stop(_):
        sampler.stop()
        done.set()

    sampler = Sampler([Reader(label="stopping", read=stop)], period_ns=PERIOD)
    sampler.start()
    assert done.wait(10)
    sampler.stop()
    assert sampler.gaps == ()
    assert "gpulab-sampler" not in threads()


def test_the_thread_has_the_context_of_the_one_that_started_it():
    variable = contextvars.ContextVar("whose", default="nobody's")
    values = []
    sampler = Sampler([Reader(label="context", read=lambda _: values.append(variable.get()))], period_ns=MS)
    token = variable.set("the cell's")
    sampler.start()
    variable.reset(token)
    sampler.stop()
    assert set(values) == {"the cell's"}


def test_ticks_under_a_held_gil_are_late_or_missed():
    ticks = []
    sampler = Sampler([collector(ticks)], period_ns=5 * MS)
    numbers = list(range(400_000, 0, -1))
    sampler.start()
    for _ in range(8):
        sorted(numbers, key=float)  # one bytecode: the thread has to wait for all of it
    sampler.stop()
    served = [tick.at_ns - tick.late_ns for tick in ticks[:-1]]
    steps = np.diff(served)
    assert (steps > 0).all()
    assert sampler.ticks == len(ticks)


# The facade.


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    return nvml_standin.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(built, monkeypatch):
    yield from nvml_standin.installed(built, monkeypatch)


def after_ticks(count: int, **options) -> tuple[Sensors, list]:
    """Sensors after at least this number of rounds, stopped; and the value of `now()` after each round."""
    ticks, enough = [], threading.Event()

    def on_tick():
        ticks.append(sensors.latest())
        if len(ticks) >= count:
            enough.set()

    options = {"nvml": Nvml({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}), **options}
    sensors = Sensors(on_tick=on_tick, period_ns=2 * MS, **options)
    sensors.start()
    assert enough.wait(30)
    sensors.stop()
    return sensors, ticks


def not_told(sensors: Sensors) -> list[str]:
    """Subjects of the gaps, without missed ticks, which a busy machine may have, and RAPL, which some machines have."""
    return [gap.what for gap in sensors.gaps if not gap.what.endswith(("sensor readings", "CPU energy"))]


def test_rows_are_on_the_clock_of_the_run(standin, nothing_left):
    began_ns = time.time_ns()
    sensors, _ = after_ticks(3)
    ended_ns = time.time_ns()
    for rows in (sensors.gpu_rows(began_ns), sensors.host_rows(began_ns)):
        assert (rows["at_ns"] >= 0).all()
        assert (rows["at_ns"] <= ended_ns - began_ns).all()
        assert (np.diff(rows["at_ns"]) >= 0).all()
        assert (rows["late_ns"] >= 0).all()
    assert len(sensors.gpu_rows(began_ns)) == 2 * len(sensors.host_rows(began_ns))
    later = sensors.host_rows(began_ns + 7)
    assert (sensors.host_rows(began_ns)["at_ns"] - later["at_ns"] == 7).all()


def test_new_rows_are_all_rows_once(standin):
    parts = []
    sensors = Sensors(
        on_tick=lambda: parts.append(sensors.new_rows()),
        period_ns=2 * MS,
        nvml=Nvml({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}),
    )
    sensors.start()
    while len(parts) < 4:
        time.sleep(0.001)
    sensors.stop()
    parts.append(sensors.new_rows())
    for index, rows in enumerate((sensors.host_rows(0), sensors.gpu_rows(0), sensors.worker_rows(0))):
        joined = concat(rows.table, [part[index] for part in parts])
        for column in rows.columns:
            if rows.table.column(column).dtype == "words":
                assert joined.text(column).to_list() == rows.text(column).to_list()
            else:
                assert np.array_equal(joined[column], rows[column], equal_nan=True)


def test_the_driver_is_closed_when_the_sensors_have_stopped(standin):
    after_ticks(1)
    assert standin.calls("nvmlInitWithFlags") == standin.calls("nvmlShutdown") == 1


def test_each_gpu_has_its_own_rows_with_its_own_numbers(standin):
    rows = after_ticks(2)[0].gpu_rows(0)
    for gpu in range(2):
        rows_of_gpu = rows.select(rows["device"] == gpu)
        for column, (base, step) in EXPECTED.items():
            assert rows_of_gpu[column] == pytest.approx(base + gpu * step)


def test_device_indices_refer_to_the_gpus_of_the_runs_machine(standin):
    sensors, _ = after_ticks(2)
    second, first = reversed(sensors.gpus)
    swapped = sensors.gpu_rows(0, [second, first])
    assert set(swapped.select(swapped["device"] == 0)["sm_clock_mhz"]) == {1765}
    assert set(sensors.gpu_rows(0, [second])["sm_clock_mhz"]) == {1765}
    assert len(sensors.gpu_rows(0, [Gpu(index=0, name="another", uuid="GPU-x")])) == 0


def test_a_missing_gpu_sensor_is_nan_in_rows_and_none_in_readings(standin):
    standin.fault("nvmlDeviceGetUtilizationRates", NOT_SUPPORTED, gpu=1)
    sensors, readings = after_ticks(2)
    rows = sensors.gpu_rows(0)
    assert np.isnan(rows.select(rows["device"] == 1)["util_frac"]).all()
    first, second = readings[-1].gpus
    assert (first.gpu.name, first.util_frac, first.value("power_w")) == ("Standin H100", 0.61, 512.345)
    assert (first.value("memory_used_bytes"), first.gpu.memory_bytes) == (39_400_000_000, 150_000_000_000)
    assert (second.util_frac, second.value("power_w")) == (None, pytest.approx(513.456))
    assert not_told(sensors) == ["utilisation of GPU 1 (Standin H200)"]


def test_a_lost_gpu_has_no_more_rows_and_the_others_have(standin):
    standin.fault("nvmlDeviceGetUtilizationRates", LOST, gpu=0, skip=2)
    sensors, readings = after_ticks(6)
    rows = sensors.gpu_rows(0)
    assert (rows["device"] == 0).sum() == 3, "two with values and the one at which it was lost"
    assert (rows["device"] == 1).sum() >= 6
    assert readings[-1].gpus[0].util_frac is None


def test_host_samples_have_the_callers_current_line(standin):
    sensors, readings = after_ticks(3, worker_pids=lambda: [os.getpid()])
    rows = sensors.host_rows(0)
    assert set(rows["workers"]) == {1}
    assert rows["rss_bytes"][-1] == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)
    lines = {line for line in rows.text("frame").to_list() if line}
    assert any("(test_sampler.py:" in line for line in lines), lines
    assert readings[-1].workers == 1
    assert readings[-1].rss_bytes == rows["rss_bytes"][len(readings) - 1]


def test_without_a_gpu_the_host_is_still_sampled(standin):
    standin.fault("nvmlInitWithFlags", 12)
    sensors, readings = after_ticks(2)
    assert len(sensors.gpu_rows(0)) == 0
    assert len(sensors.host_rows(0)) >= 2
    assert readings[-1].gpus == ()
    assert not_told(sensors) == ["GPU sensors"]


def test_a_panel_that_fails_does_not_stop_the_sensors(standin):
    def broken():
        raise RuntimeError("comm closed")

    host, calls = HostSensors(), []
    reading, enough = host.read, threading.Event()

    def read():
        calls.append(1)
        if len(calls) > 5:
            enough.set()
        return reading()

    host.read = read
    sensors = Sensors(on_tick=broken, period_ns=2 * MS, host=host)
    sensors.start()
    assert enough.wait(30)
    sensors.stop()
    assert "the live panel" in not_told(sensors)


def test_sensors_without_samples_give_empty_rows():
    sensors = Sensors()
    assert sensors.latest().gpus == ()
    assert sensors.latest().rss_bytes is None
    assert (len(sensors.gpu_rows(0)), len(sensors.host_rows(0))) == (0, 0)
    assert sensors.gaps == ()


def test_the_first_cpu_share_is_unknown(standin):
    rows = after_ticks(1)[0].host_rows(0)
    assert math.isnan(rows["cpu_frac"][0])
