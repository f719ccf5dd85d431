"""Garbage while a GPU is played: tensors without numbers make much of it, and none is the program's.

So nothing is collected in the midst of a step, where it would count as the program's time, and all of it between two.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def collected_between_steps() -> Iterator[Callable[[], int]]:
    """Automatic collections are off inside; gives what collects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield gc.collect
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def set_aside() -> Iterator[None]:
    """What is there is not searched again inside. Enter it last: what is imported for playing is much, and stays."""
    freezes = not gc.get_freeze_count()
    gc.collect()
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
