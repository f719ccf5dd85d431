"""Step marks without changes to the user's code: DataLoader `__next__`, optimizer steps, gpulab.step()."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpulab.capture.user_variables import describe_model, describe_optimizer, find_loader_names
from gpulab.rows import Rows
from gpulab.run import Gap, Loader, Model, Optimizer
from gpulab.sensors.host.storage import dataset_file_system
from gpulab.tables import MARKS, MarkKind


@dataclass(frozen=True)
class MarkClocks:
    """Clocks for step marks, in ns: time, CPU time of the calling thread, CPU time of the process."""

    now_ns: Callable[[], int] = time.time_ns
    thread_cpu_ns: Callable[[], int] = time.thread_time_ns
    process_cpu_ns: Callable[[], int] = time.process_time_ns


class StepMarks:
    """Hooks torch while installed and records step marks of the thread that installed it.

    `on_boundary(known_steps)` is called at the start of a step, before the user's code continues. It must not raise.
    """

    def __init__(self, on_boundary: Callable[[int | None], None], timer: MarkClocks | None = None) -> None:
        self.loaders: list[Loader] = []
        self.models: list[Model] = []
        self.optimizers: list[Optimizer] = []
        self.gaps: list[Gap] = []
        self.worker_pids: tuple[int, ...] = ()
        self.steps = 0
        self.loader_wait_ns = 0
        self.first_mark_ns: int | None = None
        self.last_mark_ns: int | None = None
        self._on_boundary = on_boundary
        self._timer = timer or MarkClocks()
        self._rows: list[tuple[int, int, int, int, int, bool, int, int, int]] = []
        self._indices: dict[tuple[int, Loader], int] = {}
        self._described: weakref.WeakSet[Any] = weakref.WeakSet()  # optimizers that were inspected
        self._epochs: list[int] = []
        self._leader = -1  # the loader whose `__next__` starts a step
        self._stepped = False  # an optimizer stepped since the last boundary
        self._user_marks = False
        self._undo: list[Callable[[], None]] = []
        self.thread = threading.get_ident()

    def install(self) -> None:
        """Hook torch's DataLoader iterators and optimizers."""
        from torch.optim.optimizer import register_optimizer_step_post_hook
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        iterators: Any = _BaseDataLoaderIter
        original = iterators.__next__

        def marked_next(iterator: Any) -> Any:
            __tracebackhide__ = True  # an error in the user's dataset should show only the user's lines
            if threading.get_ident() != self.thread:
                return original(iterator)
            return self._next(iterator, original)

        handle = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        iterators.__next__ = marked_next
        self._undo = [handle.remove, lambda: setattr(iterators, "__next__", original)]

    def remove(self) -> None:
        """Restore torch."""
        while self._undo:
            self._undo.pop()()

    def user_step(self) -> None:
        """Mark the end of a step, as requested by the user's code."""
        self._user_marks = True
        self._instant(MarkKind.USER)
        self._boundary(None)

    def rows(self, began_ns: int) -> Rows:
        """The recorded marks, as rows of tables.MARKS."""
        return MARKS.of(self._rows).shifted(-began_ns, "start_ns", "end_ns")

    def _next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        __tracebackhide__ = True
        loader, epoch = self._identify(iterator)
        if not self._user_marks and (loader == self._leader or self._leader < 0 or self._stepped):
            self._leader = loader
            self._boundary(self.loaders[loader].batches)
        yielded = False
        timer = self._timer
        process_cpu_ns, cpu_ns = timer.process_cpu_ns(), timer.thread_cpu_ns()
        start_ns = timer.now_ns()
        try:
            batch = original(iterator)
            yielded = True
            return batch
        finally:
            end_ns = timer.now_ns()
            spent_ns = timer.thread_cpu_ns() - cpu_ns
            process = process_cpu_ns, timer.process_cpu_ns()
            self._rows.append((MarkKind.NEXT, start_ns, end_ns, loader, epoch, yielded, spent_ns, *process))
            self.loader_wait_ns += end_ns - start_ns
            self._note_times(start_ns, end_ns)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        if optimizer not in self._described:
            self._described.add(optimizer)
            self._inspect_safely(lambda: self._inspect_optimizer(optimizer))
        self._stepped = True
        self._instant(MarkKind.OPTIMIZER)
        if self._leader < 0 and not self._user_marks:
            self._boundary(None)

    def _instant(self, kind: MarkKind) -> None:
        now_ns, cpu_ns = self._timer.now_ns(), self._timer.process_cpu_ns()
        self._rows.append((kind, now_ns, now_ns, -1, -1, False, 0, cpu_ns, cpu_ns))
        self._note_times(now_ns, now_ns)

    def _note_times(self, start_ns: int, end_ns: int) -> None:
        if self.first_mark_ns is None:
            self.first_mark_ns = start_ns
        self.last_mark_ns = end_ns

    def _boundary(self, known_steps: int | None) -> None:
        self._stepped = False
        self.steps += 1
        self._on_boundary(known_steps)

    def _identify(self, iterator: Any) -> tuple[int, int]:
        """Index of the iterator's loader, and number of this pass over it."""
        facts = loader_settings(iterator)
        key = (id(iterator._dataset), facts)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = len(self.loaders)
            self.loaders.append(facts)
            self._epochs.append(-1)
            self._inspect_safely(lambda: self._inspect_loader(index, iterator._dataset))
        if iterator._num_yielded == 0 or self._epochs[index] < 0:
            self._epochs[index] += 1
            self.worker_pids = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        return index, self._epochs[index]

    def _inspect_optimizer(self, optimizer: Any) -> None:
        frame = sys._getframe()
        self.optimizers.append(describe_optimizer(frame, optimizer))
        model = describe_model(frame, optimizer)
        if model is not None:
            self.models.append(model)

    def _inspect_loader(self, index: int, dataset: Any) -> None:
        name, dataset_name = find_loader_names(sys._getframe(), dataset)
        self.loaders[index] = replace(
            self.loaders[index], name=name, dataset_name=dataset_name, location=dataset_file_system(dataset)
        )

    def _inspect_safely(self, inspect: Callable[[], None]) -> None:
        """Inspect a loader or an optimizer, once each; if this fails, only its description is lost."""
        try:
            inspect()
        except Exception as error:  # protects the user's training loop, which is running right now
            subject = "settings of the DataLoader or the optimizer"
            self.gaps.append(
                Gap(what=subject, why=f"reading them failed: {error}", fix="please report this with the cell")
            )


def loader_settings(iterator: Any) -> Loader:
    """Settings of the DataLoader behind an iterator."""
    sampler = iterator._index_sampler
    try:
        batches = len(sampler)
    except TypeError:  # an iterable dataset has no length
        batches = None
    return Loader(
        workers=iterator._num_workers,
        batch_size=getattr(sampler, "batch_size", None),
        pin_memory=iterator._pin_memory,
        persistent_workers=getattr(iterator, "_persistent_workers", None),
        prefetch_factor=getattr(iterator, "_prefetch_factor", None),
        batches=batches,
        dataset=type(iterator._dataset).__name__,
    )
