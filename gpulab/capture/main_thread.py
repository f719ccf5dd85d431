"""Run a function in the main thread from another thread, between two of its bytecodes; hold signal handlers back.

The profiler must be stopped in the thread that started it, and a loop without step marks never calls us there.
CPython's pending calls make this possible without signals, which belong to the user.

An exception cannot leave a pending call. Therefore the user's signal handlers wait while ours runs, and run as soon as
it has ended, in the user's own frame: Ctrl-C is a KeyboardInterrupt there, and a handler's TimeoutError a TimeoutError.
"""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_ATTEMPTS = 5  # to restore a handler, each of which another signal may interrupt


class PendingCall:
    """`request()` makes the main thread call `function` soon; `cancel()` drops pending calls."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function
        self._pending = False
        self._callback = _CALLBACK(self._run)

    def request(self) -> None:
        """Request a call; if one is pending already, do nothing."""
        if self._pending or self._function is None:
            return
        self._pending = True
        ctypes.pythonapi.Py_AddPendingCall(self._callback, None)

    def cancel(self) -> None:
        """Turn pending calls into no-ops."""
        self._function = None
        if self._pending:
            # The interpreter still holds the address of the callback, so the callback must live forever.
            _OUTLIVING.append(self._callback)

    def _run(self, _: object) -> int:
        try:
            self._pending = False
            if self._function is not None:
                with SignalsHeld():
                    self._function()
        except BaseException as error:  # ctypes would print it and drop it
            deliver_again(error)
        return 0


class SignalsHeld:
    """Within this context, signals that have a Python handler wait; their handlers run right after it.

    In other threads it does nothing: Python runs signal handlers in the main thread only.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._arrived: list[int] = []

    def __enter__(self) -> SignalsHeld:
        if threading.current_thread() is threading.main_thread():
            try:
                for number in signal.valid_signals():
                    handler = signal.getsignal(number)
                    if callable(handler):
                        self._handlers[number] = handler
                        signal.signal(number, self._hold)
            except BaseException:
                self._restore()
                raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._restore()
        for number in self._arrived:
            _trip(number)

    def _hold(self, number: int, _: FrameType | None) -> None:
        self._arrived.append(number)

    def _restore(self) -> None:
        """Restore every handler. One that is back already may run now; its exception waits for the others."""
        interruption: BaseException | None = None
        for number, handler in self._handlers.items():
            for _ in range(_ATTEMPTS):
                try:
                    signal.signal(number, handler)
                    break
                except BaseException as error:  # of a restored handler, which has run: raised again below
                    interruption = error
        self._handlers.clear()
        if interruption is not None:
            raise interruption


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


_OUTLIVING: list[object] = []
