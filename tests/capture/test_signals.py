"""Signals while gpulab records: exceptions of handlers, Ctrl-C, and blocks that never end."""

import contextlib
import os
import signal
import threading
import time

import pytest

torch = pytest.importorskip("torch", reason="recording needs PyTorch: pip install torch")

from torch.utils.data import DataLoader, Sampler  # noqa: E402

import gpulab  # noqa: E402
from gpulab.capture import session as session_module  # noqa: E402
from gpulab.capture.protection.guard import Guard, is_from_outside, outside_error  # noqa: E402
from gpulab.capture.protection.main_thread import PendingCall  # noqa: E402
from gpulab.deferred_signals import DeferredSignals  # noqa: E402

pytestmark = pytest.mark.usefixtures("nothing_left")


class TimeLimitError(Exception):
    pass


@contextlib.contextmanager
def handling(number, handler):
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, before)


def time_limit(number, frame):
    raise TimeLimitError(number)


class SignallingBatches(Sampler):
    """The signal arrives while gpulab reads the length."""

    batch_size = 3

    def __iter__(self):
        return iter([[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]])

    def __len__(self):
        signal.raise_signal(signal.SIGUSR1)
        return 4


def test_a_signal_handlers_exception_passes_our_hooks():
    with (
        handling(signal.SIGUSR1, time_limit),
        gpulab.profile("limited", level="sensors"),
        pytest.raises(TimeLimitError),
    ):
        list(DataLoader(torch.arange(12), batch_sampler=SignallingBatches()))


def test_the_guard_tells_a_handlers_exception_from_our_own():
    def fails():
        raise ValueError("ours")

    guard = Guard()
    assert guard.call("a feature", fails, 7) == 7
    assert guard.call("a feature", lambda: 8, 7) == 7, "it is not called again"
    assert [gap.what for gap in guard.gaps] == ["a feature"]

    def handled(*args):
        raise TimeLimitError

    for handler in (time_limit, handled):
        with handling(signal.SIGUSR1, handler), pytest.raises(TimeLimitError) as caught:
            guard.call("another", lambda: signal.raise_signal(signal.SIGUSR1), None)
        assert is_from_outside(caught.value)


def test_what_a_handler_raised_is_found_under_the_errors_that_followed():
    """A handler's TimeoutError is an OSError: our code that reads a file reports it as an error of that file."""

    def late(number, frame):
        raise TimeoutError("time is up")

    def read():
        try:
            signal.raise_signal(signal.SIGUSR1)
        except OSError as error:
            try:
                raise KeyError("no such column")
            except KeyError:
                raise ValueError("unreadable") from error

    with handling(signal.SIGUSR1, late), pytest.raises(ValueError, match="unreadable") as caught:
        read()
    found = outside_error(caught.value)
    assert type(found) is TimeoutError
    assert str(found) == "time is up"
    assert outside_error(ValueError("ours")) is None


def spin(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


@pytest.mark.parametrize(
    ("number", "handler", "expected"),
    [(signal.SIGINT, signal.default_int_handler, KeyboardInterrupt), (signal.SIGUSR1, time_limit, TimeLimitError)],
    ids=["ctrl-c", "handler"],
)
@pytest.mark.parametrize("part", [0.0, 0.5, 1.2])
def test_an_interrupt_during_a_pending_call_reaches_the_users_code_once(number, handler, expected, part):
    arrived, began = [], threading.Event()

    def counted(number, frame):
        arrived.append(number)
        handler(number, frame)

    def ours():
        began.set()
        spin(0.05)

    call = PendingCall(ours)
    killer = threading.Thread(
        target=lambda: (began.wait(), time.sleep(0.05 * part), os.kill(os.getpid(), number)), daemon=True
    )
    caught = False
    with handling(number, counted):
        killer.start()
        try:
            call.request()
            spin(1)
        except expected:
            caught = True
        killer.join()
    assert caught
    assert arrived == [number]


def test_held_signals_run_after_the_context_and_every_handler_is_restored():
    seen = []
    with handling(signal.SIGUSR1, lambda *_: seen.append("handled")):
        handler = signal.getsignal(signal.SIGUSR1)
        with DeferredSignals(again=True):
            signal.raise_signal(signal.SIGUSR1)
            spin(0.01)
            seen.append("ours")
        spin(0.01)
        assert seen == ["ours", "handled"]
        assert signal.getsignal(signal.SIGUSR1) is handler


def test_ctrl_c_while_recording_starts_leaves_nothing(monkeypatch, nothing_left):
    start = session_module.Sensors.start

    def interrupted(sensors):
        start(sensors)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(session_module.Sensors, "start", interrupted)
    with pytest.raises(KeyboardInterrupt), gpulab.profile("interrupted"):
        pass
    monkeypatch.undo()
    assert "gpulab-sampler" not in [thread.name for thread in threading.enumerate()]
    with gpulab.profile("again", level="sensors"):
        pass


def test_a_block_that_is_dropped_without_its_end_stops_recording_and_warns():
    """A handler can raise at the first instruction of `__exit__`; Python then forgets the block."""
    blocks = [gpulab.profile("dropped", level="sensors")]
    blocks[0].__enter__()
    assert "gpulab-sampler" in [thread.name for thread in threading.enumerate()]
    with pytest.warns(UserWarning, match="'dropped' was lost"):
        blocks.clear()
    assert "gpulab-sampler" not in [thread.name for thread in threading.enumerate()]
    with gpulab.profile("again", level="sensors") as session:
        pass
    assert session.run.name == "again"
