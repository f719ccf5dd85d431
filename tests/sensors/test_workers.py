"""Sensors of DataLoader workers, with other child processes in their place."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from gpulab.sensors.host import workers as sensor
from gpulab.sensors.host.workers import WorkerReader

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


@pytest.fixture
def child():
    """Start Python code in separate processes, and end them."""
    started = []

    def start(code: str) -> subprocess.Popen:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        started.append(process)
        process.stdout.readline()
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


# Workers.


def test_without_workers_their_number_is_zero():
    values = WorkerReader().read(0)
    assert (values["workers"], values["worker_cpu_s"]) == (0, 0)


def test_only_workers_are_counted_with_their_cpu_time(child):
    busy = "import time\nwhile time.process_time() < {}: pass\nprint(flush=True)\ntime.sleep(60)"
    first, second, _ = child(busy.format(0.3)), child(busy.format(0.2)), child(busy.format(0.4))
    workers = WorkerReader()
    workers.set_pids([first.pid, second.pid])
    values = workers.read(0)
    assert values["workers"] == 2
    assert values["worker_cpu_s"] == pytest.approx(0.5, abs=0.06), "some systems count in ticks of 10 ms"


def test_an_ended_worker_is_not_counted_and_its_cpu_time_is_kept(child):
    busy = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True)\ntime.sleep(60)"
    first, second = child(busy), child(busy)
    workers = WorkerReader()
    workers.set_pids([first.pid, second.pid])
    before = workers.read(0)["worker_cpu_s"]
    first.kill()
    assert psutil.Process(first.pid).wait(10) is not None
    workers.set_pids([first.pid, second.pid])
    values = workers.read(0)
    workers.set_pids([])
    none = workers.read(0)
    assert (values["workers"], none["workers"]) == (1, 0)
    assert before <= values["worker_cpu_s"] <= none["worker_cpu_s"] < before + 0.1


@linux_only
def test_a_zombie_worker_is_not_alive(child):
    worker = child("print(flush=True); import time; time.sleep(60)")
    workers = WorkerReader()
    workers.set_pids([worker.pid])
    worker.kill()
    while psutil.Process(worker.pid).status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    assert workers.read(0)["workers"] == 0


def test_a_worker_that_ended_before_its_first_reading_is_ignored(child):
    worker = child("print(flush=True)")
    worker.wait()
    workers = WorkerReader()
    workers.set_pids([worker.pid])
    assert workers.read(0)["workers"] == 0


@linux_only
def test_workers_waiting_for_storage_are_distinguished_from_sleeping_ones(child, monkeypatch):
    started = [child("print(flush=True); import time; time.sleep(60)") for _ in range(3)]
    statuses = {started[0].pid: psutil.STATUS_DISK_SLEEP}
    monkeypatch.setattr(psutil.Process, "status", lambda process: statuses.get(process.pid, psutil.STATUS_SLEEPING))
    workers = WorkerReader()
    workers.set_pids([worker.pid for worker in started])
    values = workers.read(0)
    assert (values["workers"], values["workers_blocked"]) == (3, 1)
    assert workers.rows(0)["blocked"].tolist() == [1, 0, 0]


def test_workers_whose_cpu_time_is_hidden_are_counted_and_their_cpu_time_is_unknown(child, monkeypatch):
    worker = child("print(flush=True); import time; time.sleep(60)")

    def denied(_):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "status", denied)
    workers = WorkerReader()
    workers.set_pids([worker.pid])
    values = workers.read(0)
    assert values["workers"] == 1
    assert math.isnan(values["worker_cpu_s"])
    assert [gap.what for gap in workers.gaps] == ["CPU time of the workers"]


@linux_only
def test_a_stopped_worker_is_alive(child):
    worker = child("print(flush=True); import time; time.sleep(60)")
    os.kill(worker.pid, signal.SIGSTOP)
    workers = WorkerReader()
    workers.set_pids([worker.pid])
    assert workers.read(0)["workers"] == 1


def test_each_worker_reading_is_a_row_on_the_runs_clock(child):
    first, second = (child("print(flush=True); import time; time.sleep(60)") for _ in range(2))
    workers = WorkerReader()
    workers.set_pids([first.pid])
    workers.read(1_000)
    workers.set_pids([first.pid, second.pid])
    workers.read(2_000)
    workers.set_pids([second.pid])
    workers.read(3_000)
    rows = workers.rows(began_ns=500)
    assert list(zip(rows["at_ns"], rows["worker"], strict=True)) == [(500, 0), (1500, 0), (1500, 1), (2500, 1)]
    assert (rows["cpu_s"] > 0).all()
    assert (rows["threads"] == 1).all()


@linux_only
def test_storage_reads_are_recorded_per_worker(child, monkeypatch):
    worker = child("print(flush=True); import time; time.sleep(60)")
    workers = WorkerReader()
    workers.set_pids([worker.pid])
    workers.read(0)
    assert workers.rows(0)["read_bytes"][0] == psutil.Process(worker.pid).io_counters().read_bytes

    def denied(_):
        raise psutil.AccessDenied

    monkeypatch.setattr(psutil.Process, "io_counters", denied)
    workers.read(0)
    assert math.isnan(workers.rows(0)["read_bytes"][1])


def test_many_workers_are_read_in_turn_and_all_are_counted(child, monkeypatch):
    monkeypatch.setattr(sensor, "_MAX_PER_READING", 2)
    started = [child("print(flush=True); import time; time.sleep(60)") for _ in range(3)]
    workers = WorkerReader()
    workers.set_pids([worker.pid for worker in started])
    counted = [workers.read(at)["workers"] for at in range(3)]
    assert counted == ([3, 3, 3] if sys.platform == "linux" else [2, 2, 2])
    assert sorted(workers.rows(0)["worker"]) == [0, 0, 1, 1, 2, 2]
