"""What goes along with a DataLoader's iterator: which loader it is, when it began, what its last batch took."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from gpulab.virtual.loading.build_time import Built


@dataclass
class Watching:
    """Who counts loaders and passes, by identity; not `on` any more once the virtual GPU is gone."""

    on: bool = True


@dataclass
class Passing:
    """What is known of one iterator."""

    pins: bool  # its batches are to be pinned, which is done where somebody watches
    watch: Watching
    loader: int = -1  # which one; -1 until it is known
    epoch: int = -1  # which pass over it
    built: Built | None = None  # what the last batch took in its worker, without the batch
    began_ns: int = 0  # by time.monotonic_ns; 0 where the pass began before anybody watched
    starting_ns: int = 0  # what beginning the pass took in the main process

    def begin(self, began_ns: int, took_ns: int) -> None:
        """A pass begins: the first, or another one with the same workers."""
        self.epoch, self.began_ns, self.starting_ns = -1, began_ns, took_ns

    def started(self) -> int:
        """What beginning the pass took, asked for with its first batch; 0 for the others.

        The builder may have been ready only after the main process was done with starting it.
        """
        ready_ns = self.built.ready_ns if self.built is not None else 0
        starting_ns = max(self.starting_ns, ready_ns - self.began_ns if ready_ns and self.began_ns else 0)
        self.began_ns = self.starting_ns = 0
        return starting_ns


def passing(iterator: Any, watch: Watching, *, pins: bool = False) -> Passing | None:
    """What is known of an iterator of PyTorch's, which is watched from now on; None for other iterators.

    From here on it is of a class of its own, which takes off what workers send along. So it goes on as it should when
    nobody watches any more: its workers live as long as it does.
    """
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    if not isinstance(iterator, _BaseDataLoaderIter):
        return None
    told: Passing | None = vars(iterator).get("_gpulab")
    if told is None:
        told = Passing(pins and not hasattr(iterator, "_pin_memory_thread"), watch)
        vars(iterator)["_gpulab"] = told
        kind: Any = type(iterator)
        iterator.__class__ = _of_its_own(kind)
        iterator._pin_memory = iterator._pin_memory or told.pins
    if told.watch is not watch:  # it was begun while another one watched, who counted for itself
        told.watch, told.loader, told.epoch = watch, -1, -1
    return told


@cache
def _of_its_own(kind: Any) -> Any:
    """A subclass of an iterator's class, alike but for what it does with a batch that arrived.

    It pins as PyTorch does, though in no thread of its own: a virtual GPU's tensors know how to be pinned.
    """
    from torch.utils.data._utils import pin_memory as pinning

    pin_memory: Callable[[Any], Any] = pinning.pin_memory

    def _next_data(iterator: Any) -> Any:
        __tracebackhide__ = True
        told: Passing = iterator._gpulab
        data = _unpinned(iterator, told, super(own, iterator)._next_data)
        if type(data) is Built:
            told.built, data = replace(data, batch=None), data.batch
        return pin_memory(data) if told.pins and told.watch.on else data

    def _reset(iterator: Any, *given: Any, **named: Any) -> Any:
        return _unpinned(iterator, iterator._gpulab, lambda: super(own, iterator)._reset(*given, **named))

    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    own: Any = type(kind.__name__, (kind,), {**same, "_next_data": _next_data, "_reset": _reset})
    return own


def _unpinned(iterator: Any, told: Passing, call: Callable[[], Any]) -> Any:
    """Call something of PyTorch's as if this loader did not pin, which others can still see that it does."""
    __tracebackhide__ = True
    if not told.pins:
        return call()
    iterator._pin_memory = False
    try:
        return call()
    finally:
        iterator._pin_memory = True
