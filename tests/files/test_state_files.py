"""Progress and predictions survive damage, a full disk, kills and two writers at once."""

import errno
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from gpulab.replay.history import MeasuredPrediction
from gpulab.user_data import course_progress, predictions, state_file

ROOT = Path(__file__).resolve().parents[2]
DONE = course_progress.LessonResults(
    date="2026-01-01", device="CPU", predicted=3, foreseen=2, right=1, held=4, claims=4
)
NESTED = "[" * 100_000
WRITER = """
import sys
from gpulab.replay.history import MeasuredPrediction
from gpulab.user_data import course_progress, predictions
number = sys.argv[1]
for index in range(40):
    assert course_progress.store_predictions(f"{number}-{index}", {"a": "b"})
    past = MeasuredPrediction(kind=number, step_ns=100, predicted_ns=90, best_ns=80, worst_ns=100,
                              measured_ns=index + 1, device="CPU", date="2026-01-01")
    assert predictions.store_prediction(past)
"""


def prediction(number=1, kind="workers"):
    times = {"step_ns": 100, "predicted_ns": 90, "best_ns": 80, "worst_ns": 100, "measured_ns": number}
    return MeasuredPrediction(kind=kind, device="CPU", date="2026-01-01", **times)


@pytest.fixture
def progress(tmp_path, monkeypatch):
    monkeypatch.setenv(course_progress.VARIABLE, str(tmp_path / "progress.json"))
    return tmp_path / "progress.json"


@pytest.fixture
def history(tmp_path, monkeypatch):
    monkeypatch.setenv(predictions.VARIABLE, str(tmp_path / "predictions.jsonl"))
    return tmp_path / "predictions.jsonl"


@pytest.fixture
def full_disk(monkeypatch):
    """A switch: from then on, nothing can be written to a file that gpulab opens."""
    real = Path.open

    class Full:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, text):
            self.file.write(text[: len(text) // 2])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def opened(path, mode="r", *args, **kwargs):
        file = real(path, mode, *args, **kwargs)
        return Full(file) if "w" in mode or "x" in mode else file

    return lambda: monkeypatch.setattr(Path, "open", opened)


@pytest.mark.parametrize("text", [NESTED, '{"done": ' + NESTED, "{", "[1]", "\udcff", "null", '{"done"', "9" * 10_000])
def test_damaged_progress_is_kept_aside_and_reported_once(progress, text):
    progress.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.warns(UserWarning, match="is damaged"):
        assert course_progress.load_progress() == {}
    assert course_progress.read_predicted_letters("a") == {}  # without a second warning, which would be an error
    aside = progress.with_name("progress.json.damaged")
    assert aside.read_text(encoding="utf-8", errors="surrogateescape") == text
    assert course_progress.store_progress("a", DONE) == progress
    assert course_progress.load_progress() == {"a": DONE}


def test_progress_damaged_before_a_change_is_kept_aside(progress):
    progress.write_text("{", encoding="utf-8")
    with pytest.warns(UserWarning, match="is damaged"):
        assert course_progress.store_progress("a", DONE) == progress
    assert progress.with_name("progress.json.damaged").read_text(encoding="utf-8") == "{"
    assert course_progress.load_progress() == {"a": DONE}


def test_entries_of_another_version_survive_a_change(progress):
    newer = {"done": {"b": {"date": "2027-01-01", "score": 3}}, "predicted": {"c": 1}, "badges": [1, 2]}
    progress.write_text(json.dumps(newer), encoding="utf-8")
    course_progress.store_progress("a", DONE)
    course_progress.store_predictions("d", {"x": "y"})
    content = json.loads(progress.read_text(encoding="utf-8"))
    assert content["badges"] == [1, 2]
    assert content["done"].keys() == {"a", "b"}
    assert content["predicted"] == {"c": 1, (Path.cwd() / "d").as_posix(): {"x": "y"}}


def test_a_full_disk_leaves_the_files_as_they_were(progress, history, full_disk):
    course_progress.store_progress("a", DONE)
    predictions.store_prediction(prediction())
    before = progress.read_bytes(), history.read_bytes()
    full_disk()
    assert course_progress.store_progress("b", DONE) is None
    assert predictions.store_prediction(prediction(2)) is None
    assert (progress.read_bytes(), history.read_bytes()) == before
    assert sorted(path.suffix for path in progress.parent.iterdir()) == [".json", ".jsonl", ".lock", ".lock"]


def test_a_file_that_cannot_be_read_is_not_replaced(progress, monkeypatch):
    course_progress.store_progress("a", DONE)
    before = progress.read_bytes()

    def fails(path):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", fails)
        assert course_progress.load_progress() == {}
        assert course_progress.store_progress("b", DONE) is None
    assert progress.read_bytes() == before


@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_only_regular_files_are_read_and_replaced(kind, tmp_path, monkeypatch):
    path = tmp_path / "pipe" if kind == "fifo" else Path(os.devnull)
    if kind == "fifo":
        os.mkfifo(path)
    monkeypatch.setenv(predictions.VARIABLE, str(path))
    assert predictions.read_measured_predictions() == ()
    before = path.stat().st_mode
    assert predictions.store_prediction(prediction()) is None
    assert path.stat().st_mode == before


@pytest.mark.full
def test_two_writers_lose_nothing(progress, history):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(number)], cwd=ROOT) for number in range(3)]
    assert [writer.wait() for writer in writers] == [0, 0, 0]
    content = json.loads(progress.read_text(encoding="utf-8"))
    assert len(content["predicted"]) == 120
    assert len(predictions.read_measured_predictions()) == 120


