"""The file of the history: damaged, of another version, too large, too old; and what is read from it."""

from __future__ import annotations

import math
import sqlite3

import pytest

from gpulab.errors import StoreError
from gpulab.sensors.nvidia.gpu_processes import GpuProcess
from gpulab.watch.history import GpuHistory, fitting_resolution
from gpulab.watch.observation import Device, DeviceReading, Observation
from gpulab.watch.process_names import ProcessName
from gpulab.watch.schema import DAY_S, HOURS, MINUTES, READINGS, SECONDS
from gpulab.watch.writer import HistoryWriter

GPU = Device(uid="GPU-1", kind="gpu", name="H100", memory_bytes=80 * 2**30)
NAME = ProcessName(pid=77, started_s=5.0, user="ada", name="train.py", job="1")
START_S = 1_790_000_000 // 3600 * 3600


RUNNING = (GpuProcess(pid=77, memory_bytes=2**30, sm_frac=0.4),)


def observation(at_s, util=0.5, processes=RUNNING):
    reading = DeviceReading(device=GPU, values={"util_frac": util, "power_w": 300.0}, processes=processes)
    return Observation(at_s=at_s, readings=(reading,))


def written(path, seconds, **options):
    """A history with one reading per second."""
    writer = HistoryWriter(path, "node", **options)
    writer.begin(START_S)
    for second in seconds:
        writer.append(observation(START_S + second), {77: NAME})
    return writer


@pytest.fixture
def path(tmp_path):
    return tmp_path / "watch.sqlite"


def test_what_is_written_is_read(path):
    written(path, range(10)).close()
    with GpuHistory(path) as history:
        (device,) = history.devices()
        series = history.device_series(device.id, START_S, START_S + 10, SECONDS)
        assert (device.uid, device.name, device.memory_bytes) == ("GPU-1", "H100", 80 * 2**30)
        assert series["util_frac"].tolist() == [0.5] * 10
        (process,) = history.processes().values()
        assert (process.user, process.name, process.pid) == ("ada", "train.py", 77)


def test_what_was_not_measured_is_nan(path):
    written(path, range(3)).close()
    with GpuHistory(path) as history:
        series = history.device_series(1, START_S, START_S + 3, SECONDS)
    unread = [column.name for column in READINGS if column.name not in ("util_frac", "power_w")]
    assert all(math.isnan(series[name][0]) for name in unread)


def test_a_second_is_written_once(path):
    writer = written(path, range(5))
    writer.append(observation(START_S + 4, util=0.9), {77: NAME})
    writer.close()
    with GpuHistory(path) as history:
        assert history.device_series(1, START_S, START_S + 10, SECONDS)["util_frac"].tolist() == [0.5] * 5


def test_the_current_hour_is_shown_before_it_ends(path):
    writer = written(path, range(90))
    writer.maintain(START_S + 90)
    writer.close()
    with GpuHistory(path) as history:
        minutes = history.device_series(1, START_S, START_S + 3600, MINUTES)
        hours = history.device_series(1, START_S, START_S + 3600, HOURS)
        processes = history.process_series(START_S, START_S + 3600, HOURS)
    assert minutes["covered_s"].tolist() == [60, 30]
    assert hours["covered_s"].tolist() == [90]
    assert (processes["covered_s"].tolist(), processes["memory_bytes"].tolist()) == ([90], [2**30])


def test_held_and_idle_seconds_are_counted(path):
    writer = HistoryWriter(path, "node")
    for second in range(60):
        holders = () if second < 20 else (GpuProcess(pid=77, memory_bytes=1.0, sm_frac=0.0),)
        writer.append(observation(START_S + second, util=0.0 if second >= 40 else 0.8, processes=holders), {77: NAME})
    writer.maintain(START_S + 61)
    writer.close()
    with GpuHistory(path) as history:
        minute = history.device_series(1, START_S, START_S + 60, MINUTES)
    assert (minute["covered_s"][0], minute["held_s"][0], minute["held_idle_s"][0]) == (60, 40, 20)


