"""Signals whose handlers raise or count, at any instant before, during and after a recording.

The handler's exception must reach the program as it would without gpulab: once, itself, in the code that the signal
interrupted. Half of the signals come by a timer, half at chosen instants in gpulab's own code.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from gpulab.capture.plan import RecordingLimits
from tests.chaos.areas.objects.datasets import DATASETS
from tests.chaos.areas.objects.loaders import LOADERS
from tests.chaos.areas.objects.loop import Interruption, Oddity, train_step
from tests.chaos.areas.objects.models import MODULES, OPTIMIZERS
from tests.chaos.instants import PACKAGE, InstantTracer, Location
from tests.chaos.program import Log, Outcome, Program
from tests.chaos.recorders import record

ENDLESS_S = 8.0  # a loop that waits for its signal ends after this time
LONGEST_DELAY_S = 0.35
ERRORS: dict[str, Callable[[], BaseException] | None] = {
    "TimeoutError": lambda: TimeoutError("limit"),
    "KeyboardInterrupt": lambda: KeyboardInterrupt("interrupt"),
    "SystemExit": lambda: SystemExit(9),
    "Exception": lambda: Oddity("of a handler"),
    "BaseException": lambda: Interruption("of a handler"),
    "nothing": None,
}
_RECORDERS = ("profile steps", "profile", "cell steps", "cell", "monitor", "profile sensors", "profile deep")
_CALIBRATED = ("profile steps", "cell steps", "monitor", "profile sensors")
# Instants are chosen among these parts of gpulab more often: they run in the program's thread while it runs.
_OFTEN = ("capture", "magics", "sensors", "virtual")


@dataclass
class Signal:
    """What became of the signal of a probe."""

    raised: BaseException | None = None
    handler_calls: int = 0
    place: str = "nowhere"  # the code that it interrupted
    caught: list[BaseException] = field(default_factory=list)
    finished: str = ""  # how the loop ended
    propagated: BaseException | None = None
    is_on: bool = True


def make(number: int, dice: random.Random) -> Program:
    """Return the program of this number."""
    error = dice.choice(sorted(ERRORS))
    if number % 2:
        return program_at_instant(_CALIBRATED[number // 2 % len(_CALIBRATED)], dice)
    recorder = dice.choice(_RECORDERS)
    delay_s = dice.uniform(0.0002, LONGEST_DELAY_S)
    ends = dice.random() < 0.4
    early_timeouts = dice.random() < 0.3
    name = dice.choice(("SIGALRM", "SIGALRM", "SIGINT", "SIGTERM", "SIGUSR1"))
    label = f"{error} by {name} after {delay_s * 1000:.2f} ms, {'ends' if ends else 'waits'}"
    label += ", early timeouts" if early_timeouts else ""
    send = partial(_after_delay, delay_s, signal.Signals[name])
    return _program(label, recorder, error, send, ends=ends, early_timeouts=early_timeouts, loop=dice.choice(_LOOPS))


def program_at_instant(recorder: str, dice: random.Random) -> Program:
    """Return a program that a signal interrupts at one instant in gpulab's code."""
    error = dice.choice(sorted(ERRORS))
    location, visit = _random_instant(recorder, dice)
    label = f"{error} at {_relative(location)} visit {visit}"
    return _program(label, recorder, error, partial(_at_instant, location, visit))


def _program(
    label: str,
    recorder: str,
    error: str,
    send: Callable[..., Any],
    *,
    ends: bool = True,
    early_timeouts: bool = False,
    loop: str = "train",
) -> Program:
    signals: dict[int, Signal] = {}  # by log

    def run(log: Log) -> Any:
        state = signals[id(log)]
        try:
            state.finished = _loop(state, loop, ends=ends, raises=ERRORS[error] is not None)
        except BaseException as caught:
            if caught is not state.raised:
                raise
            state.caught.append(caught)

    def around(log: Log, call: Callable[[], Any]) -> Any:
        state = signals[id(log)] = Signal()
        with send(state, error):
            try:
                call()
                _await_timers(state)
            except BaseException as propagated:
                state.propagated = propagated
            state.is_on = False
            log.recorded.append(state.place.partition(":")[0])
        if state.propagated is not None:
            raise state.propagated

    def verdict(log: Log, outcome: Outcome) -> str:
        return judge(signals[id(log)], outcome, is_cell="cell" in recorder, waits=not ends)

    prepare = _early_timeouts if early_timeouts else None
    return Program(
        name=label, recorder=recorder, run=run, around=around, verdict=verdict, prepare=prepare, size=1 + early_timeouts
    )


def _loop(state: Signal, kind: str, *, ends: bool, raises: bool) -> str:
    log = Log()
    loader = LOADERS["ordinary"](log, DATASETS["ordinary"](log))
    module = MODULES["ordinary"](log)
    optimizer = OPTIMIZERS["ordinary"](log, module)
    deadline = time.monotonic() + ENDLESS_S
    steps = 0
    while time.monotonic() < deadline:
        if kind == "no steps":  # neither loader nor optimizer: nothing but pending calls reaches this thread
            sum(range(20_000))
            steps += 1
        for batch in loader if kind == "train" else ():
            train_step(batch, module, optimizer)
            steps += 1
        if kind == "optimizer":
            train_step(None, module, optimizer)
            steps += 1
        if ends and steps >= 24:
            return "done"
        if not raises and state.handler_calls:
            return "done"
    return "waited in vain"


_LOOPS = ("train", "train", "optimizer", "no steps")


