"""Step marks found without a word of the user's code: DataLoader `__next__`, optimizer steps, gpulab.step()."""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gpulab.capture.user_names import loader_names, model_of, optimizer_of
from gpulab.rows import Rows
from gpulab.run import Gap, Loader, Model, Optimizer
from gpulab.sensors.host.storage import location
from gpulab.tables import MARKS, MarkKind


@dataclass(frozen=True)
class Timer:
    """The clocks that marks are read from, in ns: time, CPU time of the calling thread, CPU time of the process."""

    now_ns: Callable[[], int] = time.time_ns
    thread_cpu_ns: Callable[[], int] = time.thread_time_ns
    process_cpu_ns: Callable[[], int] = time.process_time_ns


class Marks:
    """Hooks torch while it is installed and keeps what it sees; only the thread that installed it is watched.

    `on_boundary(known_steps)` is called where a step begins, before the user's code goes on. What it may raise is
    its own affair: it must not raise.
    """

    def __init__(self, on_boundary: Callable[[int | None], None], timer: Timer | None = None) -> None:
        self.loaders: list[Loader] = []
        self.models: list[Model] = []
        self.optimizers: list[Optimizer] = []
        self.gaps: list[Gap] = []
        self.worker_pids: tuple[int, ...] = ()
        self.steps = 0
        self.waited_ns = 0
        self.first_ns: int | None = None
        self.last_ns: int | None = None
        self._on_boundary = on_boundary
        self._timer = timer or Timer()
        self._rows: list[tuple[int, int, int, int, int, bool, int, int, int]] = []
        self._indices: dict[tuple[int, Loader], int] = {}
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()  # the optimizers that were looked at
        self._epochs: list[int] = []
        self._leader = -1  # the loader whose calls begin a step
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
            __tracebackhide__ = True  # an error in the user's dataset should show the user's lines
            if threading.get_ident() != self.thread:
                return original(iterator)
            return self._next(iterator, original)

        handle = register_optimizer_step_post_hook(lambda optimizer, *_: self._optimizer_stepped(optimizer))
        iterators.__next__ = marked_next
        self._undo = [handle.remove, lambda: setattr(iterators, "__next__", original)]

    def remove(self) -> None:
        """Leave torch as it was found."""
        while self._undo:
            self._undo.pop()()

    def user_step(self) -> None:
        """The user says that a step ended here."""
        self._user_marks = True
        self._instant(MarkKind.USER)
        self._boundary(None)

    def rows(self, began_ns: int) -> Rows:
        """What was seen, as rows of tables.MARKS."""
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
            self.waited_ns += end_ns - start_ns
            self._seen(start_ns, end_ns)

    def _optimizer_stepped(self, optimizer: Any) -> None:
        if threading.get_ident() != self.thread:
            return
        if optimizer not in self._known:
            self._known.add(optimizer)
            self._look(lambda: self._look_at(optimizer))
        self._stepped = True
        self._instant(MarkKind.OPTIMIZER)
        if self._leader < 0 and not self._user_marks:
            self._boundary(None)

    def _instant(self, kind: MarkKind) -> None:
        now_ns, cpu_ns = self._timer.now_ns(), self._timer.process_cpu_ns()
        self._rows.append((kind, now_ns, now_ns, -1, -1, False, 0, cpu_ns, cpu_ns))
        self._seen(now_ns, now_ns)

    def _seen(self, start_ns: int, end_ns: int) -> None:
        if self.first_ns is None:
            self.first_ns = start_ns
        self.last_ns = end_ns

    def _boundary(self, known_steps: int | None) -> None:
        self._stepped = False
        self.steps += 1
        self._on_boundary(known_steps)

    def _identify(self, iterator: Any) -> tuple[int, int]:
        """Which loader this iterator belongs to, and which pass over it this is."""
        facts = facts_of(iterator)
        key = (id(iterator._dataset), facts)
        index = self._indices.get(key)
        if index is None:
            index = self._indices[key] = len(self.loaders)
            self.loaders.append(facts)
            self._epochs.append(-1)
            self._look(lambda: self._look_at_loader(index, iterator._dataset))
        if iterator._num_yielded == 0 or self._epochs[index] < 0:
            self._epochs[index] += 1
            self.worker_pids = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        return index, self._epochs[index]

    def _look_at(self, optimizer: Any) -> None:
        frame = sys._getframe()
        self.optimizers.append(optimizer_of(frame, optimizer))
        model = model_of(frame, optimizer)
        if model is not None:
            self.models.append(model)

    def _look_at_loader(self, index: int, dataset: Any) -> None:
        name, dataset_name = loader_names(sys._getframe(), dataset)
        known = replace(self.loaders[index], name=name, dataset_name=dataset_name, location=location(dataset))
        self.loaders[index] = known

    def _look(self, look: Callable[[], None]) -> None:
        """Once for each loader and optimizer; a stranger's object that cannot be read costs its description only."""
        try:
            look()
        except Exception as error:  # protects the user's loop, in the midst of which we are
            what = "how the DataLoader or the optimizer was set up"
            self.gaps.append(Gap(what=what, why=f"reading it failed: {error}", fix="please report this with the cell"))


def facts_of(iterator: Any) -> Loader:
    """How the DataLoader behind an iterator was set up."""
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
