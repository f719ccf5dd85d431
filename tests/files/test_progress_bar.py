"""A long load shows a bar, in a terminal or a notebook; done, failed or interrupted, nothing of it stays."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import gpulab
from gpulab import trace
from gpulab.errors import TraceError
from gpulab.files import progress_bar
from tests.support.runs.files_on_disk import LONG, write

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def terminal_output(monkeypatch):
    """Run an action with a terminal as sys.stderr; return its output. Bars appear at once."""
    pty, fcntl, termios = map(pytest.importorskip, ("pty", "fcntl", "termios"))
    monkeypatch.setattr(progress_bar, "DELAY_S", 0.0)

    def run(action):
        above, below = pty.openpty()
        fcntl.ioctl(below, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
        with os.fdopen(above, "rb", buffering=0) as screen, os.fdopen(below, "w") as terminal:
            with contextlib.redirect_stderr(terminal):
                action()
                terminal.write("END")
                terminal.flush()
            text = b""
            while not text.endswith(b"END"):
                text += screen.read(65536)
        return text.removesuffix(b"END").decode()

    return run


def test_a_long_load_shows_a_bar_in_a_terminal_and_removes_it(tmp_path, terminal_output):
    path = write(tmp_path / "a.json", events=LONG)
    *states, blank, rest = terminal_output(lambda: gpulab.load(path)).split("\r")
    assert any("a.json:" in state and "%|" in state for state in states)
    assert (blank.strip(), rest) == ("", "")
    assert len(blank) >= max(map(len, states))


def test_a_failed_load_removes_the_bar(tmp_path, terminal_output):
    path = write(tmp_path / "a.json", events=LONG)
    path.write_bytes(path.read_bytes().replace(b"traceEvents", b"otherEvents"))

    def load():
        with pytest.raises(TraceError):
            gpulab.load(path)

    *states, blank, rest = terminal_output(load).split("\r")
    assert any("%|" in state for state in states)
    assert (blank.strip(), rest) == ("", "")


def test_progress_false_shows_no_bar(tmp_path, terminal_output):
    path = write(tmp_path / "a.json", events=LONG)
    assert terminal_output(lambda: gpulab.load(path, progress=False)) == ""


def test_a_bar_leaves_no_thread_and_no_process_behind(tmp_path, terminal_output, nothing_left):
    path = write(tmp_path / "a.json", events=LONG)
    assert "%|" in terminal_output(lambda: gpulab.load(path))
    nothing_left()


def test_a_log_gets_no_bar(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(progress_bar, "DELAY_S", 0.0)
    gpulab.load(write(tmp_path / "a.json", events=LONG))
    assert capsys.readouterr() == ("", "")


def test_a_quick_load_does_not_even_import_the_bar(tmp_path):
    script = "import sys, gpulab; gpulab.load(sys.argv[1]); print('tqdm' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script, str(write(tmp_path / "a.json"))],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.stdout.strip(), done.stderr) == ("False", "")


@pytest.mark.parametrize("cache", [False, True])
def test_each_file_starts_at_the_sum_of_the_sizes_before_it(tmp_path, monkeypatch, recorded, cache):
    minitoy = recorded("mi250_minitoy.json.gz").read_bytes()
    (tmp_path / "1 whole.json.gz").write_bytes(minitoy)
    (tmp_path / "2 cut.json.gz").write_bytes(minitoy[:3000])
    (tmp_path / "3 broken.json").write_bytes(bytes(5000))
    gpulab.save(trace.read(write(tmp_path / "4 long.json", events=LONG)), tmp_path / "5 saved.gpulab")
    write(tmp_path / "6 last.json")
    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    read, positions = [0], []
    real = progress_bar.Progress

    class Watched(real):
        def begin(self, path):
            super().begin(path)
            positions.append(sum(read))

        def advance(self, count):
            read.append(count)
            super().advance(count)

    monkeypatch.setattr("gpulab.files.loading.Progress", Watched)
    for _ in range(2):
        read.clear()
        positions.clear()
        with pytest.warns(UserWarning, match="1 of 6"):
            gpulab.load(tmp_path, cache=cache)
        assert positions == [sum(sizes[:count]) for count in range(6)]


NOTEBOOK = """
import warnings; warnings.simplefilter("always")
import gpulab
from gpulab.files import progress_bar
delay_s, progress_bar.DELAY_S = progress_bar.DELAY_S, 0.0
"""


@pytest.mark.full
def test_a_notebook_keeps_no_bar_and_shows_no_warning(tmp_path, shared_kernel):
    hostile = write(tmp_path / "<img src=x onerror=alert(1)>.json", events=LONG)
    live = shared_kernel(NOTEBOOK)
    try:
        reply = live.run(f"print(1)\nrun = gpulab.load({str(hostile)!r})\nprint(2)")
        assert reply.status == "ok", reply.traceback
        bars = [message["content"]["data"] for message in reply.of("display_data")]
        assert "application/vnd.jupyter.widget-view+json" in bars[0], "there was a bar"
        assert reply.outputs == [("stdout", "1\n"), ("display_data", ""), ("stdout", "2\n")]
        assert reply.bundles == [{"text/plain": ""}]
        assert reply.stderr == ""
        assert len(reply.of("comm_open")) == len(reply.of("comm_close")), "widgets that stay"
        sent = json.dumps([message["content"] for message in reply.messages if message["msg_type"].startswith("comm")])
        assert "&lt;img" in sent
        assert "<img" not in sent, "a name is text, never HTML"

        write(hostile, events=5 * LONG)
        broken = live.interrupted(f"print('started', flush=True)\nwhile True: gpulab.load({str(hostile)!r})")
        assert [error["ename"] for error in broken.errors] == ["KeyboardInterrupt"]
        assert all(bundle == {"text/plain": ""} for bundle in broken.bundles)
        assert live.run(f"gpulab.load({str(hostile)!r}, progress=False)").value.startswith("Run(")
    finally:
        live.run("progress_bar.DELAY_S = delay_s; warnings.resetwarnings()")


@pytest.mark.full
def test_a_notebook_without_widgets_shows_no_bar_and_no_warning(tmp_path):
    pytest.importorskip("ipykernel")
    from tests.support.front_end.kernel import kernel

    path = write(tmp_path / "a.json", events=LONG)
    with kernel("import sys; sys.modules['ipywidgets'] = None", NOTEBOOK) as live:
        reply = live.run(f"gpulab.load({str(path)!r})")
        assert [kind for kind, _ in reply.outputs] == ["execute_result"], reply.traceback
        assert live.value("'tqdm.auto' in sys.modules"), "a bar was looked for"


# Interrupted.

INTERRUPTED = """
import os, signal, sys, threading, warnings
import psutil, gpulab
from gpulab.files import progress_bar

progress_bar.DELAY_S = 0.0
path = sys.argv[1]
kept = []
for delay_s in (0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
    timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    try:
        while True:
            gpulab.load(path, cache=sys.argv[2])
            for name in os.listdir(sys.argv[2]):
                os.remove(os.path.join(sys.argv[2], name))
    except KeyboardInterrupt as error:
        kept.append(error)  # with its traceback, as IPython keeps it
    timer.join()
    assert not [file for file in psutil.Process().open_files() if file.path.startswith(os.path.dirname(path))]
    assert threading.active_count() == 1
left = [name for name in os.listdir(sys.argv[2]) if not name.endswith(".gpulab")]
assert not left, left
run = gpulab.load(path)
print(len(kept), len(run.event_rows))
"""


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is sent as a signal here")
def test_ctrl_c_ends_a_load_at_once_and_leaves_nothing_open_or_half_done(tmp_path):
    path = write(tmp_path / "a.json", events=150_000)
    (tmp_path / "kept").mkdir()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", INTERRUPTED, str(path), str(tmp_path / "kept")],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["6", "150000"]
