"""Programs in a virtual GPU that raise, are interrupted, start threads, change gc and PyTorch, or nest."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import DataLoader

import gpulab
from tests.chaos.areas.objects import PARTS
from tests.chaos.areas.objects.loop import FEATURES, Interruption, Oddity, samples
from tests.chaos.areas.signals import program_at_instant
from tests.chaos.program import Log, Program

PROGRAMS: dict[str, Callable[[Log], Any]] = {}


def _program(name: str) -> Callable[[Callable[[Log], Any]], Callable[[Log], Any]]:
    def register(function: Callable[[Log], Any]) -> Callable[[Log], Any]:
        PROGRAMS[name] = function
        return function

    return register


def _device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def _train(steps: int = 6, **options: Any) -> str:
    """Train on the device that there is; its values are not compared, because a virtual GPU has none."""
    module = torch.nn.Sequential(torch.nn.Linear(FEATURES, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).to(_device())
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(samples(), batch_size=8, **options)
    count = 0
    while count < steps:
        for batch in loader:
            optimizer.zero_grad()
            module(batch.to(_device())).sum().backward()
            optimizer.step()
            count += 1
    return f"{count} steps, {tuple(next(module.parameters()).shape)}"


PROGRAMS["ordinary"] = lambda _: _train()
PROGRAMS["workers"] = lambda _: _train(num_workers=1)
PROGRAMS["pinned"] = lambda _: _train(pin_memory=torch.cuda.is_available())
PROGRAMS["nothing"] = lambda _: None


def _raising(name: str, error: Callable[[], BaseException]) -> None:
    def run(_: Log) -> Any:
        _train(3)
        raise error()

    PROGRAMS[f"raises {name}"] = run


_raising("oddity", lambda: Oddity("plain"))
_raising("interruption", lambda: Interruption("interruption"))
_raising("keyboard", lambda: KeyboardInterrupt("keyboard"))
_raising("exit", lambda: SystemExit(3))
_raising("stop", lambda: StopIteration("stop"))
_raising("generator exit", lambda: GeneratorExit("exit"))
_raising("memory", lambda: MemoryError("memory"))
_raising("out of memory", lambda: torch.OutOfMemoryError("CUDA out of memory."))


@_program("raises in a hook of a module")
def _(log: Log) -> Any:
    module = torch.nn.Linear(FEATURES, 2).to(_device())
    module.register_forward_hook(lambda *_: (_ for _ in ()).throw(Oddity("hook")))
    return module(torch.ones(1, FEATURES, device=_device()))


@_program("raises in a backward pass")
def _(log: Log) -> Any:
    class Failing(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: Any) -> Any:
            return value * 2

        @staticmethod
        def backward(context: Any, gradient: Any) -> Any:
            raise Oddity("backward")

    value = torch.ones(2, requires_grad=True)
    Failing.apply(value).sum().backward()


@_program("gc disabled")
def _(log: Log) -> Any:
    gc.disable()
    return _train()


@_program("gc enabled and disabled")
def _(log: Log) -> Any:
    gc.disable()
    _train(2)
    gc.enable()
    return _train(2)


@_program("gc settings")
def _(log: Log) -> Any:
    gc.set_threshold(11, 2, 3)
    gc.callbacks.append(_callback)
    return _train()


@_program("gc frozen")
def _(log: Log) -> Any:
    gc.freeze()
    return _train()


@_program("gc unfrozen")
def _(log: Log) -> Any:
    gc.unfreeze()
    return _train()


def _callback(*_: Any) -> None:
    """A callback of the user's."""


@_program("threads")
def _(log: Log) -> Any:
    values: list[Any] = []
    threads = [threading.Thread(target=lambda: values.append(tuple(torch.ones(3).mul(2).tolist()))) for _ in range(3)]
    for thread in threads:
        thread.start()
    result = _train(3)
    for thread in threads:
        thread.join()
    return result, sorted(values)


@_program("thread trains")
def _(log: Log) -> Any:
    values: list[Any] = []

    def work() -> None:
        try:
            values.append(_train(3))
        except Exception as error:
            values.append(type(error).__name__)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return values


@_program("pool outlives the block")
def _(log: Log) -> Any:
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    log.note(str(pool.submit(lambda: torch.ones(2).sum().item()).result()))
    _POOLS.append(pool)
    return _train(2)


_POOLS: list[Any] = []


