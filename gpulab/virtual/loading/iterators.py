"""State kept with a DataLoader iterator: its loader, its start, and the build time of its last batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpulab.virtual.loading.build_time import Built


@dataclass
class Watching:
    """Identity of the hooks that number loaders and epochs; `on` is False once the virtual GPU is stopped."""

    on: bool = True


@dataclass
class Passing:
    """State of one iterator."""

    pins: bool  # whether to pin its batches while hooks are on
    watch: Watching
    loader: int = -1  # index of the loader; -1 until known
    epoch: int = -1  # index of the epoch; -1 until known
    built: Built | None = None  # times of the last batch in its worker, without the batch
    began_ns: int = 0  # start of the epoch, by time.monotonic_ns; 0 if it started before the hooks were on
    starting_ns: int = 0  # time to start the epoch in the main process

    def begin(self, began_ns: int, duration_ns: int) -> None:
        """Begin an epoch: the first, or another one with persistent workers."""
        self.epoch, self.began_ns, self.starting_ns = -1, began_ns, duration_ns

    def started(self) -> int:
        """Return the time that starting the epoch took, at its first batch; 0 at later batches.

        Includes the time until the worker is ready, which may be later than the end of the start in the main process.
        """
        ready_ns = self.built.ready_ns if self.built is not None else 0
        starting_ns = max(self.starting_ns, ready_ns - self.began_ns if ready_ns and self.began_ns else 0)
        self.began_ns = self.starting_ns = 0
        return starting_ns


def passing(iterator: Any, watch: Watching, *, pins: bool = False) -> Passing | None:
    """Return the state of a PyTorch DataLoader iterator, attaching it if needed; None for other iterators.

    The iterator gets a subclass that unpacks `Built` batches. So it still works after the hooks are removed: its
    workers, which send these batches, live as long as the iterator.
    """
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    if not isinstance(iterator, _BaseDataLoaderIter):
        return None
    state: Passing | None = vars(iterator).get("_gpulab")
    if state is None:
        state = Passing(pins and not hasattr(iterator, "_pin_memory_thread"), watch)
        vars(iterator)["_gpulab"] = state
        kind: Any = type(iterator)
        iterator.__class__ = _unpacking_class(kind)
        iterator._pin_memory = iterator._pin_memory or state.pins
    if state.watch is not watch:  # started under other hooks, which have their own numbers
        state.watch, state.loader, state.epoch = watch, -1, -1
    return state


@cache
def _unpacking_class(kind: Any) -> Any:
    """Return a subclass of an iterator's class that unpacks `Built` batches and pins memory.

    It pins as PyTorch does, but not in a thread: the tensors of a virtual GPU implement pinning.
    """
    from torch.utils.data._utils import pin_memory as pinning

    pin_memory: Callable[[Any], Any] = pinning.pin_memory

    def _next_data(iterator: Any) -> Any:
        __tracebackhide__ = True
        state: Passing = iterator._gpulab
        data = _unpinned(iterator, state, super(subclass, iterator)._next_data)
        if type(data) is Built:
            state.built, data = replace(data, batch=None), data.batch
        return pin_memory(data) if state.pins and state.watch.on else data

    def _reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        return _unpinned(iterator, iterator._gpulab, lambda: super(subclass, iterator)._reset(*args, **kwargs))

    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    subclass: Any = type(kind.__name__, (kind,), {**same, "_next_data": _next_data, "_reset": _reset})
    return subclass


def _unpinned(iterator: Any, state: Passing, call: Callable[[], Any]) -> Any:
    """Call a PyTorch function with pinning switched off on this iterator."""
    __tracebackhide__ = True
    if not state.pins:
        return call()
    iterator._pin_memory = False
    try:
        return call()
    finally:
        iterator._pin_memory = True
