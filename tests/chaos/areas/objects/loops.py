"""Unusual training loops: where they stop, what else runs in them, and what they do to PyTorch and Python."""

from __future__ import annotations

import asyncio
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
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

import gpulab
from tests.chaos.areas.objects.loop import FEATURES, Interruption, Oddity, train, train_step
from tests.chaos.program import Log

Parts = tuple[Any, Any, Any]  # loader, module, optimizer
Loop = Callable[[Log, Any, Any, Any], Any]
LOOPS: dict[str, Loop] = {}


def _loop(name: str) -> Callable[[Loop], Loop]:
    def register(function: Loop) -> Loop:
        LOOPS[name] = function
        return function

    return register


LOOPS["ordinary"] = train


@_loop("abandoned epoch")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for _epoch in range(3):
        for index, batch in enumerate(loader):
            train_step(batch, module, optimizer)
            if index == 3:
                break
    return train(log, *parts)


@_loop("iterator abandoned")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    iterators = [iter(loader) for _ in range(3)]
    for iterator in iterators:
        train_step(next(iterator), module, optimizer)
    del iterators, iterator
    gc.collect()
    return train(log, *parts)


@_loop("two iterators")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    return sum(train_step(first, module, optimizer) for first, _ in zip(loader, loader, strict=False))


@_loop("nested loaders")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for index, batch in enumerate(loader):
        train_step(batch, module, optimizer)
        if index % 3 == 0:
            log.note(str(sum(1 for _ in DataLoader(list(range(6)), batch_size=2))))
    return None


@_loop("loader in a thread")
def _(log: Log, *parts: Any) -> Any:
    thread = threading.Thread(target=lambda: log.note(train(Log(), *parts)))
    thread.start()
    thread.join()
    return train(log, *parts)


@_loop("iterator changes thread")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    iterator = iter(loader)
    train_step(next(iterator), module, optimizer)
    thread = threading.Thread(target=lambda: log.note(str(sum(1 for _ in iterator))))
    thread.start()
    thread.join()
    return next(iterator, "the end")


@_loop("loop in a generator")
def _(log: Log, *parts: Any) -> Any:
    def losses() -> Iterator[float]:
        loader, module, optimizer = parts
        try:
            for batch in loader:
                yield train_step(batch, module, optimizer)
        finally:
            log.note("closed")

    generator = losses()
    first = [next(generator) for _ in range(3)]
    generator.close()
    return first, train(log, *parts)


@_loop("async loop")
def _(log: Log, *parts: Any) -> Any:
    async def epoch() -> str:
        loader, module, optimizer = parts
        total = 0.0
        for batch in loader:
            total += train_step(batch, module, optimizer)
            await asyncio.sleep(0)
        return f"{total:.6f}"

    async def both() -> Any:
        return await asyncio.gather(epoch(), asyncio.wait_for(asyncio.sleep(0.01, "slept"), 5))

    new_loop = asyncio.new_event_loop()
    try:
        return new_loop.run_until_complete(both())
    finally:
        new_loop.close()


@_loop("two programs in threads")
def _(log: Log, *parts: Any) -> Any:
    def count() -> None:
        log.call("other thread")

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    result = train(log, *parts)
    for thread in threads:
        thread.join()
    return result


@_loop("thread still runs at the end")
def _(log: Log, *parts: Any) -> Any:
    event = threading.Event()
    thread = threading.Thread(target=lambda: event.wait(0.2), daemon=True)
    thread.start()
    return train(log, *parts)


@_loop("gpulab.step")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for batch in loader:
        train_step(batch, module, optimizer)
        gpulab.step()
        gpulab.step()
    return None


@_loop("gpulab.step alone")
def _(log: Log, *parts: Any) -> Any:
    for _ in range(30):
        gpulab.step()
    return train(log, *parts)


@_loop("gpulab.step in a thread")
def _(log: Log, *parts: Any) -> Any:
    thread = threading.Thread(target=lambda: [gpulab.step() for _ in range(20)])
    thread.start()
    result = train(log, *parts)
    thread.join()
    return result


@_loop("gpulab.step misused")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    with contextlib.suppress(TypeError):
        gpulab.step(3)  # type: ignore[call-arg]
    return result


