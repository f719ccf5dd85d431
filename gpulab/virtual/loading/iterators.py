"""State kept with a DataLoader iterator: its loader, its start, and the build time of its last batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpulab.virtual.loading.build_time import BuiltBatch


@dataclass
class HookState:
    """Identity of the hooks that number loaders and epochs; `on` is False once the virtual GPU is stopped."""

    on: bool = True


@dataclass
class IteratorState:
    """State of one iterator."""

    pin_memory: bool  # whether to pin its batches while hooks are on
    hooks: HookState
    loader: int = -1  # index of the loader; -1 until known
    epoch: int = -1  # index of the epoch; -1 until known
    built: BuiltBatch | None = None  # times of the last batch in its worker, without the batch
    epoch_began_ns: int = 0  # start of the epoch, by time.monotonic_ns; 0 if it started before the hooks were on
    startup_ns: int = 0  # time to start the epoch in the main process

    def begin(self, began_ns: int, duration_ns: int) -> None:
        """Begin an epoch: the first, or another one with persistent workers."""
        self.epoch, self.epoch_began_ns, self.startup_ns = -1, began_ns, duration_ns

    def take_startup_ns(self) -> int:
        """Return the time that starting the epoch took, at its first batch; 0 at later batches.

        Includes the time until the worker is ready, which may be later than the end of the start in the main process.
        """
        ready_ns = self.built.ready_ns if self.built is not None else 0
        starting_ns = max(self.startup_ns, ready_ns - self.epoch_began_ns if ready_ns and self.epoch_began_ns else 0)
        self.epoch_began_ns = self.startup_ns = 0
        return starting_ns


def attach_state(iterator: Any, hooks: HookState, *, pin_memory: bool = False) -> IteratorState | None:
    """Return the state of a PyTorch DataLoader iterator, attaching it if needed; None for other iterators.

    The iterator gets a subclass that unpacks `Built` batches. So it still works after the hooks are removed: its
    workers, which send these batches, live as long as the iterator.
    """
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    if not isinstance(iterator, _BaseDataLoaderIter):
        return None
    state: IteratorState | None = vars(iterator).get("_gpulab")
    if state is None:
        state = IteratorState(pin_memory and not hasattr(iterator, "_pin_memory_thread"), hooks)
        vars(iterator)["_gpulab"] = state
        kind: Any = type(iterator)
        iterator.__class__ = _unpacking_class(kind)
        iterator._pin_memory = iterator._pin_memory or state.pin_memory
    if state.hooks is not hooks:  # started under other hooks, which have their own numbers
        state.hooks, state.loader, state.epoch = hooks, -1, -1
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
        state: IteratorState = iterator._gpulab
        data = _unpinned(iterator, state, super(subclass, iterator)._next_data)
        if type(data) is BuiltBatch:
            state.built, data = replace(data, batch=None), data.batch
        return pin_memory(data) if state.pin_memory and state.hooks.on else data

    def _reset(iterator: Any, *args: Any, **kwargs: Any) -> Any:
        return _unpinned(iterator, iterator._gpulab, lambda: super(subclass, iterator)._reset(*args, **kwargs))

    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    subclass: Any = type(kind.__name__, (kind,), {**same, "_next_data": _next_data, "_reset": _reset})
    return subclass


def _unpinned(iterator: Any, state: IteratorState, call: Callable[[], Any]) -> Any:
    """Call a PyTorch function with pinning switched off on this iterator."""
    __tracebackhide__ = True
    if not state.pin_memory:
        return call()
    iterator._pin_memory = False
    try:
        return call()
    finally:
        iterator._pin_memory = True