def test_two_threads_lose_nothing(progress):
    def store(number):
        for index in range(10):
            course_progress.store_predictions(f"{number}-{index}", {"a": "b"})

    threads = [threading.Thread(target=store, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(progress.read_text(encoding="utf-8"))["predicted"]) == 40


@pytest.mark.parametrize("system_lock", [True, False])
def test_a_writer_that_hangs_delays_others_by_a_second_at_most(progress, system_lock, monkeypatch):
    if not system_lock:
        monkeypatch.setattr(state_file, "fcntl", None)
    course_progress.store_progress("a", DONE)
    with state_file._lock(progress):
        began_s = time.monotonic()
        assert course_progress.store_progress("b", DONE) is None
        assert time.monotonic() - began_s < 3  # on a loaded machine
        assert course_progress.load_progress() == {"a": DONE}  # reading waits for nobody
    assert course_progress.store_progress("b", DONE) == progress


def test_a_lock_file_of_a_killed_process_is_removed(progress, monkeypatch):
    monkeypatch.setattr(state_file, "fcntl", None)
    lock = progress.with_name(".progress.json.exclusive")
    lock.write_text("", encoding="utf-8")
    os.utime(lock, (1, 1))
    assert course_progress.store_progress("a", DONE) == progress
    assert not lock.exists()


@pytest.mark.full
def test_a_writer_killed_at_any_time_leaves_a_valid_file(progress, history):
    for delay_s in (0.0, 0.01, 0.03, 0.05, 0.1):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, "1"], cwd=ROOT)
        while not progress.exists() and writer.poll() is None:
            time.sleep(0.005)
        time.sleep(delay_s)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert course_progress.store_progress("a", DONE) == progress
        assert course_progress.load_progress() == {"a": DONE}
        progress.unlink()


def test_links_and_permissions_stay(tmp_path, monkeypatch):
    real, link = tmp_path / "real.json", tmp_path / "link.json"
    real.write_text("{}", encoding="utf-8")
    real.chmod(0o640)
    link.symlink_to(real)
    monkeypatch.setenv(course_progress.VARIABLE, str(link))
    course_progress.store_progress("a", DONE)
    assert link.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert course_progress.load_progress() == {"a": DONE}


def test_damaged_lines_of_the_history_are_kept_aside_at_the_next_change(history):
    other = json.dumps({"kind": "of a newer version"})
    predictions.store_prediction(prediction())
    with history.open("a", encoding="utf-8") as lines:
        lines.write(f'{NESTED}\n\n{other}\n{{"kind": "wor')
    assert predictions.read_measured_predictions() == (prediction(),)
    with pytest.warns(UserWarning, match="2 lines"):
        assert predictions.store_prediction(prediction(2)) == history
    assert predictions.read_measured_predictions() == (prediction(), prediction(2))
    assert other in history.read_text(encoding="utf-8").splitlines()
    aside = history.with_name("predictions.jsonl.damaged").read_text(encoding="utf-8")
    assert aside.splitlines() == [NESTED, '{"kind": "wor']


def test_without_a_home_nothing_is_stored(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for variable in (course_progress.VARIABLE, predictions.VARIABLE, "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert course_progress.load_progress() == {}
    assert course_progress.store_progress("a", DONE) is None
    assert predictions.store_prediction(prediction()) is None
    assert list(tmp_path.iterdir()) == []