def test_an_unknown_utilisation_is_not_idle(path):
    writer = HistoryWriter(path, "node")
    for second in range(60):
        writer.append(observation(START_S + second, util=math.nan), {77: NAME})
    writer.close(START_S + 61)
    with GpuHistory(path) as history:
        assert history.device_series(1, START_S, START_S + 60, MINUTES)["held_idle_s"][0] == 0


def test_seconds_are_stored_for_a_day_and_minutes_longer(path):
    writer = written(path, range(0, 120))
    writer.maintain(START_S + 120)
    writer.maintain(START_S + DAY_S + 60)
    writer.close()
    with GpuHistory(path) as history:
        assert len(history.device_series(1, START_S, START_S + 1000, SECONDS)) == 60
        assert len(history.device_series(1, START_S, START_S + 1000, MINUTES)) == 2


def test_a_database_that_is_too_large_loses_its_oldest_seconds(path):
    writer = written(path, range(0, 3 * 3600, 2), max_bytes=250_000)
    sizes = []
    for _ in range(4):  # it loses an hour at a time
        writer.maintain(START_S + 3 * 3600)
        sizes.append(writer.size_bytes())
    writer.close()
    assert sizes[-1] < sizes[0]
    assert sizes[-1] < 350_000
    with GpuHistory(path) as history:
        assert history.device_series(1, START_S, START_S + 10**5, SECONDS).at_s[0] >= START_S + 3600
        assert len(history.device_series(1, START_S, START_S + 10**5, MINUTES)) >= 119


def test_a_damaged_file_is_kept_aside_and_a_new_history_begins(path):
    path.write_bytes(b"not a database at all, " * 100)
    with pytest.warns(UserWarning, match="is damaged"):
        written(path, range(3)).close()
    with GpuHistory(path) as history:
        assert len(history.device_series(1, START_S, START_S + 10, SECONDS)) == 3
    assert path.with_name("watch.sqlite.damaged").read_bytes().startswith(b"not a database")


def test_a_newer_format_is_refused_and_left_alone(path):
    written(path, range(3)).close()
    connection = sqlite3.connect(path)
    connection.execute("UPDATE meta SET value = 99 WHERE key = 'version'")
    connection.commit()
    connection.close()
    for use in (lambda: HistoryWriter(path, "node"), lambda: GpuHistory(path)):
        with pytest.raises(StoreError, match="cannot be used"):
            use()


def test_a_missing_history_says_how_to_start_one(path):
    with pytest.raises(StoreError) as problem:
        GpuHistory(path)
    assert "gpulab watch" in problem.value.fix


def test_a_reader_works_while_a_writer_writes(path):
    writer = written(path, range(5))
    with GpuHistory(path) as history:
        writer.append(observation(START_S + 5), {77: NAME})
        assert len(history.device_series(1, START_S, START_S + 10, SECONDS)) == 6
    writer.close()


def test_a_locked_database_delays_readings_and_loses_none(path):
    writer = written(path, range(3))
    writer._connection.execute("PRAGMA busy_timeout = 10")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert not writer.append(observation(START_S + 3), {77: NAME})
    assert "locked" in writer.failure
    other.execute("COMMIT")
    other.close()
    assert writer.append(observation(START_S + 4), {77: NAME})
    writer.close()
    with GpuHistory(path) as history:
        assert len(history.device_series(1, START_S, START_S + 10, SECONDS)) == 5


def test_a_gap_that_goes_on_is_one_gap(path):
    writer = written(path, range(3))
    for second in range(3, 8):
        writer.gap(GPU, START_S + 3, START_S + second + 1, "lost")
        writer.event(GPU, START_S + second, "kind", "in between")
        writer.flush()
    writer.close()
    with GpuHistory(path) as history:
        (gap,) = history.gaps(0, 1e11)
    assert (gap.from_s, gap.until_s, gap.why) == (START_S + 3, START_S + 8, "lost")


@pytest.mark.parametrize(("hours", "resolution"), [(0.5, SECONDS), (24, MINUTES), (24 * 30, HOURS)])
def test_a_longer_time_is_shown_more_coarsely(hours, resolution):
    assert fitting_resolution(0, hours * 3600) is resolution
