"""Files of /proc that stay open: the same values as psutil, in one system call, and no descriptor of the program."""

import math
import mmap
import os
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from gpulab.sensors.host.proc_files import ProcFile, ProcFiles, delayed_s, schedstat
from gpulab.sensors.host.process import HostSensors
from gpulab.sensors.readings import Sensors

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")


def descriptors():
    return set(Path("/proc/self/fd").iterdir())


@linux_only
def test_the_values_are_those_of_psutil():
    files, process = ProcFiles(), psutil.Process()
    before = process.io_counters().read_bytes
    assert before <= files.read_bytes() <= process.io_counters().read_bytes
    assert files.rss_bytes() == pytest.approx(process.memory_info().rss, rel=0.1)
    earlier = psutil.cpu_times(percpu=True)
    cores = files.core_times()
    later = psutil.cpu_times(percpu=True)
    assert len(cores) == len(earlier)
    for core, first, last in zip(cores, earlier, later, strict=True):
        for seconds, of in (
            (core.waiting, lambda times: times.iowait),
            (core.total, lambda times: sum(times) - times.guest - times.guest_nice),
            (core.total - core.busy - core.waiting, lambda times: times.idle),
        ):
            assert of(first) - 1e-6 <= seconds <= of(last) + 1e-6
    files.close()


@linux_only
def test_a_reading_is_of_now_and_opens_nothing_after_the_first():
    files = ProcFiles()
    small = files.rss_bytes()
    files.read_bytes(), files.core_times()
    opened = descriptors()
    with mmap.mmap(-1, 64 * 2**20) as memory:  # new pages, unlike memory that Python or the C library reuses
        memory.write(b"x" * len(memory))
        assert files.rss_bytes() - small > len(memory) / 2
    assert descriptors() == opened
    files.close()


@linux_only
def test_the_delay_of_a_thread_is_read_until_it_has_ended():
    go_on = threading.Event()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    file = schedstat(thread.native_id)
    assert delayed_s(file) >= 0
    go_on.set()
    thread.join()
    deadline = time.monotonic() + 30
    while Path(f"/proc/self/task/{thread.native_id}").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert math.isnan(delayed_s(file))
    file.close()


def test_without_the_files_nothing_is_known_and_psutil_is_read(tmp_path):
    files = ProcFiles(tmp_path)
    assert (files.rss_bytes(), files.read_bytes(), files.core_times()) == (None, None, None)
    values = HostSensors(proc=tmp_path).read()
    assert values["rss_bytes"] == pytest.approx(psutil.Process().memory_info().rss, rel=0.1)


@pytest.mark.skipif(not hasattr(os, "pread"), reason="only for systems with pread")
@pytest.mark.parametrize("text", ["", "x", "cpu0 x 2\\n", "cpu0 a b c d e f g h\n", "read_bytes: many\n", "1"])
def test_text_that_is_none_of_these_files_is_unknown(tmp_path, text):
    (tmp_path / "self").mkdir()
    for name in ("self/statm", "self/io", "stat"):
        (tmp_path / name).write_text(text)
    files = ProcFiles(tmp_path)
    assert (files.rss_bytes(), files.read_bytes(), files.core_times()) == (None, None, None)
    assert math.isnan(delayed_s(ProcFile(tmp_path / "stat")))
    files.close()


@pytest.mark.skipif(not hasattr(os, "pread"), reason="only for systems with pread")
def test_the_last_line_that_is_cut_off_is_not_a_core(tmp_path):
    lines = ["cpu  3 3 3 3 3 3 3 3 3 3", "cpu0 100 0 0 100 50 0 0 0 0 0", "cpu1 200 0 0 100 0 0 0 0 0 0"]
    (tmp_path / "stat").write_text("\n".join(lines))
    cores = ProcFiles(tmp_path).core_times()
    ticks = os.sysconf("SC_CLK_TCK")
    assert [tuple(core) for core in cores] == [(100 / ticks, 50 / ticks, 250 / ticks)]


@linux_only
def test_a_file_that_the_program_opened_under_the_same_number_stays_open(tmp_path):
    file = ProcFile(tmp_path / "ours")
    (tmp_path / "ours").write_text("1")
    assert file.read() == "1"
    number = file._descriptor
    os.close(number)  # as a program does that closes all its descriptors
    (tmp_path / "theirs").write_text("2")
    theirs = os.open(tmp_path / "theirs", os.O_RDONLY)
    os.dup2(theirs, number)
    file.close()
    assert os.read(number, 10) == b"2"
    for each in {number, theirs}:
        os.close(each)
    with pytest.raises(OSError, match="ours"):
        file.read()


@linux_only
def test_stopped_sensors_leave_no_descriptor_open():
    Sensors()  # what the first use of a library opens stays open
    before = descriptors()
    sensors = Sensors(period_ns=1_000_000)
    sensors.start()
    deadline = time.monotonic() + 30
    while sensors.latest().rss_bytes is None and time.monotonic() < deadline:
        time.sleep(0.001)
    assert descriptors() - before
    sensors.stop()
    assert descriptors() <= before
