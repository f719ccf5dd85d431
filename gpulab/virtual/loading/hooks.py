"""DataLoaders under a virtual GPU: they run for real, on real data, and what each batch took is written down."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import wraps
from typing import Any

from gpulab.capture.marks import facts_of
from gpulab.run import Loader
from gpulab.virtual.assumptions import Assumptions
from gpulab.virtual.loading.batch_size import size_bytes, tensors_of
from gpulab.virtual.loading.build_time import Stopwatch, Timed
from gpulab.virtual.loading.iterators import Passing, Watching, passing
from gpulab.virtual.loading.sample_batch import SAMPLED, UNTIMED, sampled
from gpulab.virtual.op_log.ops import Assumption, Fetch, Sink

Around = Callable[[], AbstractContextManager[Any]]
Cost = tuple[int, int]  # in ns: time, and CPU time


@contextmanager
def watched(sink: Sink, modes_off: Around, modes_on: Around | None = None) -> Iterator[Watch]:
    """Within it every batch that this thread takes from a DataLoader is written to `sink` as a Fetch.

    `modes_off()` is entered for just as long as a loader works: workers are forked there, samplers and, without
    workers, datasets run there. The sink is called after it, so what passes within is none of the program's Python.
    `modes_on()` is the same for datasets that may put their batches on the GPU themselves: without workers for a
    loader's first batch, and for all of them if that one lay there.
    Batches of loaders with pin_memory=True are pinned by their tensors' `pin_memory()`, as the virtual GPU makes it.
    Who hooks `DataLoader.__iter__` or an iterator's `__next__` as well must let go in the opposite order.
    """
    watch = Watch(sink, modes_off, modes_on or modes_off)
    watch.install()
    try:
        yield watch
    finally:
        watch.remove()


class Watch:
    """The hooks while they are on; only the thread that installed them is watched, and no worker process."""

    def __init__(self, sink: Sink, modes_off: Around, modes_on: Around) -> None:
        self._sink, self._modes_off, self._modes_on = sink, modes_off, modes_on
        self._watching = Watching()
        self._stopwatch = Stopwatch()
        self._assumptions = Assumptions()
        self._indices: dict[tuple[int, Loader], int] = {}
        self._epochs: list[int] = []
        self._sampled: dict[int, Cost | None] = {}  # by loader, where its workers do not measure
        self._plain: set[int] = set()  # loaders whose batches do not lie on the GPU
        self._depth = 0
        self._pid, self._thread = os.getpid(), threading.get_ident()
        self._undo: list[Callable[[], None]] = []

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What could not be measured, and what was taken in its place."""
        return self._assumptions.told()

    def install(self) -> None:
        """Hook torch's DataLoader."""
        from torch.utils.data import DataLoader
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        self._hook(DataLoader, "__iter__", self._begin)
        self._hook(_BaseDataLoaderIter, "__next__", self._next)

    def remove(self) -> None:
        """Leave torch as it was found."""
        while self._undo:
            self._undo.pop()()
        self._watching.on = False
        self._stopwatch.close()

    def _hook(self, kind: Any, name: str, watched: Callable[[Any, Any], Any]) -> None:
        original = getattr(kind, name)

        @wraps(original)
        def hooked(this: Any) -> Any:
            __tracebackhide__ = True  # an error in the user's dataset should show the user's lines
            here = self._undo and os.getpid() == self._pid
            return watched(this, original) if here else original(this)

        def unhook() -> None:
            if getattr(kind, name) is hooked:  # else somebody hooked in after us and stayed: ours only passes on
                setattr(kind, name, original)

        self._undo.append(unhook)
        setattr(kind, name, hooked)

    @contextmanager
    def _working(self, around: Around | None = None) -> Iterator[None]:
        """A loader works; one inside another's dataset is part of that one's work."""
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
        if threading.get_ident() != self._thread:  # its loaders work under a virtual GPU too, if unseen
            with _prepared(loader) as pins:
                iterator = original(loader)
            passing(iterator, self._watching, pins=pins)
            return iterator
        with self._working():
            began_ns, start_ns = time.monotonic_ns(), self._stopwatch.now_ns()
            with _prepared(loader) as pins:
                iterator = original(loader)
            took_ns = max(0, self._stopwatch.now_ns() - start_ns)
        told = passing(iterator, self._watching, pins=pins)
        if told is not None:
            told.begin(began_ns, took_ns)
        return iterator

    def _next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        __tracebackhide__ = True
        told = passing(iterator, self._watching)
        if told is None or threading.get_ident() != self._thread:
            return original(iterator)
        self._identify(iterator, told)
        told.built = None
        inner = self._depth > 0
        spent = 0, 0
        unsure = not iterator._num_workers and told.loader not in self._plain
        try:
            with self._working(self._modes_on if unsure else self._modes_off):
                start_ns, start_cpu_ns = self._stopwatch.now_ns(), time.thread_time_ns()
                try:
                    batch = original(iterator)
                finally:
                    spent_ns = max(0, self._stopwatch.now_ns() - start_ns)
                    spent = spent_ns, time.thread_time_ns() - start_cpu_ns
        except Exception:  # also the end of the pass
            if not inner:
                self._write(told, (0, 0) if iterator._num_workers else spent)
            raise
        if unsure and all(tensor.device.type != "cuda" for tensor in tensors_of(batch)[0]):
            self._plain.add(told.loader)
        if not inner:
            self._write(told, self._by_worker(iterator, told, spent) if iterator._num_workers else spent, batch)
        return batch

    def _write(self, told: Passing, spent: Cost, *batches: Any) -> None:
        """One Fetch: of a batch, or of the end of a pass."""
        starting_ns = told.started()
        self._sink(
            Fetch(
                loader=told.loader,
                epoch=told.epoch,
                yielded=bool(batches),
                built_ns=spent[0] + starting_ns,
                built_cpu_ns=spent[1],
                bytes=size_bytes(batches[0]) if batches else -1,
                starting_ns=starting_ns,
            )
        )

    def _by_worker(self, iterator: Any, told: Passing, waited: Cost) -> Cost:
        """What the batch took in its worker: as it tells, or as one built here does, or as long as it was awaited."""
        if told.built is not None:
            return told.built.built_ns, told.built.built_cpu_ns
        loader = told.loader
        if loader not in self._sampled:
            with self._working():
                self._sampled[loader] = sampled(iterator, self._stopwatch)
        known = self._sampled[loader]
        self._assumptions.take(UNTIMED, SAMPLED if known is not None else "the wait for it")
        return waited if known is None else known

    def _identify(self, iterator: Any, told: Passing) -> None:
        """Which loader this iterator belongs to, and which pass over it this is; counted as capture.marks counts."""
        if told.loader < 0:
            key = id(iterator._dataset), facts_of(iterator)
            told.loader = self._indices.setdefault(key, len(self._indices))
            if told.loader == len(self._epochs):
                self._epochs.append(-1)
        if told.epoch < 0:
            self._epochs[told.loader] += 1
            told.epoch = self._epochs[told.loader]


@contextmanager
def _prepared(loader: Any) -> Iterator[bool]:
    """While it starts, a loader's workers are told to measure, and it does not pin: that needs a driver.

    Gives whether the loader was to pin.
    """
    pins, init = loader.pin_memory, loader.worker_init_fn
    try:
        loader.pin_memory = False
        if loader.num_workers:
            loader.worker_init_fn = Timed(init)
        yield bool(pins)
    finally:
        loader.pin_memory, loader.worker_init_fn = pins, init
