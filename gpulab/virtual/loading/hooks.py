"""Hooks on torch's DataLoader: loaders run for real, and the time of every batch is logged."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from gpulab.capture.hooks.loader_settings import SamplerSettings, loader_settings
from gpulab.run import Loader
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.loading.batch_tensors import batch_size_bytes, tensors_of
from gpulab.virtual.loading.build_time import Stopwatch, TimedWorkerInit
from gpulab.virtual.loading.iterators import HookState, IteratorState, attach_state
from gpulab.virtual.loading.sample_batch import SAMPLE_BUILD_TIME, UNKNOWN_BUILD_TIME, time_one_batch
from gpulab.virtual.op_log.ops import Assumption, BatchFetch, RecordSink

ContextFactory = Callable[[], AbstractContextManager[Any]]
BuildTimes = tuple[int, int]  # wall time and CPU time, ns


@contextmanager
def log_batches(
    sink: RecordSink,
    modes_off: ContextFactory,
    modes_on: ContextFactory | None = None,
    samplers: SamplerSettings | None = None,
) -> Iterator[LoaderHooks]:
    """Log every batch that this thread takes from a DataLoader in the block to `sink`, as a Fetch.

    A loader runs inside `modes_off()`: forking workers, samplers and, without workers, datasets. The sink is called
    after it, so the loader's time does not count as Python time of the program.
    `modes_on()` replaces it for datasets that may put batches on the GPU themselves: without workers, for the first
    batch of a loader, and for all its batches if the first one is on the GPU.
    Batches of loaders with pin_memory=True are pinned by `Tensor.pin_memory()`, which the virtual GPU replaces.
    Other hooks on `DataLoader.__iter__` or the iterator's `__next__` must be removed in reverse order.
    """
    watch = LoaderHooks(sink, modes_off, modes_on or modes_off, samplers)
    watch.install()
    try:
        yield watch
    finally:
        watch.remove()


class LoaderHooks:
    """The installed hooks; they apply to the thread that installed them, and not to worker processes."""

    def __init__(
        self,
        sink: RecordSink,
        modes_off: ContextFactory,
        modes_on: ContextFactory,
        samplers: SamplerSettings | None = None,
    ) -> None:
        self._sink, self._modes_off, self._modes_on = sink, modes_off, modes_on
        self._watching = HookState()
        self._stopwatch = Stopwatch()
        self._assumptions = Assumptions()
        self._indices: dict[tuple[int, Loader], int] = {}
        self._epochs: list[int] = []
        self._sampled: dict[int, BuildTimes | None] = {}  # by loader, if its workers do not measure
        self._cpu_only: set[int] = set()  # loaders whose batches are not on the GPU
        self._depth = 0
        self._samplers = samplers or SamplerSettings()  # of the step marks, so that each sampler is asked once
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._undo: list[Callable[[], None]] = []

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Values that could not be measured, and what is assumed instead."""
        return self._assumptions.entries()

    def install(self) -> None:
        """Hook torch's DataLoader."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self._hook(DataLoader, "__iter__", self._begin)
        self._hook(_BaseDataLoaderIter, "__next__", self._next)

    def remove(self) -> None:
        """Restore torch."""
        while self._undo:
            self._undo.pop()()
        self._watching.on = False
        self._stopwatch.close()

    def _hook(self, kind: Any, name: str, watched: Callable[[Any, Any], Any]) -> None:
        original = getattr(kind, name)

        @wraps(original)
        def hooked(instance: Any) -> Any:
            __tracebackhide__ = True  # an error in the user's dataset should show the user's lines
            active = self._undo and os.getpid() == self._pid
            return watched(instance, original) if active else original(instance)

        def unhook() -> None:
            if (
                getattr(kind, name) is hooked
            ):  # otherwise a later hook is still installed: ours then only calls the original
                setattr(kind, name, original)

        self._undo.append(unhook)
        setattr(kind, name, hooked)

    @contextmanager
    def _working(self, around: ContextFactory | None = None) -> Iterator[None]:
        """Run a loader; a loader inside another loader's dataset counts as part of the outer one."""
        self._depth += 1
        try:
            if self._depth > 1:
                yield
            else:
                with (around or self._modes_off)():
                    yield
        finally:
            self._depth -= 1

    def _begin(self, loader: Any, original: Callable[[Any], Any]) -> Any:
        __tracebackhide__ = True
        if threading.get_ident() != self._thread:  # loaders of other threads work, too, but are not logged
            with _prepared(loader) as pins:
                iterator = original(loader)
            attach_state(iterator, self._watching, pin_memory=pins)
            return iterator
        with self._working():
            epoch_start_ns, start_ns = time.monotonic_ns(), self._stopwatch.now_ns()
            with _prepared(loader) as pins:
                iterator = original(loader)
            duration_ns = max(0, self._stopwatch.now_ns() - start_ns)
        state = attach_state(iterator, self._watching, pin_memory=pins)
        if state is not None:
            state.begin(epoch_start_ns, duration_ns)
        return iterator

    def _next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        __tracebackhide__ = True
        state = attach_state(iterator, self._watching)
        if state is None or threading.get_ident() != self._thread:
            return original(iterator)
        self._identify(iterator, state)
        state.built = None
        inner = self._depth > 0
        build_times = 0, 0
        maybe_on_gpu = not iterator._num_workers and state.loader not in self._cpu_only
        try:
            with self._working(self._modes_on if maybe_on_gpu else self._modes_off):
                start_ns, start_cpu_ns = self._stopwatch.now_ns(), time.thread_time_ns()
                try:
                    batch = original(iterator)
                finally:
                    build_ns = max(0, self._stopwatch.now_ns() - start_ns)
                    build_times = build_ns, time.thread_time_ns() - start_cpu_ns
        except Exception:  # including StopIteration
            if not inner:
                self._write(state, (0, 0) if iterator._num_workers else build_times)
            raise
        if maybe_on_gpu and all(tensor.device.type != "cuda" for tensor in tensors_of(batch)[0]):
            self._cpu_only.add(state.loader)
        if not inner:
            self._write(
                state, self._worker_cost(iterator, state, build_times) if iterator._num_workers else build_times, batch
            )
        return batch

    def _write(self, state: IteratorState, build_times: BuildTimes, *batches: Any) -> None:
        """Log one Fetch: of a batch, or of the end of an epoch."""
        starting_ns = state.take_startup_ns()
        self._sink(
            BatchFetch(
                loader=state.loader,
                epoch=state.epoch,
                yielded=bool(batches),
                build_ns=build_times[0] + starting_ns,
                build_cpu_ns=build_times[1],
                bytes=batch_size_bytes(batches[0]) if batches else -1,
                epoch_start_ns=starting_ns,
            )
        )

    def _worker_cost(self, iterator: Any, state: IteratorState, wait: BuildTimes) -> BuildTimes:
        """Return the build time in the worker: measured there, else of a batch built here, else the wait for it."""
        if state.built is not None:
            return state.built.built_ns, state.built.built_cpu_ns
        loader = state.loader
        if loader not in self._sampled:
            with self._working():
                self._sampled[loader] = time_one_batch(iterator, self._stopwatch)
        cost = self._sampled[loader]
        self._assumptions.add(UNKNOWN_BUILD_TIME, SAMPLE_BUILD_TIME if cost is not None else "the wait for the batch")
        return wait if cost is None else cost

    def _identify(self, iterator: Any, state: IteratorState) -> None:
        """Set the loader and the epoch of an iterator, numbered as in capture.loader_hooks."""
        if state.loader < 0:
            key = id(iterator._dataset), loader_settings(iterator, self._samplers)
            state.loader = self._indices.setdefault(key, len(self._indices))
            if state.loader == len(self._epochs):
                self._epochs.append(-1)
        if state.epoch < 0:
            self._epochs[state.loader] += 1
            state.epoch = self._epochs[state.loader]


@contextmanager
def _prepared(loader: Any) -> Iterator[bool]:
    """Prepare a loader for its start: its workers measure, and it does not pin, which needs a driver.

    Yields whether the loader is set to pin memory.
    """
    pins, init = loader.pin_memory, loader.worker_init_fn
    try:
        loader.pin_memory = False
        if loader.num_workers:
            loader.worker_init_fn = TimedWorkerInit(init)
        yield bool(pins)
    finally:
        loader.pin_memory, loader.worker_init_fn = pins, init
