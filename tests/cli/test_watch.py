"""`gpulab watch` and `gpulab history` as programs: signals, kills, several at once, a full disk."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gpulab.watch.history import GpuHistory
from gpulab.watch.schema import SECONDS

ROOT = Path(__file__).resolve().parents[2]


def command(*arguments):
    return [sys.executable, "-m", "gpulab", *map(str, arguments)]


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "GPULAB_WEBHOOK": ""}


def run(*arguments):
    return subprocess.run(command(*arguments), env=environment(), capture_output=True, text=True, timeout=120)


def started(database, *arguments, prefix=()):
    """A watch that has written its first reading; `prefix` starts it, and what reads its database."""
    process = subprocess.Popen([*prefix, *command("watch", "--database", database, *arguments)], env=environment(),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # fmt: skip
    deadline_s = time.monotonic() + 60
    while len(seconds_read(database, prefix) if prefix else range(readings(database))) == 0:
        assert time.monotonic() < deadline_s
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


READ_SECONDS = """
import sys
from pathlib import Path
from gpulab.watch.history import GpuHistory
from gpulab.watch.schema import SECONDS

with GpuHistory(Path(sys.argv[1])) as history:
    for device in history.devices()[-1:]:
        sys.stdout.write(" ".join(map(str, history.device_series(device.id, 0, 1e11, SECONDS).at_s)))
"""


def seconds_read(database, prefix):
    """The times of the readings, read by a program that `prefix` starts; none while the database is being created."""
    reading = [*prefix, sys.executable, "-c", READ_SECONDS, str(database)]
    done = subprocess.run(reading, env=environment(), capture_output=True, text=True, timeout=60)
    return [float(at_s) for at_s in done.stdout.split()]


def readings(database):
    if not database.exists():
        return 0
    try:
        with GpuHistory(database) as history:
            host = history.devices()[-1:]
            return len(history.device_series(host[0].id, 0, 1e11, SECONDS)) if host else 0
    except Exception:
        return 0  # it is being created


@pytest.fixture
def database(tmp_path):
    return tmp_path / "watch.sqlite"


def test_a_watch_ends_after_its_time_and_can_be_looked_back_on(database):
    done = run("watch", "--database", database, "--for", "3s")
    assert done.returncode == 0, done.stderr
    assert readings(database) >= 2
    shown = run("history", "1h", "--database", database)
    assert shown.returncode == 0
    assert "No GPU was found" in shown.stdout or "GPU-hours" in shown.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_watch_cleanly(database, number):
    process = started(database)
    process.send_signal(number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "recorded in" in output


@pytest.mark.full
@pytest.mark.parametrize(("number", "why"), [(signal.SIGTERM, "no watch was running"),
                                             (signal.SIGKILL, "the watch was killed")])  # fmt: skip
def test_the_next_watch_says_why_there_is_a_gap(database, number, why):
    process = started(database)
    process.send_signal(number)
    process.communicate(timeout=60)
    time.sleep(2.5)
    assert run("watch", "--database", database, "--for", "2s").returncode == 0
    with GpuHistory(database) as history:
        (gap,) = history.gaps(0, 1e11)
    assert gap.why == why
    assert gap.until_s - gap.from_s >= 1


@pytest.mark.full
def test_two_watches_share_a_file(database):
    first = started(database)
    second = run("watch", "--database", database, "--for", "2s")
    assert second.returncode == 0, second.stderr
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=60)
    with GpuHistory(database) as history:
        series = history.device_series(history.devices()[-1].id, 0, 1e11, SECONDS)
    assert len(set(series.at_s.tolist())) == len(series)


def test_a_unit_for_systemd_contains_the_command_with_escaped_percent_signs(database):
    done = run("watch", "--unit", "--alert", "memory > 90 %", "--database", database, "--webhook", "https://x/secret")
    assert done.returncode == 0
    (start,) = re.findall(r"^ExecStart=(.*)$", done.stdout, re.M)
    assert "'--alert=memory > 90 %%'" in start
    assert str(database) in start
    assert "secret" not in done.stdout


@pytest.mark.parametrize("arguments", [
    ("watch", "--alert", "bogus"), ("watch", "--for", "soon"), ("watch", "--every", "0"), ("watch", "--max-size", "3"),
    ("watch", "--quiet-hours", "late"), ("watch", "--webhook", "ftp://x"), ("history", "5y"),
    ("history", "1h", "--price", "cheap"), ("history", "1h", "--database", "/nonexistent/watch.sqlite"),
])  # fmt: skip
def test_bad_input_is_a_clear_error(arguments, tmp_path):
    extra = ("--database", tmp_path / "w.sqlite") if "--database" not in arguments else ()
    done = run(*arguments, *extra)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) >= 2


@pytest.fixture
def small_disk(tmp_path):
    """What starts a program for which tmp_path has 640 KiB.

    The mount exists for no other process, and ends with the one that holds it: if a killed test left one behind, the
    next run of the tests could not remove its folder.
    """
    mounting = f"mount -t tmpfs -o size=640k none {tmp_path} && echo mounted && read -r _"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", mounting]
    if shutil.which("unshare") is None or shutil.which("nsenter") is None:
        pytest.skip("a small file system cannot be mounted here (needs unshare and nsenter)")
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as holder:
        if holder.stdout.readline() != b"mounted\n":
            pytest.skip("a small file system cannot be mounted here (needs root)")
        yield holder.pid, ("nsenter", "--target", str(holder.pid), "--mount")


@pytest.mark.full
def test_a_full_disk_is_reported_and_loses_nothing_that_is_written(tmp_path, small_disk):
    holder, inside = small_disk
    filler = Path(f"/proc/{holder}/root{tmp_path}/filler")
    process = started(tmp_path / "watch.sqlite", prefix=inside)
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 4096)
        except OSError:
            pass
    time.sleep(3)
    before = seconds_read(tmp_path / "watch.sqlite", inside)
    filler.unlink()
    time.sleep(3)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    after = seconds_read(tmp_path / "watch.sqlite", inside)
    assert len(before) >= 1
    assert len(after) >= len(before) + 2
    assert after[-1] - after[0] + 1 - len(after) <= 1  # the seconds of the full disk came afterwards
