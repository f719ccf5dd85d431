"""Alerts on scripted situations: each fires once and at the right second, and near misses stay silent.

A situation is a sequence of segments on one GPU of 80 GiB: seconds, and the readings that change from then on. Times
are those at which a person with the same readings would say so; `slack` is the part of the window in which a mean
decides (a fifth of it).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest

from gpulab.errors import RunError
from gpulab.sensors.nvidia.gpu_processes import GpuProcess
from gpulab.watch.alerts import parse_alert
from gpulab.watch.alerts.engine import AlertEngine, SubjectMeasures
from gpulab.watch.alerts.measures import Measure
from gpulab.watch.alerts.watch_alerts import WatchAlerts
from gpulab.watch.observation import Device, DeviceReading, Observation
from gpulab.watch.process_names import ProcessName
from tests.support.tiers import every_nth, tiered_product

GIB = 2**30
TOTAL_GIB = 80.0
START_S = 1_790_000_000
GPU = Device(uid="GPU-1", kind="gpu", name="H100", memory_bytes=TOTAL_GIB * GIB)
NAME = ProcessName(pid=2**30, started_s=1.0, user="ada", name="train.py", job="1")
CALM = {
    "util": 0.9,
    "gib": 40.0,
    "celsius": 60.0,
    "watts": 300.0,
    "bits": 0,
    "errors": 0.0,
    "held": True,
    "lost": False,
}
HEAT, POWER_CAP, SLOWDOWN = 0x20, 0x4, 0x8
HELD = "idle < 30 % for 5 min while memory is held"
NAN = math.nan


@dataclass
class Sent:
    """What WatchAlerts delivered."""

    notices: list

    def send(self, notice):
        self.notices.append(notice)

    def tick(self, at_s):
        pass


def readings(segments):
    """One dict of readings per second; a callable is a function of the seconds since its segment began."""
    state = dict(CALM)
    for seconds, changes in segments:
        state.update(changes)
        for second in range(seconds):
            yield {name: value(second) if callable(value) else value for name, value in state.items()}


def observation(at_s, now):
    if now["lost"]:
        reading = DeviceReading(device=GPU, values={}, why="the GPU has fallen off the bus")
        return Observation(at_s=at_s, readings=(reading,))
    values = {
        "util_frac": now["util"], "memory_used_bytes": now["gib"] * GIB, "temperature_c": now["celsius"],
        "power_w": now["watts"], "throttle_bits": now["bits"], "ecc_uncorrected": now["errors"],
    }  # fmt: skip
    holder = GpuProcess(pid=NAME.pid, memory_bytes=now["gib"] * GIB, sm_frac=now["util"])
    held = now["held"]
    processes = None if held is None else (holder,) if held else ()
    return Observation(at_s=at_s, readings=(DeviceReading(device=GPU, values=values, processes=processes),))


def fire(text, *segments, start_s=START_S):
    """The seconds at which the alert begins and those at which it ends, and the notices."""
    sent, records = Sent([]), []
    watch = WatchAlerts([parse_alert(text)], sent, lambda *record: records.append(record))
    for second, now in enumerate(readings(segments)):
        watch(observation(start_s + second, now), {NAME.pid: NAME})
    assert len(records) == len(sent.notices)
    begins = [notice.at_s - start_s for notice in sent.notices if not notice.ended]
    ends = [notice.at_s - start_s for notice in sent.notices if notice.ended]
    return begins, ends, sent.notices


def ramp(start, per_second):
    return lambda second: start + per_second * second


def every(period, low, high, share):
    """`high` during a share of each period, `low` otherwise."""
    return lambda second: high if second % period < share * period else low


# The alert, its situation, when it must fire, and how many seconds later or earlier are right, too.
FIRES = {
    "idle after training": (HELD, [(600, {}), (900, {"util": 0.0})], 900, 60),
    "idle from the start": (HELD, [(900, {"util": 0.02})], 300, 2),
    "half a percent below": (HELD, [(600, {}), (900, {"util": 0.295})], 900, 3),
    "short peaks in between": (HELD, [(900, {"util": every(60, 0.05, 1.0, 0.1)})], 300, 60),
    "waiting for data": (HELD, [(900, {"util": every(10, 0.0, 0.9, 0.25)})], 300, 60),
    "memory is held late": (HELD, [(600, {"util": 0.0, "held": False}), (900, {"held": True})], 900, 20),
    "readings fail for some seconds": (HELD, [(200, {"util": 0.1}), (10, {"util": NAN}), (900, {"util": 0.1})], 300, 5),
    "validation for ten minutes": (HELD, [(3600, {}), (600, {"util": 0.2}), (3600, {"util": 0.9})], 3900, 60),
    "utilisation by its name": ("utilisation < 50% for 2 min", [(300, {}), (300, {"util": 0.4})], 420, 24),
    "without memory": ("idle < 10 % for 10 min", [(100, {}), (1200, {"util": 0.0, "held": False})], 700, 120),
    "memory nearly full": ("memory > 95 % for 1 min", [(300, {}), (300, {"gib": 78.0})], 360, 12),
    "memory jumps": ("memory above 90 %", [(100, {}), (200, {"gib": 79.9})], 160, 12),
    "leak": ("memory will run out in 20 min", [(5400, {"gib": ramp(20.0, 0.01)})], 4800, 15),
    "fast leak": ("memory will run out in 20 min", [(900, {}), (1500, {"gib": ramp(40.0, 0.02)})], 1700, 15),
    "leak in steps": ("memory will run out in 30 min",
                      [(900, {}), (2400, {"gib": lambda second: 40 + 1.0 * (second // 60)})], 1500, 90),
    "leak late in the day": ("memory will run out in 10 min",
                             [(7200, {}), (3600, {"gib": ramp(40.0, 0.012)})], 7200 + 2734, 15),
    "hot": ("temperature > 85 °C for 1 min", [(600, {}), (600, {"celsius": 88.0})], 660, 12),
    "hot without unit sign": ("temperature > 85 C", [(600, {}), (600, {"celsius": 88.0})], 660, 12),
    "hardly too hot": ("temperature > 85 °C for 5 min", [(10, {}), (900, {"celsius": 85.5})], 310, 60),
    "power": ("power > 600 W for 10 s", [(600, {}), (60, {"watts": 690.0})], 606, 5),
    "throttled by heat": ("throttled", [(600, {}), (600, {"bits": HEAT})], 660, 12),
    "throttled by the board": ("throttled for 2 min", [(600, {}), (600, {"bits": SLOWDOWN})], 720, 24),
    "throttled half the time and more": ("throttled for 5 min", [(60, {}), (900, {"bits": every(10, 0, HEAT, 0.7)})],
                                         360, 60),
    "heat alone": ("throttled by heat", [(600, {}), (600, {"bits": HEAT | POWER_CAP})], 660, 12),
    "power cap": ("throttled by power for 5 min", [(600, {}), (900, {"bits": POWER_CAP})], 900, 60),
    "memory error": ("memory errors", [(600, {}), (600, {"errors": 1.0})], 600, 0),
    "ecc by its other name": ("ecc errors", [(600, {"errors": 4.0}), (60, {"errors": 6.0})], 600, 0),
    "gpu lost": ("gpu lost", [(600, {}), (600, {"lost": True})], 660, 12),
    "no readings for long": ("no readings for 5 min", [(600, {}), (900, {"lost": True})], 900, 60),
    "idle, then lost": (HELD, [(700, {"util": 0.0}), (600, {"lost": True})], 300, 2),
}  # fmt: skip

SILENT = {
    "idle without memory": (HELD, [(600, {}), (1800, {"util": 0.0, "held": False})]),
    "idle for four minutes": (HELD, [(600, {}), (235, {"util": 0.0}), (900, {"util": 0.9})]),
    "just above": (HELD, [(1800, {"util": 0.305})]),
    "bursts of a minute": (HELD, [(3600, {"util": every(120, 0.0, 1.0, 0.5)})]),
    "idle half of five minutes, again and again": (HELD, [(3600, {"util": every(300, 0.0, 0.9, 0.5)})]),
    "never measured": (HELD, [(1800, {"util": NAN})]),
    "measured now and then": (HELD, [(1800, {"util": every(10, NAN, 0.0, 0.5)})]),
    "processes are not listed": (HELD, [(1800, {"util": 0.0, "held": None})]),
    "memory released in between": (HELD, [(200, {"util": 0.0}), (60, {"held": False}), (200, {"held": True}),
                                          (600, {"util": 0.9})]),
    "lost while idle": (HELD, [(200, {"util": 0.0}), (1800, {"lost": True})]),
    "loading for four minutes": (HELD, [(230, {"util": 0.0}), (1800, {"util": 0.95})]),
    "memory at its limit": ("memory > 95 %", [(1800, {"gib": 76.0})]),
    "memory for a moment": ("memory > 95 % for 1 min", [(300, {}), (30, {"gib": 79.0}), (300, {"gib": 40.0})]),
    "memory unknown": ("memory > 10 %", [(900, {"gib": NAN})]),
    "loading a model": ("memory will run out in 20 min", [(300, {"gib": 1.0}), (60, {"gib": ramp(1.0, 1.2)}),
                                                          (3600, {"gib": 73.0})]),
    "cache that fills and stops": ("memory will run out in 20 min", [(1500, {"gib": ramp(10.0, 0.02)}),
                                                                     (3600, {"gib": 40.0})]),
    "sawtooth": ("memory will run out in 20 min", [(3600, {"gib": lambda second: 30 + 0.2 * (second % 200)})]),
    "slow growth, enough room": ("memory will run out in 20 min", [(3600, {"gib": ramp(10.0, 0.004)})]),
    "nearly full and flat": ("memory will run out in 20 min", [(3600, {"gib": 79.0})]),
    "two large batches": ("memory will run out in 20 min", [(600, {"gib": 20.0}), (300, {"gib": 40.0}),
                                                            (3600, {"gib": 60.0})]),
    "warm": ("temperature > 85 °C", [(1800, {"celsius": 85.0})]),
    "hot for seconds": ("temperature > 85 °C for 1 min",
                        [(600, {}), (20, {"celsius": 95.0}), (600, {"celsius": 70.0})]),
    "full power, within the limit": ("power > 700 W", [(1800, {"watts": 699.0})]),
    "power cap of a busy GPU": ("throttled", [(1800, {"bits": POWER_CAP})]),
    "idle bit": ("throttled", [(1800, {"bits": 0x1, "util": 0.0})]),
    "heat for some seconds": ("throttled for 1 min", [(600, {}), (20, {"bits": HEAT}), (600, {"bits": 0})]),
    "heat now and then": ("throttled for 5 min", [(1800, {"bits": every(60, 0, HEAT, 0.2)})]),
    "old memory errors": ("memory errors", [(1800, {"errors": 12.0})]),
    "counter begins anew": ("memory errors", [(600, {"errors": 12.0}), (600, {"errors": 0.0})]),
    "lost for some seconds": ("gpu lost", [(600, {}), (20, {"lost": True}), (600, {"lost": False})]),
}  # fmt: skip


def test_there_are_thirty_of_each():
    assert len(FIRES) >= 30
    assert len(SILENT) >= 30


@pytest.mark.parametrize("name", every_nth(FIRES, 2))
def test_an_alert_fires_once_at_the_right_time(name):
    text, segments, expected_s, slack_s = FIRES[name]
    begins, _, _ = fire(text, *segments)
    assert len(begins) == 1
    assert abs(begins[0] - expected_s) <= slack_s, begins


@pytest.mark.parametrize("name", every_nth(SILENT, 2))
def test_a_near_miss_stays_silent(name):
    text, segments = SILENT[name]
    begins, ends, _ = fire(text, *segments)
    assert (begins, ends) == ([], [])


def test_an_alert_ends_when_the_work_goes_on_and_fires_again_after_an_hour():
    day = [(600, {"util": 0.0}), (600, {"util": 0.9})] * 8
    begins, ends, _ = fire(HELD, *day)
    assert len(begins) == len(ends)
    assert begins[0] == pytest.approx(300, abs=2)
    assert [later - earlier >= 3600 for earlier, later in itertools.pairwise(begins)] == [True] * (len(begins) - 1)
    assert len(begins) == 3


def test_values_around_the_limit_do_not_fire_again_and_again():
    begins, ends, _ = fire("utilisation < 30 % for 1 min", (7200, {"util": every(240, 0.29, 0.31, 0.5)}))
    assert (len(begins), ends) == (1, [])


def test_a_clock_that_was_set_back_starts_the_window_anew():
    sent = Sent([])
    watch = WatchAlerts([parse_alert(HELD)], sent, lambda *record: None)
    now = {**CALM, "util": 0.0}
    for second in [*range(0, 250), *range(50, 290)]:
        watch(observation(START_S + second, now), {NAME.pid: NAME})
    assert sent.notices == []


def test_a_notice_names_the_gpu_the_process_and_what_to_do():
    _, _, notices = fire(HELD, (900, {"util": 0.02}))
    text = notices[0].text()
    for part in ("GPU 0 (H100)", "utilisation 2 %", "train.py of ada", "First: "):
        assert part in text


@pytest.mark.parametrize("measure", Measure)
def test_every_measure_has_an_advice_and_words_that_are_read_back(measure):
    from gpulab.watch.alerts.alert import Alert
    from gpulab.watch.alerts.notice import ADVICE

    assert ADVICE[measure]
    limit = None if measure.value.is_flag else 0.4 if measure.value.units[0][0] == "%" else 600.0
    alert = Alert(measure=measure, limit=limit)
    assert parse_alert(alert.text) == alert


@pytest.mark.parametrize(
    "text",
    ["", "idle", "idle > 30 %", "idle < 30", "idle < thirty %", "speed > 3 %", "throttled > 3 %", "memory > 3 GiB",
     "idle < 30 % for 5 parsecs", "idle < 30 % for 5 days", "temperature > 80 %", "memory will run out in 5 GiB",
     "idle < 1.2.3 %"],
)  # fmt: skip
def test_words_that_are_no_alert_are_refused_with_examples(text):
    with pytest.raises(RunError):
        parse_alert(text)


@pytest.mark.parametrize(
    ("text", "measure", "limit", "for_s", "held"),
    [
        ("idle < 30 % for 5 min while memory is held", Measure.UTILISATION, 0.3, 300, True),
        ("Waiting for data > 40 %", Measure.DATA_WAIT, 0.4, 60, False),
        ("throttled", Measure.THROTTLED, 0.5, 60, False),
        ("memory will run out in 20 min", Measure.MEMORY_TIME_LEFT, 1200, 0, False),
        ("step time +20 % against history", Measure.STEP_TIME_CHANGE, 0.2, 0, False),
        ("utilization below 12.5% for 90 s", Measure.UTILISATION, 0.125, 90, False),
    ],
)
def test_the_words_of_the_documentation_are_read(text, measure, limit, for_s, held):
    alert = parse_alert(text)
    assert (alert.measure, alert.while_held) == (measure, held)
    assert (alert.limit, alert.for_s) == (pytest.approx(limit), for_s)


@pytest.mark.parametrize(
    ("period_s", "jitter_s", "minutes"), tiered_product([1, 5, 12, 15, 20, 30, 60], [0.0, 0.3], [1, 5], strength=1)
)
def test_an_alert_begins_ends_and_begins_again_whatever_the_period_of_the_readings(period_s, jitter_s, minutes):
    alert = parse_alert(f"idle < 30 % for {minutes} min")
    engine = AlertEngine([alert], period_s=period_s)
    changes = []
    for number in range(int(6 * 3600 / period_s)):
        at_s = number * period_s + (jitter_s if number % 2 else 0)
        busy = 0.9 if (at_s // 3600) % 2 else 0.05  # idle in every other hour
        facts = SubjectMeasures(subject="gpu 0", values={alert.measure: busy})
        changes += [(firing.ended, at_s / 3600) for firing in engine.update(at_s, facts)]
    assert [ended for ended, _ in changes] == [False, True, False, True, False, True]
    for (_, hour), expected in zip(changes, range(6), strict=True):
        assert expected <= hour <= expected + (minutes * 60 + 3 * period_s) / 3600
