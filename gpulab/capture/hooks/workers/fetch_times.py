"""How long DataLoader workers take to load a batch, how much of it they wait, e.g. for a disk, and how long they start.

The workers write these times to memory that they share with the main process; only forked workers have it. The hooks
add no frame to the stack of the user's dataset: an attribute lookup marks the start of a batch, and the worker's next
look at its parent process marks the end.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from gpulab.capture.hooks.workers.start_times import StartTimes, WatchedMethod
from gpulab.capture.protection.guard import Guard
from gpulab.run import Loader

try:
    import resource
except ImportError:  # on Windows
    resource = None  # type: ignore[assignment]

_WORKER_TIMES = "times of batches in DataLoader workers"
_SLOTS = 4096  # a worker uses the slot of its process id; of two with the same slot, only the later one counts
_PID, _DATASET, _BATCHES, _LOADING_S, _WAITING_S, _CPU_S = range(6)
_FIELDS = 6
_NUMBER_BYTES = 8
_SCHEDULER_FILE = "/proc/thread-self/schedstat"  # ns on a core, ns in the queue for one, and turns
_FILE_BYTES = 100
_open, _read, _close = os.open, os.read, os.close  # bound here: the program may replace the functions of the module


class FetchTimes:
    """Measures the workers that are forked while it is installed."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._starts = StartTimes(guard)
        self._datasets: dict[int, int] = {}  # index of a loader: id of its dataset, the same in a forked worker
        self._memory: mmap.mmap | None = None
        self._undo: list[Callable[[], None]] = []

    def install(self) -> None:
        """Replace the attributes of PyTorch that a worker looks up for each batch."""
        from torch.utils.data._utils import fetch, worker

        self._memory = mmap.mmap(-1, _SLOTS * _FIELDS * _NUMBER_BYTES)
        clock = _BatchClock(memoryview(self._memory).cast("d"))
        for fetcher in (fetch._MapDatasetFetcher, fetch._IterableDatasetFetcher):
            self._replace(fetcher, "fetch", WatchedMethod(fetcher.fetch, self._in_worker(clock.begin)))
        watchdog: Any = worker.ManagerWatchdog
        self._replace(watchdog, "is_alive", WatchedMethod(watchdog.is_alive, self._in_worker(clock.end)))
        for owner, name, replacement in self._starts.hooks():
            self._replace(owner, name, replacement)

    def remove(self) -> None:
        """Restore PyTorch; workers that live on keep their hooks. A patch that other code put over ours stays."""
        while self._undo:
            self._undo.pop()()

    def add_iterator(self, index: int, iterator: Any) -> None:
        """Note the loader, by its index, of an iterator that is asked for its first batch."""
        self._datasets[index] = id(iterator._dataset)
        self._starts.add_iterator(index, iterator)

    def added_to(self, loaders: Iterable[Loader]) -> tuple[Loader, ...]:
        """The loaders with the mean times of batches and of starts; unchanged where no worker was measured."""
        return tuple(
            self._starts.added_to(index, self._with_times(index, loader)) for index, loader in enumerate(loaders)
        )

    def _with_times(self, index: int, loader: Loader) -> Loader:
        if self._memory is None or not loader.workers or index not in self._datasets:
            return loader
        numbers = memoryview(self._memory).cast("d").tolist()
        slots = [numbers[first : first + _FIELDS] for first in range(0, len(numbers), _FIELDS)]
        slots = [slot for slot in slots if slot[_DATASET] == self._datasets[index] and slot[_BATCHES]]
        batches = sum(slot[_BATCHES] for slot in slots)
        if not batches:
            return loader
        loading_s, waiting_s, cpu_s = (sum(slot[field] for slot in slots) for field in (_LOADING_S, _WAITING_S, _CPU_S))
        return replace(
            loader,
            worker_batch_ns=round(loading_s / batches * 1e9),
            worker_wait_ns=round(waiting_s / batches * 1e9),
            worker_batch_cpu_ns=round(cpu_s / batches * 1e9),
        )

    def _in_worker(self, notice: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return a function that calls `notice`, guarded, if it is called in a worker."""
        main_process, guard = os.getpid(), self._guard

        def notice_in_worker(instance: Any) -> None:
            if os.getpid() != main_process:
                guard.call(_WORKER_TIMES, notice, None, instance)

        return notice_in_worker

    def _replace(self, owner: Any, name: str, replacement: Any) -> None:
        original = owner.__dict__[name]
        setattr(owner, name, replacement)

        def restore() -> None:
            if owner.__dict__.get(name) is replacement:
                setattr(owner, name, original)

        self._undo.append(restore)


class _BatchClock:
    """Adds up the times of a worker's batches in its slot of the shared memory."""

    def __init__(self, numbers: Any) -> None:
        self._numbers = numbers
        self._began: tuple[int, float, float, float, int | None] | None = None

    def begin(self, fetcher: Any) -> None:
        """Note the start of a batch."""
        dataset = id(vars(fetcher).get("dataset"))
        self._began = dataset, time.perf_counter(), time.thread_time(), _queued_s(), _blocked_count()

    def end(self, _: Any) -> None:
        """Add the batch that began before; nothing if there is none."""
        if self._began is None:
            return
        dataset, began_s, cpu_s, queued_s, blocked = self._began
        self._began = None
        loading_s = time.perf_counter() - began_s
        # A thread that never blocked did not wait for anything but a core.
        has_waited = blocked is None or _blocked_count() != blocked
        spent_s, queued_s = time.thread_time() - cpu_s, _queued_s() - queued_s
        self._add(dataset, loading_s, max(0.0, loading_s - spent_s - queued_s) if has_waited else 0.0, spent_s)

    def _add(self, dataset: int, *seconds: float) -> None:
        first = os.getpid() % _SLOTS * _FIELDS
        before = self._numbers[first : first + _FIELDS].tolist()
        if (before[_PID], before[_DATASET]) != (os.getpid(), dataset):
            before = [os.getpid(), dataset, *[0.0] * (_FIELDS - 2)]
        added = [0, 0, 1, *seconds]
        for field in range(_FIELDS):
            self._numbers[first + field] = before[field] + added[field]


def _blocked_count() -> int | None:
    """How often this thread gave up its core because it had to wait; None where the system does not say."""
    if resource is None or not hasattr(resource, "RUSAGE_THREAD"):  # not on Windows and macOS
        return None
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw


def _queued_s() -> float:
    """How long this thread has waited for a core so far; 0 where the system does not say."""
    try:
        file = _open(_SCHEDULER_FILE, os.O_RDONLY)
    except OSError:  # on other systems than Linux
        return 0.0
    try:
        return int(_read(file, _FILE_BYTES).split()[1]) / 1e9
    finally:
        _close(file)
