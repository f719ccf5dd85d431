"""Loops that change settings of Python, PyTorch and the process, or hold odd variables."""

from __future__ import annotations

import contextlib
import gc
import io
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from typing import Any

import torch

import gpulab
from tests.chaos.areas.objects.loop import FEATURES, Interruption, Oddity, loop, train, train_step
from tests.chaos.program import Log


@loop("trace function")
def _(log: Log, *parts: Any) -> Any:
    def tracer(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_name == "train_step":
            log.call(f"trace {event}")
        return None

    sys.settrace(tracer)
    try:
        return train(log, *parts)
    finally:
        log.note(f"still mine: {sys.gettrace() is tracer}")
        sys.settrace(None)


@loop("profile function")
def _(log: Log, *parts: Any) -> Any:
    def profiler(frame: Any, event: str, _: Any) -> None:
        if frame.f_code.co_name == "train_step" and event in ("call", "return"):
            log.call(f"profile {event}")

    sys.setprofile(profiler)
    try:
        return train(log, *parts)
    finally:
        log.note(f"still mine: {sys.getprofile() is profiler}")
        sys.setprofile(None)


@loop("trace function left")
def _(log: Log, *parts: Any) -> Any:
    sys.settrace(_null_tracer)
    return train(log, *parts)


def _null_tracer(*_: Any) -> None:
    return None


@loop("gc callbacks")
def _(log: Log, *parts: Any) -> Any:
    def callback(phase: str, info: dict[str, int]) -> None:
        log.calls["gc " + phase] = 1

    gc.callbacks.append(callback)
    try:
        result = train(log, *parts)
        gc.collect()
        return result
    finally:
        gc.callbacks.remove(callback)


@loop("gc callbacks cleared")
def _(log: Log, *parts: Any) -> Any:
    before = list(gc.callbacks)
    gc.callbacks.clear()
    try:
        gc.collect()
        return train(log, *parts)
    finally:
        gc.callbacks[:] = before


@loop("gc settings left")
def _(log: Log, *parts: Any) -> Any:
    gc.disable()
    gc.set_threshold(17, 3, 5)
    return train(log, *parts)


@loop("gc frozen")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    gc.freeze()
    return result


@loop("warnings are errors")
def _(log: Log, *parts: Any) -> Any:
    warnings.simplefilter("error")
    return train(log, *parts)


@loop("warnings")
def _(log: Log, *parts: Any) -> Any:
    warnings.warn("a warning of the user's", UserWarning, stacklevel=1)
    with warnings.catch_warnings(record=True) as caught:
        result = train(log, *parts)
    log.note(f"{len(caught)} warnings")
    return result


@loop("output")
def _(log: Log, *parts: Any) -> Any:
    print("text \x1b[1m", flush=True)
    print("error", file=sys.stderr, flush=True)
    os.write(1, b"descriptor\n")
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        print("captured")
        result = train(log, *parts)
    return result, captured.getvalue()


@loop("streams replaced")
def _(log: Log, *parts: Any) -> Any:
    sys.stderr = None  # type: ignore[assignment]
    sys.stdout = io.StringIO()
    return train(log, *parts)


@loop("settings of torch left")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    return result


@loop("default device meta")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    with torch.device("meta"):
        loader, *_ = parts
        return result, sum(1 for _ in loader)


@loop("inference mode")
def _(log: Log, *parts: Any) -> Any:
    loader, module, _ = parts
    with torch.inference_mode():
        return [float(module(torch.ones(1, FEATURES)).sum()) for _ in loader]


@loop("function mode")
def _(log: Log, *parts: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.call("torch function")
            return function(*args, **(kwargs or {}))

    with Mode():
        return train(log, *parts)


@loop("dispatch mode")
def _(log: Log, *parts: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.call("torch dispatch")
            return function(*args, **(kwargs or {}))

    with Mode():
        return train(log, *parts)


@loop("random numbers")
def _(log: Log, *parts: Any) -> Any:
    import random

    import numpy

    result = train(log, *parts)
    return result, torch.rand(1).item(), random.random(), numpy.random.rand()


@loop("process settings left")
def _(log: Log, *parts: Any) -> Any:
    os.umask(0o027)
    os.chdir("/")
    os.environ["OF_THE_USER"] = "1"
    os.environ.pop("LANG", None)
    sys.setrecursionlimit(777)
    sys.setswitchinterval(0.011)
    return train(log, *parts)


@loop("handlers left")
def _(log: Log, *parts: Any) -> Any:
    signal.signal(signal.SIGUSR1, _handler)
    sys.excepthook = _handler  # type: ignore[assignment]
    threading.excepthook = _handler  # type: ignore[assignment]
    return train(log, *parts)


def _handler(*_: Any) -> None:
    """A handler of the user's."""


@loop("fork")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    child = os.fork()
    if child == 0:
        try:
            train(Log(), *parts)
            gpulab.step()
            os._exit(7)
        except BaseException:
            traceback.print_exc()
            os._exit(8)
    return result, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@loop("fork that leaves the block")
def _(log: Log, *parts: Any) -> Any:
    train(log, *parts)
    child = os.fork()
    if child == 0:
        sys.stderr = sys.stdout = None  # type: ignore[assignment]
        raise ForkedChildError  # ends below, outside the recorder
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class ForkedChildError(BaseException):
    """Raised in a child that must leave the recorded block."""


@loop("subprocess")
def _(log: Log, *parts: Any) -> Any:
    output = subprocess.run(["/bin/echo", "of a program"], capture_output=True, check=True).stdout
    return output, train(log, *parts)


@loop("time frozen")
def _(log: Log, *parts: Any) -> Any:
    now_ns = time.time_ns()
    originals = time.time, time.time_ns, time.monotonic, time.perf_counter
    time.time, time.time_ns = lambda: 1.0, lambda: 1_000_000_000
    time.monotonic = time.perf_counter = lambda: 1.0
    try:
        return train(log, *parts)
    finally:
        time.time, time.time_ns, time.monotonic, time.perf_counter = originals
        log.note(str(time.time_ns() >= now_ns))


@loop("time raises")
def _(log: Log, *parts: Any) -> Any:
    originals = time.time_ns, time.thread_time_ns, time.process_time_ns

    def broken() -> int:
        raise Oddity("clock")

    time.time_ns = time.thread_time_ns = time.process_time_ns = broken
    try:
        return train(log, *parts)
    finally:
        time.time_ns, time.thread_time_ns, time.process_time_ns = originals


@loop("clock goes back")
def _(log: Log, *parts: Any) -> Any:
    original, calls = time.time_ns, [0]

    def backwards() -> int:
        calls[0] += 1
        return original() - calls[0] * 10**10

    time.time_ns = backwards
    try:
        return train(log, *parts)
    finally:
        time.time_ns = original


@loop("names of odd objects")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    failing, interrupting, mapping, sequence, hostile = odd_values = _odd_values()
    variables = [odd_values, failing, interrupting, mapping, sequence, hostile]  # gpulab looks through them
    total = 0.0
    for batch in loader:
        total += train_step(batch, module, optimizer)
    return f"{total:.6f}", len(variables)


def _odd_values() -> tuple[Any, ...]:
    def fail(*_: Any) -> Any:
        raise Oddity("of a variable")

    def interrupt(*_: Any) -> Any:
        raise Interruption("of a variable")

    attributes = ("__class__", "__dict__", "dataset", "_modules", "_orig_mod", "__len__", "is_cuda")
    failing = type("Failing", (), {**dict.fromkeys(attributes, property(fail)), "__eq__": fail, "__getattr__": fail})
    interrupting = type("Interrupting", (), dict.fromkeys(attributes, property(interrupt)))
    odd_dict = type("OddDict", (dict,), {"values": fail, "items": fail, "__len__": fail, "__iter__": fail})
    odd_list = type("OddList", (list,), {"__len__": interrupt, "__iter__": interrupt, "__getitem__": interrupt})
    hostile = type("Hostile", (), {"__getattribute__": interrupt})
    return failing(), interrupting(), odd_dict(), odd_list(), hostile()


@loop("locals are kept")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for batch in loader:
        names = locals()
        train_step(batch, module, optimizer)
        log.note(",".join(sorted(names)))
    return sorted(sys._getframe().f_locals)


@loop("deep recursion")
def _(log: Log, *parts: Any) -> Any:
    def deeper(depth: int) -> Any:
        return train(log, *parts) if depth == 0 else deeper(depth - 1)

    return deeper(600)


@loop("nearly at the recursion limit")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts

    def deepest(depth: int) -> int:
        try:
            return deepest(depth + 1)
        except RecursionError:
            return depth

    limit = deepest(0)
    return limit > 100, train(log, loader, module, optimizer)
