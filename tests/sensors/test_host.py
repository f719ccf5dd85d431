from __future__ import annotations

import math
import os
import resource
import subprocess
import sys
import threading
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from gpulab.columns import ValueKind
from gpulab.sensors.host import process
from gpulab.sensors.host.cgroup import Throttling, cores_allowed, memory_limit_bytes
from gpulab.sensors.host.process import HostSensor, HostSensors
from gpulab.sensors.host.threads import ThreadReader
from gpulab.sensors.host.workers import WorkerReader
from gpulab.tables import HOST_SAMPLES

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
GIB = 1024**3
Times = namedtuple("Times", "user nice system idle iowait irq softirq steal guest guest_nice")


def times(**seconds: float) -> Times:
    return Times(**{**dict.fromkeys(Times._fields, 0.0), **seconds})


def host_with(*readings: list[Times]) -> HostSensors:
    """A host with given CPU times at successive readings; the first one is read already."""
    left = iter(readings)
    host = HostSensors(cpu_times=lambda: next(left))
    host.read()
    return host


def reading(host: HostSensors) -> dict[str, float]:
    """A reading of every sensor, whichever round it is."""
    host.refresh()
    return host.read()


def test_a_sensor_is_read_in_its_rounds_and_its_value_is_repeated_meanwhile():
    host = HostSensors()
    with pytest.MonkeyPatch.context() as patch:
        rounds = iter(range(100))
        every = HostSensor(columns=("cpu_frac",), read=lambda _: (float(next(rounds)),), every=3)
        patch.setattr(process, "SENSORS", (every,))
        load = [host.read()["cpu_frac"] for _ in range(7)]
        host.refresh()
        load.append(host.read()["cpu_frac"])
    assert load == [0, 0, 0, 1, 1, 1, 2, 3]


def test_counters_and_loads_are_read_in_every_round():
    seldom = {column for sensor in process.SENSORS if sensor.every > 1 for column in sensor.columns}
    assert all(HOST_SAMPLES.column(column).value_kind is ValueKind.LEVEL for column in seldom)
    assert not any(column.endswith("_frac") for column in seldom), "a load belongs to the time since the last reading"


# CPU load.


def test_host_threads_and_workers_together_fill_each_float_column():
    floats = [column.name for column in HOST_SAMPLES.columns if column.dtype == "float64"]
    columns = [*HostSensors().read(), *ThreadReader(threading.get_ident()).read(), *WorkerReader().read(0)]
    assert sorted(columns) == sorted(floats)


def test_cpu_load_is_the_share_of_work_since_the_previous_reading():
    before = [times(user=10, idle=100), times(user=20, idle=200)]
    after = [times(user=10.3, idle=100.7), times(user=20.9, idle=200.1)]
    later = [times(user=10.8, system=0.5, idle=100.7), times(user=20.9, idle=201.1)]
    host = host_with(before, after, later)
    assert reading(host)["cpu_frac"] == pytest.approx(0.6)
    assert host.core_fracs == pytest.approx((0.3, 0.9))
    assert reading(host)["cpu_frac"] == pytest.approx(0.5)
    assert host.core_fracs == pytest.approx((1.0, 0.0))


def test_iowait_is_not_work_and_guest_time_is_not_counted_twice():
    host = host_with([times()], [times(user=0.5, guest=0.5, idle=0.25, iowait=0.25)])
    assert reading(host)["cpu_frac"] == pytest.approx(0.5)


def test_too_short_an_interval_gives_no_load():
    host = host_with([times()], [times(user=1.0, idle=1.0)], [times(user=1.01, idle=1.0)], [times(user=1.5, idle=1.5)])
    assert reading(host)["cpu_frac"] == pytest.approx(0.5)
    assert math.isnan(reading(host)["cpu_frac"])
    assert host.core_fracs == pytest.approx((0.5,)), "the last known load remains"
    assert reading(host)["cpu_frac"] == pytest.approx(0.5), "and the next share covers the whole time"


def test_counters_that_run_backwards_give_a_share_between_0_and_1():
    host = host_with([times(user=5.0, idle=5.0)], [times(user=4.9, idle=6.0)], [times(user=5.9, idle=5.9)])
    assert [reading(host)["cpu_frac"] for _ in range(2)] == [0.0, 1.0]


