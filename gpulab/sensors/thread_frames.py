"""What another thread is executing, read without a risk of hanging the program.

In Python 3.11, the garbage collector may run inside `sys._current_frames()`, which holds the lock of the list of
threads. If a destructor then starts or ends a thread, or another thread does, the process hangs for good
(https://github.com/python/cpython/issues/106883). The collector must therefore not run during the call.
"""

from __future__ import annotations

import gc
import sys
from operator import methodcaller
from types import FrameType
from typing import Any

_call = methodcaller("__call__")
# In one iteration in C, so that no other thread sees the collector disabled, or sets it meanwhile.
_WITHOUT_COLLECTOR = (gc.isenabled, gc.disable, sys._current_frames, gc.enable)


def current_frame(thread: int | None) -> FrameType | None:
    """Return the innermost frame of the thread with this identifier; None if it has none.

    Source: `sys._current_frames`. Callable from any thread.
    """
    if thread is None:
        return None
    # No variable may hold the dict, which contains the frame of this function: such a cycle would keep the variables
    # of all threads alive until the next collection.
    if sys.version_info[:2] != (3, 11) or not gc.isenabled():
        return sys._current_frames().get(thread)
    returned: list[Any] = list(map(_call, _WITHOUT_COLLECTOR))
    if not returned[0]:  # the program disabled the collector after we looked
        gc.disable()
    return returned.pop(2).get(thread)  # type: ignore[no-any-return]