def _pool_afterwards(log: Log, call: Callable[[], Any]) -> Any:
    """After the block, a thread that was started in it works as before it."""
    result = call()
    for pool in _POOLS:
        log.note(str(pool.submit(lambda: (torch.ones(2) * 3).tolist()).result(timeout=20)))
        log.note(str(pool.submit(lambda: type(torch.empty(2)).__name__).result(timeout=20)))
        log.note(str(pool.submit(lambda: torch._C._len_torch_dispatch_stack()).result(timeout=20)))
        pool.shutdown()
    return result


@_program("nests a recording")
def _(log: Log) -> Any:
    with contextlib.suppress(gpulab.GpulabError), gpulab.profile("inner"):
        log.note("recorded")
    return _train(2)


@_program("nests a virtual GPU")
def _(log: Log) -> Any:
    with contextlib.suppress(gpulab.GpulabError), gpulab.virtual_gpu("a100", "inner"):
        pass
    return _train(2)


@_program("patches torch")
def _(log: Log) -> Any:
    original = torch.nn.functional.relu
    torch.nn.functional.relu = lambda *arguments, **options: original(*arguments, **options)
    try:
        return _train(3)
    finally:
        torch.nn.functional.relu = original


@_program("patches torch.cuda and restores it")
def _(log: Log) -> Any:
    original = torch.cuda.synchronize
    torch.cuda.synchronize = lambda *_: log.call("synchronize")
    try:
        torch.cuda.synchronize()
        return _train(3)
    finally:
        torch.cuda.synchronize = original


@_program("patches torch.cuda and leaves it")
def _(log: Log) -> Any:
    torch.cuda.empty_cache = _callback
    return _train(3)


@_program("patches Tensor.to and leaves it")
def _(log: Log) -> Any:
    torch.Tensor.share_memory_ = _callback
    return _train(3)


@_program("settings of torch left")
def _(log: Log) -> Any:
    result = _train(3)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch.autograd.set_detect_anomaly(True)
    torch.backends.cudnn.benchmark = True
    return result


@_program("default device")
def _(log: Log) -> Any:
    with torch.device(_device()):
        return tuple(torch.nn.Linear(3, 2)(torch.ones(1, 3)).shape)


@_program("random numbers on the CPU")
def _(log: Log) -> Any:
    _train(2)
    return torch.rand(2).tolist(), random.random()


@_program("values on the CPU")
def _(log: Log) -> Any:
    return (torch.arange(5) * 2).tolist(), torch.ones(3, 3).sum().item(), torch.tensor(7).item()


@_program("tensors outlive the block")
def _(log: Log) -> Any:
    _KEPT.append(torch.ones(4, device=_device()))
    return _train(2)


_KEPT: list[Any] = []


@_program("trace and profile functions")
def _(log: Log) -> Any:
    sys.settrace(_null_tracer)
    sys.setprofile(_null_tracer)
    try:
        return _train(2), sys.gettrace() is _null_tracer, sys.getprofile() is _null_tracer
    finally:
        sys.settrace(None)
        sys.setprofile(None)


def _null_tracer(*_: Any) -> None:
    return None


@_program("torch.profiler")
def _(log: Log) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return _train(2)


@_program("fork")
def _(log: Log) -> Any:
    child = os.fork()
    if child == 0:
        os._exit(5)
    return _train(2), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@_program("handler left")
def _(log: Log) -> Any:
    signal.signal(signal.SIGUSR1, _callback)
    return _train(2)


def make(number: int, dice: random.Random) -> Program:
    """Return the program of this number: each program, odd datasets and loaders, then signals at chosen instants."""
    names = list(PROGRAMS)
    if number < len(names):
        return _named(names[number])
    if number % 2:
        return program_at_instant("virtual", dice)
    return _odd(dice)


def _named(name: str) -> Program:
    around = _pool_afterwards if name.startswith("pool") else None
    return Program(name=name, recorder="virtual", run=PROGRAMS[name], around=around)


def _odd(dice: random.Random) -> Program:
    parts = {part: dice.choice(sorted(PARTS[part])) for part in dice.sample(("dataset", "loader"), dice.choice((1, 2)))}

    def run(log: Log) -> Any:
        dataset = PARTS["dataset"][parts.get("dataset", "ordinary")](log)
        loader = PARTS["loader"][parts.get("loader", "ordinary")](log, dataset)
        return sum(1 for _ in loader), _train(2)

    label = ", ".join(f"{part} {name}" for part, name in parts.items())
    return Program(name=label, recorder="virtual", run=run, size=len(parts))