@_loop("gpulab.step in a handler")
def _(log: Log, *parts: Any) -> Any:
    before = signal.signal(signal.SIGUSR2, lambda *_: gpulab.step())
    try:
        loader, module, optimizer = parts
        for batch in loader:
            train_step(batch, module, optimizer)
            os.kill(os.getpid(), signal.SIGUSR2)
    finally:
        signal.signal(signal.SIGUSR2, before)
    return None


@_loop("user's profiler around the loop")
def _(log: Log, *parts: Any) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        result = train(log, *parts)
    return result, len(profiler.key_averages()) > 3


@_loop("user's profiler in the loop")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    names = []
    for index, batch in enumerate(loader):
        if index in (1, 7):
            with torch.autograd.profiler.profile() as profiler:
                train_step(batch, module, optimizer)
            names.append(any("mul" in event.key for event in profiler.key_averages()))
        else:
            train_step(batch, module, optimizer)
    return names, train(log, *parts)


@_loop("user's profiler with a schedule")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    traces: list[int] = []
    plan = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    with torch.profiler.profile(schedule=plan, on_trace_ready=lambda _: traces.append(1)) as profiler:
        for batch in loader:
            train_step(batch, module, optimizer)
            profiler.step()
    return len(traces)


@_loop("user's profiler left open")
def _(log: Log, *parts: Any) -> Any:
    profiler = torch.profiler.profile()
    profiler.start()
    try:
        return train(log, *parts)
    finally:
        profiler.stop()


@_loop("next patched and left")
def _(log: Log, *parts: Any) -> Any:
    original = _BaseDataLoaderIter.__next__
    _BaseDataLoaderIter.__next__ = _patched_next  # type: ignore[method-assign]
    _patched_next.original = original  # type: ignore[attr-defined]
    try:
        result = train(log, *parts)
    finally:
        log.note(f"still patched: {_BaseDataLoaderIter.__next__ is _patched_next}")
    return result


def _patched_next(iterator: Any) -> Any:
    return _patched_next.original(iterator)  # type: ignore[attr-defined]


@_loop("next patched and restored")
def _(log: Log, *parts: Any) -> Any:
    original = _BaseDataLoaderIter.__next__

    def patched(iterator: Any) -> Any:
        log.call("patched next")
        return original(iterator)

    _BaseDataLoaderIter.__next__ = patched  # type: ignore[method-assign]
    try:
        return train(log, *parts)
    finally:
        _BaseDataLoaderIter.__next__ = original  # type: ignore[method-assign]


@_loop("prepare of profilers patched")
def _(log: Log, *parts: Any) -> Any:
    original = torch.autograd.profiler._prepare_profiler

    def patched(*arguments: Any) -> Any:
        return original(*arguments)

    torch.autograd.profiler._prepare_profiler = patched
    log.note("patched")
    return train(log, *parts)


@_loop("global optimizer hook left")
def _(log: Log, *parts: Any) -> Any:
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(_global_hook)
    return train(log, *parts)


def _global_hook(*_: Any) -> None:
    """A hook of the user's that stays."""


@_loop("global optimizer hooks cleared")
def _(log: Log, *parts: Any) -> Any:
    from torch.optim import optimizer

    hooks = dict(optimizer._global_optimizer_post_hooks)
    optimizer._global_optimizer_post_hooks.clear()
    try:
        return train(log, *parts)
    finally:
        optimizer._global_optimizer_post_hooks.update(hooks)


@_loop("step of optimizers patched")
def _(log: Log, *parts: Any) -> Any:
    original = torch.optim.SGD.step

    def patched(*arguments: Any, **options: Any) -> Any:
        log.call("patched step")
        return original(*arguments, **options)

    torch.optim.SGD.step = patched  # type: ignore[method-assign]
    try:
        return train(log, *parts)
    finally:
        torch.optim.SGD.step = original  # type: ignore[method-assign]


@_loop("trace function")
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


@_loop("profile function")
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


@_loop("trace function left")
def _(log: Log, *parts: Any) -> Any:
    sys.settrace(_null_tracer)
    return train(log, *parts)


def _null_tracer(*_: Any) -> None:
    return None


