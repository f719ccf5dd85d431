"""Run a function in the main thread from another thread, between two of its bytecodes.

The profiler must be stopped in the thread that started it, and a loop without step marks never calls us there.
CPython's pending calls make this possible without signals, which belong to the user.

An exception cannot leave a pending call. Therefore the user's signal handlers wait while ours runs, and run as soon as
it has ended, in the user's own frame: Ctrl-C is a KeyboardInterrupt there, and a handler's TimeoutError a TimeoutError.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable

from gpulab.deferred_signals import DeferredSignals, deliver_again
from gpulab.sensors.thread_frames import current_frame

_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"
_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


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
                with DeferredSignals(again=True):
                    self._function()
        except BaseException as error:  # ctypes would print it and drop it
            deliver_again(error)
        return 0


_OUTLIVING: list[object] = []


def is_importing() -> bool:
    """Whether the main thread imports a module."""
    frame = current_frame(threading.main_thread().ident)
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False
