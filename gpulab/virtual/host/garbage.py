"""Garbage collection while a program runs on a virtual GPU.

Simulated tensors create much garbage that is not the program's. So garbage is collected between steps only: inside a
step it would count as the program's time.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator

# Never reached. A threshold rather than gc.disable(): the program may disable and enable collections itself.
NEVER = 1_999_999_973


@contextlib.contextmanager
def gc_between_steps() -> Iterator[Callable[[], int]]:
    """Prevent automatic garbage collection in the block; yields the function that collects.

    Whether collections are enabled is left to the program, as are thresholds that it sets in the block.
    """
    threshold, *older = gc.get_threshold()
    gc.set_threshold(NEVER, *older)
    try:
        yield gc.collect
    finally:
        if gc.get_threshold()[0] == NEVER and threshold != NEVER:
            gc.set_threshold(threshold, *older)


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