def test_a_new_core_gives_no_load_once():
    host = host_with([times()], [times(idle=1.0), times(idle=1.0)], [times(user=1.0, idle=1.0), times(idle=2.0)])
    assert math.isnan(reading(host)["cpu_frac"])
    assert reading(host)["cpu_frac"] == pytest.approx(0.5)


def test_iowait_is_recorded_with_the_load():
    host = host_with([times(), times()], [times(iowait=0.5, idle=0.5), times(user=0.75, iowait=0.25)])
    values = reading(host)
    assert values["iowait_frac"] == pytest.approx(0.375)
    assert values["cpu_frac"] == pytest.approx(0.375)


def test_iowait_is_unknown_on_systems_without_it():
    Mac = namedtuple("Mac", "user nice system idle")
    readings = iter([[Mac(0.0, 0.0, 0.0, 0.0)], [Mac(1.0, 0.0, 0.0, 1.0)]])
    host = HostSensors(cpu_times=lambda: next(readings))
    reading(host)
    values = reading(host)
    assert math.isnan(values["iowait_frac"])
    assert values["cpu_frac"] == pytest.approx(0.5)


# This process.


def busy_until(process_time: float) -> None:
    while time.process_time() < process_time:
        pass


def test_cpu_time_of_this_process_is_that_of_all_its_threads_and_not_of_its_children():
    host = HostSensors()
    before, clock = host.read()["process_cpu_s"], time.process_time()
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.5: pass"], check=True)
    working = threading.Thread(target=busy_until, args=(clock + 0.1,))
    working.start()
    working.join()
    grown = host.read()["process_cpu_s"] - before
    assert 0.1 <= grown < 0.5


def test_resident_memory_is_that_of_psutil():
    buffer = bytearray(64 * 1024**2)
    rss_bytes = HostSensors().read()["rss_bytes"]
    assert rss_bytes > len(buffer)
    assert rss_bytes == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


@linux_only
def test_preemptions_of_all_threads_are_counted():
    host, usage = HostSensors(), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    before = psutil.Process().num_ctx_switches().involuntary
    assert host.read()["preempted"] >= usage >= before, "psutil counts the main thread alone"


@linux_only
def test_hidden_storage_reads_are_unknown_with_a_gap(monkeypatch, tmp_path):
    calls = []

    def denied(_):
        calls.append(1)
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "io_counters", denied)
    host = HostSensors(proc=tmp_path)
    assert [math.isnan(host.read()["read_bytes"]) for _ in range(3)] == [True] * 3
    assert len(calls) == 1
    assert [gap.what for gap in host.gaps if gap.what != "CPU energy"] == ["bytes read from storage"]


def test_storage_reads_are_unknown_on_systems_without_them(monkeypatch, tmp_path):
    monkeypatch.delattr(psutil.Process, "io_counters", raising=False)
    host = HostSensors(proc=tmp_path)
    assert math.isnan(host.read()["read_bytes"])
    assert [gap.what for gap in host.gaps if gap.what != "CPU energy"] == ["bytes read from storage"]


# What may be used: cgroups, laid out in a folder.


@pytest.fixture
def system(tmp_path):
    """Lays out the files of some system and gives its root."""

    def lay_out(**files: str) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return lay_out


def test_without_cgroups_every_core_of_the_affinity_may_be_used(tmp_path):
    assert cores_allowed(tmp_path, affinity=6) == 6.0
    assert memory_limit_bytes(tmp_path) is None


@linux_only
def test_affinity_comes_from_the_system(tmp_path):
    assert cores_allowed(tmp_path) == len(os.sched_getaffinity(0))


