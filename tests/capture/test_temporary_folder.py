"""A killed process's temporary folders are removed by the next process; those of others stay."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gpulab.capture.protection import temporary_folder as folders
from gpulab.capture.protection.temporary_folder import PREFIX, remove_leftovers, temporary_folder
from gpulab.deferred_signals import DeferredSignals
from gpulab.sensors.host.process_identity import ProcessIdentity, current_process

HOLD = """
import sys, time
from gpulab.capture.protection.temporary_folder import temporary_folder
with temporary_folder() as folder:
    (folder / "trace.json").write_text("{}")
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.fixture
def temp(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    remove_leftovers.cache_clear()
    yield tmp_path
    remove_leftovers.cache_clear()


def test_the_folder_of_a_killed_process_is_removed_at_the_next_use(temp):
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as process:
        left = process.stdout.readline().strip()
        assert left
        assert Path(left).is_dir()
        with temporary_folder() as first:
            assert Path(left).is_dir()  # its process runs
            assert first.is_dir()
        process.send_signal(signal.SIGKILL)
    assert Path(left).is_dir()
    remove_leftovers.cache_clear()
    with temporary_folder() as second:
        assert [str(path) for path in temp.iterdir()] == [str(second)]
    assert list(temp.iterdir()) == []


def test_files_links_and_folders_of_others_stay(temp):
    alive = current_process()
    ended = ProcessIdentity(alive.machine, alive.pid, 1)
    foreign = ProcessIdentity("01234567", 1, 1)
    outside = temp / "outside"
    outside.mkdir()
    (temp / f"{PREFIX}{ended}-link").symlink_to(outside)
    (temp / f"{PREFIX}{ended}-file").write_text("a file")
    for name in (f"{PREFIX}{alive}-a", f"{PREFIX}{foreign}-b", f"{PREFIX}mine", f"x{PREFIX}{ended}"):
        (temp / name).mkdir()
    before = sorted(temp.iterdir())
    remove_leftovers(str(temp))
    assert sorted(temp.iterdir()) == before
    (temp / f"{PREFIX}{ended}-folder").mkdir()
    remove_leftovers.cache_clear()
    remove_leftovers(str(temp))
    assert sorted(temp.iterdir()) == before


def test_a_temporary_directory_that_cannot_be_listed_is_no_error(temp):
    remove_leftovers(str(temp / "missing"))


def test_an_ended_process_is_told_from_one_with_the_same_id():
    alive = current_process()
    assert not alive.has_ended
    assert ProcessIdentity(alive.machine, alive.pid, alive.started + 1).has_ended
    assert ProcessIdentity.parse(f"{alive}-rest") == alive
    assert ProcessIdentity.parse("mine") is None
    assert not ProcessIdentity("01234567", 2**22 + 1, 5).has_ended  # on another machine: unknown
    child = subprocess.Popen([sys.executable, "-c", "pass"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and waits for its parent
    assert ProcessIdentity(alive.machine, child.pid, 12345).has_ended
    child.wait()


def test_a_signal_handler_that_raises_as_the_removal_begins_leaves_nothing(monkeypatch):
    calls = []

    def deferred(**options):
        calls.append(options)
        if len(calls) == removal:
            raise TimeoutError("limit")
        return DeferredSignals(**options)

    with temporary_folder():
        pass
    monkeypatch.setattr(folders, "DeferredSignals", deferred)
    removal = None
    with temporary_folder():
        before_removal = len(calls)
    removal = len(calls) + before_removal + 1
    with pytest.raises(TimeoutError), temporary_folder() as folder:
        (folder / "trace.json").touch()
    assert not folder.exists()
