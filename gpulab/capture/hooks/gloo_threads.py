"""Keep process groups of gloo alive when a recorded program destroys them: otherwise it may hang.

The destructor of a process group waits for gloo's threads. It runs with the GIL if the reducer of a model is its last
owner, and a thread of gloo may need the GIL to release its last work: both then wait forever (PyTorch 2.13). Without a
recording this is rare; with one, 5 of 8 programs hung that return from a function with such a model after
destroy_process_group. A group that is never destructed has no such wait; its threads are idle until the process ends.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_FUNCTION = "_update_default_pg"  # destroy_process_group calls it with None, before it forgets the groups


class GlooThreads:
    """Gives each group of gloo an owner that never lets go, when the groups are destroyed."""

    def __init__(self) -> None:
        self._original: Callable[..., Any] | None = None

    def install(self) -> None:
        """Replace the function that forgets the default group; does nothing if there is none."""
        module = sys.modules.get(_MODULE)
        if module is not None and hasattr(module, _FUNCTION):
            self._original = getattr(module, _FUNCTION)
            setattr(module, _FUNCTION, self._update)

    def remove(self) -> None:
        """Restore the function; does nothing if it is not replaced."""
        module = sys.modules.get(_MODULE)
        if self._original is not None and getattr(module, _FUNCTION, None) == self._update:
            setattr(module, _FUNCTION, self._original)

    def _update(self, group: Any) -> Any:
        assert self._original is not None
        if group is None:
            _keep_groups(sys.modules[_MODULE])
        return self._original(group)


def _keep_groups(module: Any) -> None:
    for group, (backend, _) in list(module._world.pg_map.items()):
        if "gloo" in str(backend):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
