"""Have something done in the main thread from another one, between two of its bytecodes.

The profiler must be stopped in the thread that started it, and a loop without step marks never calls us there.
CPython's pending calls do that without touching signals, which belong to the user.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class PendingCall:
    """`request()` makes the main thread call `function` soon; `cancel()` forgets calls not yet made."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function
        self._asked = False
        self._callback = _CALLBACK(self._run)

    def request(self) -> None:
        """Ask; a request not yet served is not doubled."""
        if self._asked or self._function is None:
            return
        self._asked = True
        ctypes.pythonapi.Py_AddPendingCall(self._callback, None)

    def cancel(self) -> None:
        """Calls still pending will do nothing."""
        self._function = None
        if self._asked:
            # The interpreter still holds the address: whoever cancels must outlive it, so keep it for good.
            _OUTLIVING.append(self._callback)

    def _run(self, _: object) -> int:
        self._asked = False
        if self._function is not None:
            self._function()
        return 0


_OUTLIVING: list[object] = []
