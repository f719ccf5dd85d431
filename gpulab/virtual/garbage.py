"""Garbage while a GPU is played: tensors without numbers make much of it, and none is the program's.

So nothing is collected in the midst of a step, where it would count as the program's time, and all of it between two.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def collected_between_steps() -> Iterator[Callable[[], int]]:
    """Automatic collections are off inside; gives what collects. What was there before is not searched again."""
    enabled, freezes = gc.isenabled(), not gc.get_freeze_count()
    gc.collect()
    gc.disable()
    if freezes:
        gc.freeze()
    try:
        yield gc.collect
    finally:
        if freezes:
            gc.unfreeze()
        if enabled:
            gc.enable()
