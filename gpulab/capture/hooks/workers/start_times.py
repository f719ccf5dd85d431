"""How long the main process takes to start DataLoader workers, and how often it starts them.

The hooks add no frame to the stack of the program: the iterator looks up its base class first, and a method of its own
once its workers run.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpulab.capture.protection.guard import Guard
from gpulab.run import Loader

_WORKER_STARTS = "times of starting DataLoader workers"


class StartTimes:
    """Measures the iterators with workers that one thread of this process creates while it is installed."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._began: tuple[int, int] | None = None  # the iterator that is being created, by id, and since when
        self._started_ns: dict[int, int] = {}  # by id: iterators that have not been asked for a batch yet
        self._times_ns: defaultdict[int, list[int]] = defaultdict(list)  # by index of the loader
        self._thread, self._process = threading.get_ident(), os.getpid()

    def hooks(self) -> tuple[tuple[Any, str, Any], ...]:
        """The attributes of PyTorch to replace: owner, name, replacement."""
        from torch.utils.data import dataloader

        base: Any = dataloader._BaseDataLoaderIter
        with_workers: Any = dataloader._MultiProcessingDataLoaderIter
        return (
            (base, "__init__", WatchedMethod(base.__init__, self._begin)),
            (with_workers, "_reset", WatchedMethod(with_workers._reset, self._end)),
        )

    def add_iterator(self, index: int, iterator: Any) -> None:
        """Note the loader, by its index, of an iterator that is asked for its first batch."""
        started_ns = self._started_ns.pop(id(iterator), None)
        if started_ns is not None and getattr(iterator, "_workers", None):
            self._times_ns[index].append(started_ns)

    def added_to(self, index: int, loader: Loader) -> Loader:
        """The loader with the times of its starts; unchanged if none was measured."""
        times_ns = self._times_ns.get(index)
        if not times_ns:
            return loader
        return replace(loader, worker_starts=len(times_ns), worker_start_ns=sum(times_ns) // len(times_ns))

    def _begin(self, iterator: Any) -> None:
        self._guard.call(_WORKER_STARTS, self._note_begin, None, iterator)

    def _end(self, iterator: Any) -> None:
        self._guard.call(_WORKER_STARTS, self._note_end, None, iterator)

    def _note_begin(self, iterator: Any) -> None:
        if self._is_watched():
            self._began = id(iterator), time.perf_counter_ns()

    def _note_end(self, iterator: Any) -> None:
        if not self._is_watched() or self._began is None or self._began[0] != id(iterator):
            return
        self._started_ns[id(iterator)] = time.perf_counter_ns() - self._began[1]
        self._began = None

    def _is_watched(self) -> bool:
        return threading.get_ident() == self._thread and os.getpid() == self._process


class WatchedMethod:
    """A method that calls `notice(instance)` when it is looked up."""

    def __init__(self, method: Any, notice: Callable[[Any], None]) -> None:
        self._method, self._notice = method, notice

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        if instance is not None:
            self._notice(instance)
        return self._method.__get__(instance, owner)
