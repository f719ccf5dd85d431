"""What a killed process recorded is recovered up to the last second; what ended cleanly leaves nothing."""

import errno
import os
import random
import re
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import gpulab
from gpulab import store
from gpulab.capture.run_registry import runs
from gpulab.capture.spool import folder as spool_files
from gpulab.capture.spool import spool as spool_module
from gpulab.capture.spool.content import RecordingState, decode_rows, encode_rows
from gpulab.capture.spool.folder import find_leftovers
from gpulab.capture.spool.framing import MAGIC, RecordKind, frame_record, split_records
from gpulab.capture.spool.recovery import recover, recoverable
from gpulab.capture.spool.spool import Spool, rows_added
from gpulab.run import Loader, Machine
from gpulab.sensors.host.process_identity import ProcessIdentity, current_process
from gpulab.tables import HOST_SAMPLES, MARKS, PHASES, MarkKind
from tests.support.spool.recorded_loop import RecordedLoop

ROOT = Path(__file__).resolve().parents[2]
SECOND_NS = 1_000_000_000
STARTED_BEFORE_US = 1  # no process has this start time


@pytest.fixture
def spools(tmp_path, monkeypatch):
    """The folder of the copies, empty; and no run is left in the registry."""
    folder = tmp_path / "recordings"
    monkeypatch.setenv(spool_files.VARIABLE, str(folder))
    before = dict(runs._runs)
    yield folder
    runs._runs.clear()
    runs._runs.update(before)


@pytest.fixture
def as_killed(monkeypatch):
    """Copies written from now on look like those of a process that has ended."""
    alive = current_process()
    ended = ProcessIdentity(alive.machine, alive.pid, STARTED_BEFORE_US)
    monkeypatch.setattr(spool_files, "current_process", lambda: ended)


def mark(start_ns, loader=0):
    """One call of a DataLoader that took a millisecond."""
    return MarkKind.NEXT, start_ns, start_ns + 1_000_000, loader, 0, True, 0, 0, 0, -1


class Recording:
    """A recording of marks alone, whose clock the test sets."""

    def __init__(self, name="lost", **options):
        self.marks, self.loaders, self.began_ns = [], [Loader(workers=1)], time.time_ns()
        self.spool = Spool(name, "sensors", **options)
        self.spool.begin(self.began_ns, (rows_added(MARKS, self.marks),), self.state, Machine(cpu="a CPU"))

    def state(self):
        return RecordingState(loaders=tuple(self.loaders))

    def write(self, second, count=10):
        """Write the marks of one more second."""
        at_ns = self.began_ns + second * SECOND_NS
        self.marks += [mark(at_ns + index * 1_000_000) for index in range(count)]
        self.spool.write(at_ns)


def kill_and_recover(folder, after_s, *program):
    """Kill the program after this time; the recovered run, how many steps it had done, and when it was killed."""
    program = [sys.executable, "-m", *(program or ("tests.support.spool.recorded_loop",))]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ}) as process:
        steps = [int(process.stdout.readline())]
        time.sleep(after_s)
        killed_ns = time.time_ns()
        process.send_signal(signal.SIGKILL)
        steps += [int(line) for line in process.stdout.read().splitlines() if line]
        process.wait()
    assert find_leftovers(folder)
    (run,) = recover()
    return run, steps, killed_ns


def check_recovered(run, steps, killed_ns):
    assert run.outcome == "killed"
    reached_ns = run.began_ns + run.span_ns
    assert min(killed_ns, steps[-1]) - reached_ns < 2 * SECOND_NS
    ends_ns = run.mark_rows["end_ns"] + run.began_ns
    assert ends_ns.tolist() == steps[: len(ends_ns)]  # every step up to there, and no other
    assert len(run.host_rows)
    assert run.loaders[0].dataset == "Images"


