"""A cell that is run for a limited time, and what it leaves: nothing."""

from __future__ import annotations

import gc
import itertools
import os
import random
import subprocess
import sys
from multiprocessing import popen_fork
from pathlib import Path

import numpy as np
import pytest
import torch

from gpulab.trial.preserved_state import preserved_settings, preserved_variables
from gpulab.trial.timed_run import TimedRun


def run(code, seconds=0.05, steps=1000, after="__builtins__", **variables):
    """Run code while so many steps are counted, once it has set a variable; return the run and its variables."""
    namespace = {"__name__": "__main__", **variables}
    timed = TimedRun(seconds, lambda: steps if after in namespace else 0)
    timed.run(lambda: exec(code, namespace))
    return timed, namespace


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "while True:\n    try:\n        1 / 0\n    except Exception:\n        pass",
        "try:\n    while True: sum([1])\nexcept BaseException: pass\nwhile True: pass",
        "def forever():\n    while True: yield 1\nfor x in forever(): pass",
    ],
    ids=["loop", "catches errors", "catches everything", "generator"],
)
def test_an_endless_cell_ends(code):
    timed, _ = run(code)
    assert timed.ended_early


def test_what_a_cell_has_open_when_it_is_ended_is_closed_without_a_warning():
    """The time may be up just after a library opened a socket; warnings are errors here."""
    code = "import socket\nwhile True: opened = socket.socket()"
    timed, namespace = run(code, after="opened")
    assert timed.ended_early
    namespace["opened"].close()


def test_a_cell_that_ends_by_itself_is_not_disturbed_afterwards():
    timed, namespace = run("x = 1", seconds=0.0)
    assert not timed.ended_early
    assert namespace["x"] == 1
    for _ in range(10_000):  # an exception that arrived late would be raised here
        pass


@pytest.mark.parametrize("code", ["x = 1", "while True: sum([1])"], ids=["ends by itself", "ended"])
def test_a_debugger_can_trace_afterwards(code):
    program = f"""
import sys
from gpulab.trial.timed_run import TimedRun
TimedRun(0.01, lambda: 1000).run(lambda: exec({code!r}, {{}}))
lines = []
def trace(frame, event, argument):
    lines.append(frame.f_lineno)
    return trace
def traced():
    return sum([1])
sys.settrace(trace)
traced()
sys.settrace(None)
assert lines
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_cleanup_code_of_the_cell_runs():
    code = "done = []\ntry:\n    is_entered = True\n    while True: sum([1])\nfinally:\n    done.append(1)"
    _, namespace = run(code, after="is_entered")
    assert namespace["done"] == [1]


def test_an_error_of_the_cell_is_raised():
    with pytest.raises(ZeroDivisionError):
        run("1 / 0")


def test_a_cell_without_steps_is_stopped():
    timed = TimedRun(0.05, lambda: 0, startup_s=0.05)
    timed.run(lambda: exec("while True: pass", {}))
    assert timed.without_steps


def test_too_few_steps_get_more_time(monkeypatch):
    monkeypatch.setattr("gpulab.trial.timed_run._MIN_STEPS", 6)
    monkeypatch.setattr("gpulab.trial.timed_run._MAX_FACTOR", 1e6)
    counted = itertools.count()
    timed = TimedRun(0.001, lambda: next(counted))
    timed.run(lambda: exec("while True: pass", {}))
    assert next(counted) > 6


def test_a_process_that_is_being_started_is_not_interrupted():
    """Hooks around a fork lock modules, as that of logging does; an exception there would leave them locked."""
    hook = """
import time
def after_fork():
    ends_s = time.monotonic() + 0.4  # several polls of the watch
    while time.monotonic() < ends_s: pass
    finished.append(1)
"""
    scope = {"finished": (finished := [])}
    exec(compile(hook, popen_fork.__file__, "exec"), scope)
    timed, _ = run("after_fork()\nwhile True: pass", seconds=0.0, after_fork=scope["after_fork"])
    assert timed.ended_early
    assert finished


def test_variables_are_restored_whatever_the_code_does():
    namespace = {"a": 1, "gone": 2}
    code = "assert a == 10\na += 1\nnew = 3\ndel gone\nraise KeyboardInterrupt"
    with pytest.raises(KeyboardInterrupt), preserved_variables(namespace, {"a": 10}):
        exec(code, namespace)
    namespace.pop("__builtins__", None)
    assert namespace == {"a": 1, "gone": 2}


def settings():
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tolist(),
        "torch": torch.get_rng_state().tolist(),
        "threads": torch.get_num_threads(),
        "dtype": torch.get_default_dtype(),
        "precision": torch.get_float32_matmul_precision(),
        "grad": torch.is_grad_enabled(),
        "anomaly": (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        "deterministic": torch.get_deterministic_debug_mode(),
        "collects": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "environment": dict(os.environ),
        "folder": Path.cwd(),
        "path": list(sys.path),
    }


@pytest.mark.usefixtures("nothing_is_frozen")
def test_settings_are_restored(tmp_path):
    before = settings()
    with preserved_settings():
        random.random(), np.random.rand(), torch.rand(1)
        torch.set_num_threads(before["threads"] + 1)
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        torch.set_grad_enabled(False)
        torch.autograd.set_detect_anomaly(True, check_nan=False)
        torch.use_deterministic_algorithms(True, warn_only=True)
        gc.disable()
        gc.set_threshold(1, 2, 3)
        gc.freeze()
        os.environ["GPULAB_TRIAL_TEST"] = "1"
        os.chdir(tmp_path)
        sys.path.insert(0, str(tmp_path))
    assert settings() == before


def test_threads_of_blas_are_restored():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    before = threadpoolctl.threadpool_info()
    with preserved_settings():
        threadpoolctl.threadpool_limits(1, user_api="blas")
    assert threadpoolctl.threadpool_info() == before