def _await_timers(state: Signal) -> None:
    """An interrupt that comes while the recording of a cell starts is passed on to the cell a moment later."""
    while isinstance(state.raised, KeyboardInterrupt) and any(
        isinstance(thread, threading.Timer) for thread in threading.enumerate()
    ):
        time.sleep(0.01)


def judge(state: Signal, outcome: Outcome, *, is_cell: bool, waits: bool) -> str:
    """Return "ok", or how the exception of the handler went astray."""
    in_program = state.place.startswith(("program", "hook"))
    place = state.place.partition(":")[0]  # without the function
    if state.handler_calls > 1:
        return f"the handler ran {state.handler_calls} times"
    if state.handler_calls == 0:
        if waits and state.finished == "waited in vain":
            return "the signal was lost"
        return "ok" if not outcome.chain else f"without a signal: {outcome.chain[0][1]}"
    if state.raised is None:
        return "ok" if not outcome.chain else f"a counting handler in {place}: {outcome.chain[0][1]}"
    name = "an Exception" if isinstance(state.raised, Exception) else "a BaseException"
    propagated = state.propagated is state.raised or (state.place == "outside" and state.propagated is None)
    # Ctrl-C while the recording of a cell starts: gpulab interrupts the cell in its place.
    interrupted = is_cell and not in_program and isinstance(state.raised, KeyboardInterrupt)
    if outcome.chain and not propagated and not interrupted:
        return f"{name} in {place} arrived as {outcome.chain[0][1]}"
    if len(state.caught) == 1 and not outcome.chain:
        return "ok"
    if outcome.chain and not state.caught:
        # Outside the try of the program, e.g. at its first instruction, or while gpulab starts or stops.
        return f"{name} in {place} passed the try" if state.place.startswith("hook") else "ok"
    if state.caught:
        return f"{name} in {place} arrived twice"
    if is_cell and not in_program:
        return "ok"  # it came between two cells, where IPython itself reports it
    return f"{name} in {place} was swallowed"


def _handler(state: Signal, error: str) -> Callable[[int, Any], None]:
    make_error = ERRORS[error]

    def handle(_: int, frame: Any) -> None:
        if not state.is_on:
            return
        state.handler_calls += 1
        state.place = _place(frame)
        if make_error is not None:
            state.raised = make_error()
            raise state.raised

    return handle


def _place(frame: Any) -> str:
    """Return the code that the signal interrupts: of the program, of gpulab in it, or of gpulab outside it."""
    innermost, is_inside = "", False
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(PACKAGE) and not innermost and not is_inside:
            innermost = f"{os.path.relpath(code.co_filename, PACKAGE)}:{code.co_name}"
        is_inside = is_inside or code is _loop.__code__
        frame = frame.f_back
    if is_inside:
        return f"hook {innermost}" if innermost else "program"
    return f"gpulab {innermost}" if innermost else "outside"


@contextlib.contextmanager
def _handling(number: int, state: Signal, error: str) -> Any:
    before = signal.signal(number, _handler(state, error))
    try:
        yield
    finally:
        state.is_on = False
        signal.signal(number, before)


@contextlib.contextmanager
def _after_delay(delay_s: float, number: signal.Signals, state: Signal, error: str) -> Any:
    with _handling(number, state, error):
        if number is signal.SIGALRM:
            signal.setitimer(signal.ITIMER_REAL, delay_s)
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
            return
        cancel = threading.Event()
        main = threading.get_ident()

        def send() -> None:
            if not cancel.wait(delay_s):
                signal.pthread_kill(main, number)

        thread = threading.Thread(target=send)
        thread.start()
        yield
        cancel.set()
        thread.join()


@contextlib.contextmanager
def _at_instant(location: Location, visit: int, state: Signal, error: str) -> Any:
    with _handling(signal.SIGUSR1, state, error):
        tracer = InstantTracer(location, visit, lambda: signal.raise_signal(signal.SIGUSR1))
        tracer.start()
        yield
        tracer.stop()


def _early_timeouts() -> Callable[[], None]:
    """Let the profiler's timeouts end soon, so that its pending calls come in a short program."""
    values = RecordingLimits.__init__.__kwdefaults__ or {}
    before = dict(values)
    for name in ("opening_timeout_ns", "idle_timeout_ns", "slow_ns"):
        if name in values:
            values[name] = 60_000_000

    def undo() -> None:
        values.update(before)

    return undo


def _random_instant(recorder: str, dice: random.Random) -> tuple[Location, int]:
    visits = instants(recorder)
    often = [each for each in visits if _relative(each).startswith(_OFTEN)]
    location = dice.choice(often if dice.random() < 0.75 and often else sorted(visits))
    return location, dice.randint(1, visits[location])


def _relative(location: Location) -> str:
    file, function, offset = location
    return f"{os.path.relpath(file, PACKAGE)}:{function}:{offset}"


@cache
def instants(recorder: str) -> dict[Location, int]:
    """Visits of each location in gpulab's code while this recorder records an ordinary program; from a child."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        with open(os.devnull, "w") as null:
            sys.stdout = sys.stderr = null
            tracer = InstantTracer()
            log = Log()
            tracer.start()
            record(recorder, lambda: _loop(Signal(), "train", ends=True, raises=True), log, plain=False)
            tracer.stop()
            with os.fdopen(writer, "w") as file:
                json.dump([[*location, count] for location, count in sorted(tracer.visits.items())], file)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as file:
        rows = json.load(file)
    os.waitpid(pid, 0)
    return {(file, function, offset): count for file, function, offset, count in rows}