@pytest.mark.alone("holds the time of the last write against the time of the kill")
@pytest.mark.parametrize("level", ["sensors", "trace"])
def test_a_killed_training_loop_is_recovered_up_to_the_last_two_seconds(spools, level):
    pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")
    instants = random.Random(level)
    for _ in range(int(os.environ.get("GPULAB_KILLS", "10")) // 2):
        run, steps, killed_ns = kill_and_recover(
            spools, instants.uniform(1.0, 5.0), "tests.support.spool.profiled_loop", level
        )
        assert run.outcome == "killed"
        assert min(killed_ns, steps[-1]) - (run.began_ns + run.span_ns) < 2 * SECOND_NS
        assert abs(int(run.mark_rows["yielded"].sum()) - len(steps)) * 3_000_000 < 3 * SECOND_NS
        # On a busy machine, a loop may be killed before its first second is written.
        assert not len(run.mark_rows) or run.loaders[0].batch_size == 4
        assert len(run.host_rows)
        assert list(spools.iterdir()) == []


@pytest.mark.alone("holds the time of the last write against the time of the kill")
def test_a_killed_loop_is_recovered_up_to_the_last_two_seconds(spools):
    instants = random.Random(16)
    for _ in range(int(os.environ.get("GPULAB_KILLS", "10"))):
        check_recovered(*kill_and_recover(spools, instants.uniform(1.0, 4.0)))
        assert list(spools.iterdir()) == []


@pytest.mark.full
def test_a_killed_training_loop_keeps_the_events_of_the_parts_that_were_traced(spools):
    pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")
    program = [sys.executable, "-m", "tests.support.spool.traced_loop"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ}) as process:
        recorded = int(process.stdout.readline())
        process.kill()
        process.wait()
    (run,) = recover()
    assert recorded > 10
    additions = run.events[run.events["name"] == "aten::add_"]
    assert len(additions) == recorded
    (first_ns, _), (_, last_ns) = run.recording.windows_ns[0], run.recording.windows_ns[-1]
    assert additions["start_ns"].between(first_ns, last_ns).all()
    assert not any("operators" in gap.what for gap in run.recording.left_out)
    assert "Killed" in str(gpulab.report(run))
    assert list(spools.iterdir()) == []


def test_a_recovered_run_can_be_saved_and_reported(spools, as_killed, tmp_path):
    recording = Recording()
    for second in range(1, 6):
        recording.write(second)
    (run,) = recover()
    assert run is gpulab.runs["lost"]
    assert len(run.mark_rows) == 50
    assert [gap.what for gap in run.recording.left_out] == ["the end of the run"]
    assert len(store.open(store.save(run, tmp_path / "run")).mark_rows) == 50
    assert "Killed" in str(gpulab.report(run))
    assert "killed" in repr(run)
    assert recover() == ()


def test_a_recording_that_ends_leaves_no_file(spools):
    loop = RecordedLoop()
    loop.start()
    deadline = time.monotonic() + 20
    while not (spools.exists() and list(spools.iterdir())) and time.monotonic() < deadline:
        loop.step()
    assert find_leftovers() == ()  # its process is alive
    loop.stop()
    loop.stop()
    assert list(spools.iterdir()) == []
    assert loop.spool.gaps == ()


def test_a_forked_process_neither_writes_nor_deletes_the_file(spools):
    recording = Recording()
    recording.write(1)
    size = next(spools.iterdir()).stat().st_size
    child = os.fork()
    if not child:
        recording.write(5)
        recording.spool.discard()
        os._exit(0)
    os.waitpid(child, 0)
    assert next(spools.iterdir()).stat().st_size == size
    recording.spool.discard()


def test_a_file_cut_anywhere_is_read_up_to_there(spools, as_killed):
    recording = Recording()
    for second in range(1, 4):
        recording.write(second)
    (path,) = spools.iterdir()
    text = path.read_bytes()
    lengths = []
    for end in range(0, len(text), 7):
        path.write_bytes(text[:end])
        found = recover()
        lengths.append(len(found[0].mark_rows) if found else 0)
        assert not path.exists()
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 10, 20, 30} - {30}
    path.write_bytes(text)
    assert len(recover()[0].mark_rows) == 30


def test_phases_are_recovered_and_the_one_in_which_the_process_was_killed_ends_with_the_run(spools, as_killed):
    recording = Recording()
    ended = [("training", recording.began_ns, recording.began_ns + SECOND_NS)]
    killed_in = ("validation", recording.began_ns + SECOND_NS)
    state = lambda: RecordingState(loaders=tuple(recording.loaders), open_phases=(killed_in,))  # noqa: E731
    tables = (rows_added(MARKS, recording.marks), rows_added(PHASES, ended))
    recording.spool.discard()
    recording.spool = Spool("lost", "sensors")
    recording.spool.begin(recording.began_ns, tables, state, Machine())
    recording.write(1)
    recording.write(2)
    (run,) = recover()
    assert run.phases.values.tolist() == [["training", 0, SECOND_NS], ["validation", SECOND_NS, run.span_ns]]
    assert run.span_ns > 2 * SECOND_NS


