"""Files that the system does not let us read or write: one lost rank is a gap, and a bad path is a GpulabError."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from pathlib import Path

import pytest

import gpulab
from gpulab.errors import GpulabError, StoreError, TraceError
from tests.support import fuzz
from tests.support.runs.made_runs import event, run_of
from tests.support.runs.stored_runs import full_run

IO_ERROR = Path("/proc/self/mem")  # reading its first bytes fails with EIO
PATHS = {"NUL": "a\0b.gpulab", "overlong name": "x" * 5000 + ".gpulab", "overlong path": "d/" * 5000 + "x.gpulab"}
linux = pytest.mark.skipif(not IO_ERROR.exists(), reason="needs Linux's /proc")


@pytest.fixture
def ranks(tmp_path):
    for rank in range(4):
        document = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": list(fuzz.events())}
        (tmp_path / f"rank_{rank}.json").write_text(json.dumps(document), encoding="utf-8")
    return tmp_path


@linux
@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".gpulab"])
def test_a_rank_on_a_failing_disk_is_a_gap_and_the_others_are_loaded(ranks, suffix):
    (ranks / "rank_2.json").unlink()
    (ranks / f"rank_2{suffix}").symlink_to(IO_ERROR)
    with pytest.warns(UserWarning, match="1 of 4 files could not be read"):
        loaded = gpulab.load(ranks, progress=False)
    assert [run.rank for run in loaded] == [0, 1, 3]
    assert [gap.what for gap in loaded.unread]
    assert str(ranks / f"rank_2{suffix}") in loaded.unread[0].what


def test_an_error_of_the_disk_in_the_middle_of_a_rank_is_a_gap(ranks, monkeypatch):
    from gpulab.trace.reading import text_blocks

    original = text_blocks.open_source

    class FailingFile:
        def __init__(self, file):
            self.file, self.reads = file, 0

        def read(self, size):
            self.reads += 1
            if self.reads > 1:
                raise OSError(5, "Input/output error")
            return self.file.read(size)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

    def open_source(source):
        file = original(source)
        return FailingFile(file) if "rank_1" in str(source) else file

    monkeypatch.setattr(text_blocks, "open_source", open_source)
    with pytest.warns(UserWarning, match="Input/output error"):
        loaded = gpulab.load(ranks, progress=False)
    assert [run.rank for run in loaded] == [0, 2, 3]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_rank_without_permission_is_a_gap(ranks):
    (ranks / "rank_3.json").chmod(0)
    with pytest.warns(UserWarning, match="could not be read"):
        assert len(gpulab.load(ranks, progress=False)) == 3


def test_a_missing_rank_is_said_without_control_characters(ranks):
    (ranks / "rank_2.json").rename(ranks / "rank_\x1b[31m2.json")
    (ranks / "rank_\x1b[31m2.json").write_bytes(b"damaged")
    with pytest.warns(UserWarning, match="could not be read") as warned:
        loaded = gpulab.load(ranks, progress=False)
    assert "\x1b" not in str(warned[0].message) + repr(loaded)
    assert "\\x1b[31m2.json" in str(warned[0].message)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS.keys())
def test_a_path_that_no_file_can_have_is_an_error_with_a_reason(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError):
        gpulab.load(path)
    with pytest.raises(TraceError):
        gpulab.load(f"{path}*.json")
    with pytest.raises(StoreError):
        gpulab.save(full_run(1), path)
    report = gpulab.report(run_of([event(0, "aten::mm", 0, 1)]))
    for suffix in (".html", ".txt", ".md", ".png"):
        with pytest.raises(GpulabError):
            report.save(f"{path}{suffix}")
    with pytest.raises(GpulabError):
        gpulab.to_perfetto(report.diagnosis, f"{path}.json")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_a_path_without_a_file_name_is_an_error(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError):
        gpulab.save(full_run(1), path)
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_that_a_file_can_have_is_written(tmp_path):
    name = "n" * 240
    run = run_of([event(0, "aten::mm", 0, 1)])
    assert gpulab.load(gpulab.save(run, tmp_path / f"{name}.gpulab")).name == run.name
    assert gpulab.report(run).save(tmp_path / f"{name}.html").exists()


def test_a_cache_folder_that_cannot_exist_is_a_warning(ranks):
    with pytest.warns(UserWarning, match="cache was not written"):
        assert len(gpulab.load(ranks, progress=False, cache="a\0b")) == 4


def test_writing_never_changes_the_umask_of_the_process(tmp_path, monkeypatch):
    def change(mask):
        raise AssertionError("the umask belongs to all threads")

    run = run_of([event(0, "aten::mm", 0, 1)])
    before = os.umask(0o027)
    try:
        monkeypatch.setattr(os, "umask", change)
        paths = [gpulab.report(run).save(tmp_path / "a.html"), gpulab.save(run, tmp_path / "a.gpulab")]
    finally:
        monkeypatch.undo()
        os.umask(before)
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o640, 0o640]


def test_threads_that_write_the_same_file_leave_one_whole_file(tmp_path):
    report = gpulab.report(run_of([event(0, "aten::mm", 0, 1)]))
    path = tmp_path / "a.txt"
    threads = [threading.Thread(target=lambda: [report.save(path) for _ in range(20)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    for thread in threads:
        thread.join(max(0, deadline - time.monotonic()))
    assert [file.name for file in tmp_path.iterdir()] == ["a.txt"]
    assert path.read_text(encoding="utf-8").strip() == repr(report).strip()
