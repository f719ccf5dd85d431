"""Defer the program's signal handlers while gpulab changes PyTorch: Ctrl-C must not stop half-way, nor be lost."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_ATTEMPTS = 5  # at restoring handlers: one that is restored may run, and raise, at once
Handler = Callable[[int, FrameType | None], Any]


class DeferredSignals:
    """In the `with` block, signals with a handler in Python are noted; their handlers run at its end, in order.

    Python runs them in the main thread only: in other threads the block changes nothing. `again`: the signals arrive
    again after the block instead, so that the handlers run in the program's own frame as soon as ours has returned.
    """

    def __init__(self, *, again: bool = False) -> None:
        self._again = again
        self._handlers: dict[int, Handler] = {}
        self._pending: list[tuple[int, FrameType | None]] = []
        self._active = False

    def __enter__(self) -> DeferredSignals:
        if threading.current_thread() is not threading.main_thread():
            return self
        try:
            self._active = True
            for number in signal.valid_signals():
                handler = signal.getsignal(number)
                if callable(handler):  # not SIG_DFL, SIG_IGN, or one that was not set in Python
                    self._handlers[number] = handler
                    signal.signal(number, self._note)
        except BaseException:  # a handler ran at the beginning and raised
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        handlers = dict(self._handlers)
        try:
            try:
                self._restore()
            except BaseException:  # a handler ran between two attempts of it
                self._restore()
                raise
        finally:
            self._run_handlers(handlers)

    def deliver(self) -> None:
        """Run the handlers of the signals so far, here in the block: an exception of theirs leaves it."""
        self._run_handlers(self._handlers)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._active:
            # A frame that dies after the signal was sent again would run the handler in a callback of a weak
            # reference (threading has some), where Python drops its exception.
            self._pending.append((number, None if self._again else frame))
        else:  # the handlers have been restored: this call was under way
            self._handlers[number](number, frame)

    def _restore(self) -> None:
        """Restore all handlers, whatever they raise meanwhile; then raise it."""
        problem: BaseException | None = None
        for _ in range(_ATTEMPTS):
            try:
                for number, handler in self._handlers.items():
                    if signal.getsignal(number) == self._note:
                        signal.signal(number, handler)
                break
            except BaseException as error:
                problem = error
        self._active = False
        if problem is not None:
            raise problem

    def _run_handlers(self, handlers: dict[int, Handler]) -> None:
        while self._pending:
            number, frame = self._pending.pop(0)
            if self._again:
                _trip(number)
            else:
                handlers[number](number, frame)


def deliver_again(error: BaseException) -> None:
    """Let the signal behind this exception arrive again, for code out of which no exception can pass."""
    if isinstance(error, KeyboardInterrupt):
        _trip(signal.SIGINT)
        return
    trace, numbers = error.__traceback__, signal.valid_signals()
    while trace is not None:
        values = list(trace.tb_frame.f_locals.values())
        if any(isinstance(value, FrameType) for value in values):
            number = next(
                (value for value in values if type(value) in (int, signal.Signals) and value in numbers), None
            )
            if number is not None:
                _trip(int(number))
                return
        trace = trace.tb_next


def _trip(number: int) -> None:
    """Mark a signal as arrived, from a pending call in C: no bytecode of ours runs between that and its handler."""
    trip = ctypes.cast(ctypes.pythonapi.PyErr_SetInterruptEx, ctypes.c_void_p)
    ctypes.pythonapi.Py_AddPendingCall(trip, ctypes.c_void_p(number))