@_loop("gc callbacks")
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


@_loop("gc callbacks cleared")
def _(log: Log, *parts: Any) -> Any:
    before = list(gc.callbacks)
    gc.callbacks.clear()
    try:
        gc.collect()
        return train(log, *parts)
    finally:
        gc.callbacks[:] = before


@_loop("gc settings left")
def _(log: Log, *parts: Any) -> Any:
    gc.disable()
    gc.set_threshold(17, 3, 5)
    return train(log, *parts)


@_loop("gc frozen")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    gc.freeze()
    return result


@_loop("warnings are errors")
def _(log: Log, *parts: Any) -> Any:
    warnings.simplefilter("error")
    return train(log, *parts)


@_loop("warnings")
def _(log: Log, *parts: Any) -> Any:
    warnings.warn("a warning of the user's", UserWarning, stacklevel=1)
    with warnings.catch_warnings(record=True) as caught:
        result = train(log, *parts)
    log.note(f"{len(caught)} warnings")
    return result


@_loop("output")
def _(log: Log, *parts: Any) -> Any:
    print("text \x1b[1m", flush=True)
    print("error", file=sys.stderr, flush=True)
    os.write(1, b"descriptor\n")
    with contextlib.redirect_stdout(io.StringIO()) as captured:
        print("captured")
        result = train(log, *parts)
    return result, captured.getvalue()


@_loop("streams replaced")
def _(log: Log, *parts: Any) -> Any:
    sys.stderr = None  # type: ignore[assignment]
    sys.stdout = io.StringIO()
    return train(log, *parts)


@_loop("settings of torch left")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    return result


@_loop("default device meta")
def _(log: Log, *parts: Any) -> Any:
    result = train(log, *parts)
    with torch.device("meta"):
        loader, *_ = parts
        return result, sum(1 for _ in loader)


@_loop("inference mode")
def _(log: Log, *parts: Any) -> Any:
    loader, module, _ = parts
    with torch.inference_mode():
        return [float(module(torch.ones(1, FEATURES)).sum()) for _ in loader]


@_loop("function mode")
def _(log: Log, *parts: Any) -> Any:
    from torch.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.call("torch function")
            return function(*args, **(kwargs or {}))

    with Mode():
        return train(log, *parts)


@_loop("dispatch mode")
def _(log: Log, *parts: Any) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            log.call("torch dispatch")
            return function(*args, **(kwargs or {}))

    with Mode():
        return train(log, *parts)


@_loop("random numbers")
def _(log: Log, *parts: Any) -> Any:
    import random

    import numpy

    result = train(log, *parts)
    return result, torch.rand(1).item(), random.random(), numpy.random.rand()


@_loop("process settings left")
def _(log: Log, *parts: Any) -> Any:
    os.umask(0o027)
    os.chdir("/")
    os.environ["OF_THE_USER"] = "1"
    os.environ.pop("LANG", None)
    sys.setrecursionlimit(777)
    sys.setswitchinterval(0.011)
    return train(log, *parts)


@_loop("handlers left")
def _(log: Log, *parts: Any) -> Any:
    signal.signal(signal.SIGUSR1, _handler)
    sys.excepthook = _handler  # type: ignore[assignment]
    threading.excepthook = _handler  # type: ignore[assignment]
    return train(log, *parts)


def _handler(*_: Any) -> None:
    """A handler of the user's."""


@_loop("fork")
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


@_loop("fork that leaves the block")
def _(log: Log, *parts: Any) -> Any:
    train(log, *parts)
    child = os.fork()
    if child == 0:
        sys.stderr = sys.stdout = None  # type: ignore[assignment]
        raise ForkedChildError  # ends below, outside the recorder
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class ForkedChildError(BaseException):
    """Raised in a child that must leave the recorded block."""


@_loop("subprocess")
def _(log: Log, *parts: Any) -> Any:
    output = subprocess.run(["/bin/echo", "of a program"], capture_output=True, check=True).stdout
    return output, train(log, *parts)


@_loop("time frozen")
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