def test_damage_ends_the_reading_and_nothing_else(spools, as_killed):
    recording = Recording()
    for second in range(1, 4):
        recording.write(second)
    (path,) = spools.iterdir()
    text = path.read_bytes()
    chance = random.Random(3)
    for _ in range(200):
        position = chance.randrange(len(MAGIC), len(text))
        path.write_bytes(text[:position] + bytes([text[position] ^ 0x55]) + text[position + 1 :])
        found = recover()
        assert len(found[0].mark_rows) in (10, 20) if found else True


def test_a_file_of_another_format_is_kept_aside_and_announced_once(spools, as_killed):
    recording = Recording()
    recording.write(1)
    (path,) = spools.iterdir()
    path.write_bytes(b"gpulab spool 9\n and more")
    assert "1 recording" in recoverable()
    with pytest.warns(UserWarning, match="cannot be recovered"):
        assert recover() == ()
    assert [each.suffix for each in spools.iterdir()] == [spool_files.DAMAGED_SUFFIX]
    assert recoverable() == ""


def test_the_line_about_leftovers_names_the_latest_recordings_with_their_dates(spools, as_killed):
    for name in ("first", "second", "third"):
        Recording(name).write(1)
    names = re.findall(r'"(\w+)" of \d{4}-\d\d-\d\d', recoverable())
    assert "3 recordings" in recoverable()
    assert len(names) == 2
    assert set(names) < {"first", "second", "third"}


def test_references_to_missing_parts_are_damage(spools, as_killed):
    recording = Recording()
    recording.loaders = []
    recording.write(1)
    with pytest.warns(UserWarning, match="cannot be recovered"):
        assert recover() == ()


def test_a_full_disk_ends_the_copy_but_not_the_recording(spools, as_killed, monkeypatch):
    recording = Recording()
    recording.write(1)
    events = recording.spool.window_path(0)
    events.write_text("{}")
    real = os.write

    def full(file, text):
        real(file, bytes(text)[:20])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spool_module.os, "write", full)
    recording.write(2)
    recording.write(3)
    assert len(recording.spool.gaps) == 1
    assert list(spools.iterdir()) == [events]  # the program needs the space; the run needs the events
    recording.spool.discard()
    assert list(spools.iterdir()) == []


def test_what_the_program_prints_never_goes_into_the_copy(spools, as_killed):
    """A program that closed its stdout would print into the next file that anybody opens."""
    saved = os.dup(1)
    try:
        os.close(1)
        recording = Recording()
        recording.write(1)
        with pytest.raises(OSError, match="Bad file"):
            os.write(1, b"printed")
    finally:
        os.dup2(saved, 1)
        os.close(saved)
    recording.write(2)
    assert len(recover()[0].mark_rows) == 20


def test_a_failing_disk_keeps_what_was_written(spools, as_killed, monkeypatch):
    recording = Recording()
    recording.write(1)
    real = os.write

    def broken(file, text):
        real(file, bytes(text)[:20])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(spool_module.os, "write", broken)
        recording.write(2)
    recording.write(3)
    assert "GPULAB_SPOOL" in recording.spool.gaps[0].fix
    assert len(recover()[0].mark_rows) == 10


@pytest.mark.parametrize("place", ["a file", "not writable", "no home"])
def test_a_folder_that_cannot_be_used_is_a_gap(place, tmp_path, monkeypatch):
    blocker = tmp_path / "blocker"
    blocker.write_text("")
    monkeypatch.chdir(tmp_path)
    if place == "no home":
        monkeypatch.delenv(spool_files.VARIABLE)
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    else:
        monkeypatch.setenv(spool_files.VARIABLE, str(blocker if place == "a file" else "/proc/nothing"))
    recording = Recording()
    recording.write(1)
    recording.write(2)
    assert len(recording.spool.gaps) == (place != "no home")
    assert [path.name for path in tmp_path.iterdir()] == ["blocker"]
    recording.spool.discard()


def test_a_failure_in_the_source_of_rows_is_a_gap(spools):
    spool = Spool("faulty", "trace")
    spool.begin(0, (lambda: 1 / 0,), RecordingState, Machine())
    spool.write(SECOND_NS)
    spool.write(2 * SECOND_NS)
    assert "ZeroDivisionError" in spool.gaps[0].why
    spool.discard()


