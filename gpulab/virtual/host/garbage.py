"""Garbage collection while a program runs on a virtual GPU.

Simulated tensors create much garbage that is not the program's. So garbage is collected between steps only: inside a
step it would count as the program's time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def gc_between_steps() -> Iterator[Callable[[], int]]:
    """Disable automatic garbage collection in the block; yields the function that collects."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield gc.collect
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def gc_frozen() -> Iterator[None]:
    """Exclude existing objects from garbage collection in the block.

    Enter it after all imports: the modules of the virtual GPU create many objects, which stay.
    """
    freezes = not gc.get_freeze_count()
    gc.collect()
    if freezes:
        gc.freeze()
    try:
        yield
    finally:
        if freezes:
            gc.unfreeze()