V2 = {"proc/self/cgroup": "0::/a/b"}
V1 = {"proc/self/cgroup": "5:memory:/job\n3:cpu,cpuacct:/job\n2:cpuset:/job\n1:name=systemd:/job"}
INSIDE = {"proc/self/cgroup": "5:memory:/docker/f00\n3:cpu,cpuacct:/docker/f00"}  # the mount shows only our own part
CG = "sys/fs/cgroup"
CPU = f"{CG}/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({**V2, f"{CG}/a/b/cpu.max": "150000 100000"}, 1.5),
        ({**V2, f"{CG}/a/b/cpu.max": "max 100000"}, 8),
        ({**V2, f"{CG}/a/b/cpu.max": "400000 100000", f"{CG}/a/cpu.max": "200000 100000"}, 2),
        ({**V2, f"{CG}/a/b/cpu.max": "max 100000", f"{CG}/a/cpu.max": "50000 100000"}, 0.5),
        ({**V2, f"{CG}/a/b/cpu.max": "6400000 100000"}, 8),
        ({**V2, f"{CG}/other/cpu.max": "100000 100000"}, 8),
        ({"proc/self/cgroup": "0::/", f"{CG}/cpu.max": "300000 100000"}, 3),
        ({**V2, f"{CG}/a/b/cpu.max": "nonsense"}, 8),
        ({**V2, f"{CG}/a/b/cpu.max": "100000 0"}, 8),
        ({**V1, f"{CPU}/job/cpu.cfs_quota_us": "250000", f"{CPU}/job/cpu.cfs_period_us": "100000"}, 2.5),
        ({**V1, f"{CG}/cpu/job/cpu.cfs_quota_us": "250000", f"{CG}/cpu/job/cpu.cfs_period_us": "50000"}, 5),
        ({**V1, f"{CG}/cpu/job/cpu.cfs_quota_us": "-1", f"{CG}/cpu/job/cpu.cfs_period_us": "100000"}, 8),
        ({**INSIDE, f"{CPU}/cpu.cfs_quota_us": "100000", f"{CPU}/cpu.cfs_period_us": "50000"}, 2),
        ({"proc/self/cgroup": "0::/../../escaped", f"{CG}/cpu.max": "100000 100000"}, 1),
    ],
)  # fmt: skip
def test_the_cpu_quota_of_every_ancestor_cgroup_applies(system, files, cores):
    assert cores_allowed(system(**files), affinity=8) == cores


Q2, Q1 = {f"{CG}/a/cpu.max": "100000 100000"}, {f"{CPU}/job/cpu.cfs_quota_us": "100000"}
P1 = {f"{CPU}/job/cpu.cfs_period_us": "100000"}


@pytest.mark.parametrize(
    ("files", "seconds"),
    [
        ({**V2, **Q2, f"{CG}/a/cpu.stat": "usage_usec 9\nnr_throttled 4\nthrottled_usec 2500000"}, 2.5),
        ({**V2, f"{CG}/a/cpu.stat": "throttled_usec 2500000"}, 0.0),  # no quota, so nothing can be held back
        ({**V1, **Q1, **P1, f"{CPU}/job/cpu.stat": "nr_throttled 4\nthrottled_time 1500000000"}, 1.5),
        ({**V2, **Q2, f"{CG}/a/cpu.stat": "nonsense"}, math.nan),
        ({**V2, **Q2}, math.nan),
        ({}, math.nan),  # not Linux, or its files are hidden
    ],
)
def test_throttling_is_recorded_in_seconds(system, files, seconds):
    throttled_s = Throttling(system(**files)).read()
    assert throttled_s == seconds or (math.isnan(throttled_s) and math.isnan(seconds))


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({**V2, f"{CG}/a/b/memory.max": str(8 * GIB)}, 8 * GIB),
        ({**V2, f"{CG}/a/b/memory.max": "max"}, None),
        ({**V2, f"{CG}/a/b/memory.max": str(8 * GIB), f"{CG}/a/memory.max": str(4 * GIB)}, 4 * GIB),
        ({**V1, f"{CG}/memory/job/memory.limit_in_bytes": str(3 * GIB)}, 3 * GIB),
        ({**V1, f"{CG}/memory/job/memory.limit_in_bytes": "9223372036854771712"}, None),
        ({**INSIDE, f"{CG}/memory/memory.limit_in_bytes": str(2 * GIB)}, 2 * GIB),
    ],
)
def test_the_lowest_memory_limit_of_all_cgroups_applies(system, files, limit):
    assert memory_limit_bytes(system(**files)) == limit