def test_a_long_recording_keeps_its_latest_part_in_bounded_files(spools, as_killed):
    limit = 60_000
    recording = Recording(max_bytes=limit)
    chance = random.Random(1)
    for second in range(1, 200):
        recording.write(second, count=chance.randrange(50, 100))
        assert sum(path.stat().st_size for path in spools.iterdir()) < 1.2 * limit
    (run,) = recover()
    assert run.span_ns >= 199 * SECOND_NS
    assert "the first part of the run" in [gap.what for gap in run.recording.left_out]
    starts_ns = run.mark_rows["start_ns"] + run.began_ns
    assert starts_ns.tolist() == [row[1] for row in recording.marks[-len(starts_ns) :]]
    assert len(starts_ns) > 1000
    assert run.loaders == (Loader(workers=1),)
    assert list(spools.iterdir()) == []


def test_a_run_of_this_session_keeps_its_name(spools, as_killed):
    for _ in range(2):
        Recording("twice").write(1)
    assert sorted(run.name for run in recover()) == ["twice", "twice-recovered"]


def test_the_copy_can_be_disabled(monkeypatch, tmp_path):
    monkeypatch.setenv(spool_files.VARIABLE, "off")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    recording = Recording()
    recording.write(1)
    assert list(tmp_path.iterdir()) == []
    assert recording.spool.gaps == ()
    assert recover() == ()


def test_recordings_of_another_machine_are_left_until_they_stop_changing(spools, monkeypatch):
    monkeypatch.setattr(spool_files, "current_process", lambda: ProcessIdentity("0123abcd", os.getpid(), 77))
    recording = Recording()
    recording.write(1)
    assert recoverable() == ""
    (path,) = spools.iterdir()
    an_hour_ago_s = time.time() - 3600
    os.utime(path, (an_hour_ago_s, an_hour_ago_s))
    assert len(recover()) == 1


def test_old_recordings_are_deleted_by_the_next_one(spools, as_killed, monkeypatch):
    for number in range(25):
        Recording(f"lost{number}").write(1)
    assert len(find_leftovers()) <= spool_files._MAX_LEFTOVERS + 1
    for path in spools.iterdir():
        os.utime(path, (1, 1))
    Recording("new").write(1)
    assert [run.name for run in recover()] == ["new"]


def test_rows_survive_the_copy_exactly():
    frames = ["train (a.py:1)", None, "\udcff odd", "train (a.py:1)"]
    columns = {column.name: np.arange(4) for column in HOST_SAMPLES.columns if column.dtype != "words"}
    absent = dict.fromkeys(("called", "library_path"), [None] * 4)
    rows = HOST_SAMPLES.rows({**columns, **absent, "frame": frames, "evaluation": frames, "others_frame": frames})
    copy = decode_rows(encode_rows(rows))
    assert copy.text("frame").to_list() == ["train (a.py:1)", None, "? odd", "train (a.py:1)"]
    assert all(np.array_equal(copy[name], rows[name]) for name in columns)


def test_a_record_that_unpacks_to_gigabytes_ends_the_reading():
    import struct
    import zlib

    packed = zlib.compress(bytes(200 * 2**20), 9)
    text = struct.pack("<IIB", len(packed), zlib.crc32(packed, RecordKind.ROWS), RecordKind.ROWS) + packed
    first = frame_record(RecordKind.STATE, b"{}")
    assert list(split_records(MAGIC + first + text)) == [(RecordKind.STATE, b"{}")]


def test_writing_needs_neither_torch_nor_pyarrow(spools):
    code = (
        "import sys, time\n"
        "from tests.support.spool.recorded_loop import RecordedLoop\n"
        "loop = RecordedLoop(); loop.start()\n"
        "for _ in range(60): loop.step()\n"
        "loop.spool.write(time.time_ns() + 10**10)\n"
        "loop.stop()\n"
        "assert not {'torch', 'pyarrow', 'pandas'} & set(sys.modules), sorted(sys.modules)\n"
    )
    with warnings.catch_warnings():
        result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_loading_the_magics_announces_what_can_be_recovered(spools, as_killed):
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output

    Recording().write(1)
    shell = InteractiveShell()
    with capture_output() as output:
        gpulab.load_ipython_extension(shell)
    gpulab.unload_ipython_extension(shell)
    assert "gpulab.recover()" in output.stdout
    assert len(recover()) == 1
    with capture_output() as output:
        gpulab.load_ipython_extension(shell)
    gpulab.unload_ipython_extension(shell)
    assert output.stdout == ""
