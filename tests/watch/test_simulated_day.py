"""A day of watching with faults and kills, in simulated time: rows are right, and missing seconds have a reason.

The readings are functions of the time (tests/support/watch/simulated_day.py), which the tests compare with the rows.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpulab.watch.history import GpuHistory
from gpulab.watch.schema import HOURS, MINUTES, SECONDS
from tests.support import nvml_standin
from tests.support.watch import simulated_day as day

# One process makes what its tests look at.
pytestmark = [pytest.mark.xdist_group("simulated day"), pytest.mark.full]
SCRIPT = Path(day.__file__)
KILLED = -signal.SIGKILL


def live_through(folder, *, hour_s, life_s, hours=24, speed=0, pause_s=90):
    """Run the watch until the day is over; restart it after each kill, after a pause. Return the number of kills."""
    library = nvml_standin.build(folder)
    database = folder / "watch.sqlite"
    start_s, end_s = day.EPOCH_S, day.EPOCH_S + hours * hour_s
    environment = {**os.environ, "PYTHONPATH": str(day.ROOT)}
    kills = 0
    while start_s < end_s:
        numbers = (start_s, end_s, hour_s, speed, life_s, kills)
        command = [sys.executable, str(SCRIPT), str(library), str(database), *map(str, numbers)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=3000)
        assert done.returncode in (0, KILLED), done.stderr[-3000:]
        if done.returncode == 0:
            break
        kills += 1
        last = sqlite3.connect(database).execute("SELECT max(at_s) FROM device_second").fetchone()[0] or start_s
        start_s = last + pause_s
    return kills


@pytest.fixture(scope="module")
def short_day(tmp_path_factory):
    """A day of 24 hours of two minutes each, with kills."""
    folder = tmp_path_factory.mktemp("short")
    kills = live_through(folder, hour_s=120, life_s=0.8, pause_s=7)
    with GpuHistory(folder / "watch.sqlite") as history:
        yield history, kills, folder


@pytest.fixture
def gpus(short_day):
    return [device for device in short_day[0].devices() if not device.is_host]


def whole(history, device, resolution):
    return history.device_series(device.id, day.EPOCH_S, day.EPOCH_S + 10**6, resolution)


def wrong_rows(history, gpus):
    """The rows of seconds that do not have the values of their second."""
    wrong = []
    for number, gpu in enumerate(gpus):
        series = whole(history, gpu, SECONDS)
        truth = {
            "util_frac": [day.util_percent(number, at_s) / 100 for at_s in series.at_s.tolist()],
            "power_w": [day.power_mw(number, at_s) / 1e3 for at_s in series.at_s.tolist()],
            "memory_used_bytes": [day.memory_bytes(number, at_s) for at_s in series.at_s.tolist()],
            "throttle_bits": [day.throttle_bits(number, at_s) for at_s in series.at_s.tolist()],
            "energy_j": [at_s * (number + 1) for at_s in series.at_s.tolist()],
        }
        for column, values in truth.items():
            differs = ~(np.isclose(series[column], values) | np.isnan(series[column]))
            wrong += [(gpu.name, column, int(at_s)) for at_s in series.at_s[differs]]
    return wrong


def unexplained_seconds(history, gpus):
    """Seconds between the first and the last reading that have neither a row nor a gap."""
    first_s, last_s = (whole(history, history.devices()[-1], SECONDS).at_s[index] for index in (0, -1))
    missing = []
    for gpu in gpus:
        explained = set(whole(history, gpu, SECONDS).at_s.tolist())
        for gap in history.gaps(0, 10**11):
            if gap.device in (None, gpu.id):
                explained.update(range(gap.from_s, gap.until_s))
        missing += [(gpu.name, at_s) for at_s in range(first_s, last_s) if at_s not in explained]
    return missing


def test_the_watch_was_killed_many_times(short_day):
    assert short_day[1] >= 2


def test_no_row_has_the_values_of_another_second(short_day, gpus):
    assert len(gpus) == day.GPUS
    assert wrong_rows(short_day[0], gpus) == []


def test_every_missing_second_has_a_reason(short_day, gpus):
    assert unexplained_seconds(short_day[0], gpus) == []


def test_most_seconds_have_a_reading(short_day, gpus):
    for gpu in gpus:
        series = whole(short_day[0], gpu, SECONDS)
        assert len(series) > 0.75 * 24 * 120


def test_each_fault_is_named(short_day, gpus):
    history = short_day[0]
    reasons = {gap.why for gap in history.gaps(0, 10**11)} | {event.text for event in history.events(0, 10**11)}
    faults = {
        day.Day.lost[0]: "fallen off the bus",
        day.Day.no_driver[0]: "not loaded",
        day.Day.permission[0]: "administrators only",
        day.Day.forward: "set forward by 12",
        day.Day.back: "set back by 6",
    }
    kills = [gap for gap in history.gaps(0, 10**11) if gap.why == "the watch was killed"]
    assert len(kills) >= 2
    for hour, text in faults.items():
        at_s = day.EPOCH_S + hour * 120
        nobody_watched = any(gap.from_s - 15 <= at_s <= gap.until_s + 15 for gap in kills)
        assert nobody_watched or any(text in reason for reason in reasons), (text, reasons)


def test_only_the_lost_gpu_has_a_gap_while_it_is_lost(short_day, gpus):
    from_s, until_s = (day.EPOCH_S + hour * 120 for hour in day.Day.lost)
    lost = [gap for gap in short_day[0].gaps(from_s + 1, until_s) if "bus" in gap.why]
    assert {gap.device for gap in lost} == {gpus[1].id}


def test_minutes_are_the_means_and_extremes_of_their_seconds(short_day, gpus):
    history = short_day[0]
    for gpu in gpus:
        seconds, minutes = whole(history, gpu, SECONDS), whole(history, gpu, MINUTES)
        assert len(minutes) > 30
        for index, start_s in enumerate(minutes.at_s.tolist()):
            inside = (seconds.at_s >= start_s) & (seconds.at_s < start_s + 60)
            assert minutes["covered_s"][index] == inside.sum()
            values = seconds["util_frac"][inside]
            assert minutes["util_frac"][index] == pytest.approx(np.nanmean(values))
            assert minutes["util_frac_min"][index] == np.nanmin(values)
            assert minutes["util_frac_max"][index] == np.nanmax(values)
            assert minutes["energy_j"][index] == np.nanmax(seconds["energy_j"][inside])
            assert minutes["throttle_bits"][index] == (0x4 if (seconds["throttle_bits"][inside] == 4).any() else 0)


def test_hours_add_up_to_their_minutes(short_day, gpus):
    history = short_day[0]
    minutes, hours = whole(history, gpus[0], MINUTES), whole(history, gpus[0], HOURS)
    assert hours["covered_s"].sum() == minutes["covered_s"].sum()
    assert hours["held_s"].sum() == minutes["held_s"].sum()


def test_processes_have_the_seconds_in_which_they_ran(short_day, gpus):
    history = short_day[0]
    series = history.process_series(0, 10**11, SECONDS)
    processes = history.processes()
    for at_s, number, device in zip(
        series.at_s.tolist(), series["process"].tolist(), series["device"].tolist(), strict=False
    ):
        gpu = [each.id for each in gpus].index(device)
        assert processes[number].pid == day.pid_of(gpu, at_s, 120)


@pytest.mark.night
def test_a_day_of_real_hours_with_a_kill_in_each(tmp_path):
    kills = live_through(tmp_path, hour_s=3600, life_s=12.0)
    with GpuHistory(tmp_path / "watch.sqlite") as history:
        gpus = [device for device in history.devices() if not device.is_host]
        assert kills >= 5
        assert wrong_rows(history, gpus) == []
        assert unexplained_seconds(history, gpus) == []