@_loop("time raises")
def _(log: Log, *parts: Any) -> Any:
    originals = time.time_ns, time.thread_time_ns, time.process_time_ns

    def broken() -> int:
        raise Oddity("clock")

    time.time_ns = time.thread_time_ns = time.process_time_ns = broken
    try:
        return train(log, *parts)
    finally:
        time.time_ns, time.thread_time_ns, time.process_time_ns = originals


@_loop("clock goes back")
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


@_loop("names of odd objects")
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


@_loop("locals are kept")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts
    for batch in loader:
        names = locals()
        train_step(batch, module, optimizer)
        log.note(",".join(sorted(names)))
    return sorted(sys._getframe().f_locals)


@_loop("deep recursion")
def _(log: Log, *parts: Any) -> Any:
    def deeper(depth: int) -> Any:
        return train(log, *parts) if depth == 0 else deeper(depth - 1)

    return deeper(600)


@_loop("nearly at the recursion limit")
def _(log: Log, *parts: Any) -> Any:
    loader, module, optimizer = parts

    def deepest(depth: int) -> int:
        try:
            return deepest(depth + 1)
        except RecursionError:
            return depth

    limit = deepest(0)
    return limit > 100, train(log, loader, module, optimizer)


def _raising(name: str, error: Callable[[], BaseException]) -> None:
    def run(log: Log, *parts: Any) -> Any:
        train(log, *parts)
        raise error()

    LOOPS[f"raises {name}"] = run


class _WeirdTextError(Exception):
    def __str__(self) -> str:
        raise Oddity("str")

    def __repr__(self) -> str:
        raise Interruption("repr")


class _EqualError(Exception):
    def __eq__(self, other: object) -> bool:
        raise Oddity("eq")

    def __bool__(self) -> bool:
        raise Oddity("bool")

    __hash__ = None  # type: ignore[assignment]


class _ReadOnlyError(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise Oddity("setattr")


class _TextOnlyError(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


class _OddClassError(RuntimeError):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise Oddity("class")


def _with_cause() -> BaseException:
    error = Oddity("caused")
    error.__cause__ = KeyError("cause")
    error.__context__ = ValueError("context")
    return error


def _cycle() -> BaseException:
    error, other = Oddity("first"), Oddity("second")
    error.__context__, other.__context__ = other, error
    return error


_raising("oddity", lambda: Oddity("plain", 1, {"a": 2}))
_raising("weird text", lambda: _WeirdTextError("weird"))
_raising("odd text", lambda: _TextOnlyError("odd"))
_raising("unequal", lambda: _EqualError("unequal"))
_raising("read-only", lambda: _ReadOnlyError("read-only"))
_raising("odd class", lambda: _OddClassError("class"))
_raising("with cause", _with_cause)
_raising("cycle", _cycle)
_raising("stop", lambda: StopIteration("stop"))
_raising("stop async", lambda: StopAsyncIteration("stop"))
_raising("generator exit", lambda: GeneratorExit("exit"))
_raising("exit", lambda: SystemExit(4))
_raising("exit text", lambda: SystemExit("text"))
_raising("keyboard", lambda: KeyboardInterrupt("keyboard"))
_raising("memory", lambda: MemoryError("memory"))
_raising("cancelled", lambda: asyncio.CancelledError("cancelled"))
_raising("interruption", lambda: Interruption("interruption"))
_raising("out of memory", lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"))
_raising("gpulab error", lambda: gpulab.GpulabError("problem", why="why", fix="fix"))
_raising("unicode", lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "surrogate \udc80"))
_raising("huge text", lambda: Oddity("x" * 3_000_000))
_raising("os error", lambda: OSError(28, "No space left on device"))
if sys.version_info >= (3, 11):
    _raising(
        "group",
        lambda: ExceptionGroup("group", [Oddity("a"), KeyError("b")]),  # noqa: F821
    )


@_loop("raises while handling")
def _(log: Log, *parts: Any) -> Any:
    try:
        train(log, *parts)
        raise Oddity("first")
    except Oddity:
        raise KeyError("second")  # noqa: B904  (its context is compared)


@_loop("raises at once")
def _(log: Log, *parts: Any) -> Any:
    raise Oddity("at once")


@_loop("recursion without end")
def _(log: Log, *parts: Any) -> Any:
    def endless() -> Any:
        return endless()

    train(log, *parts)
    return endless()
