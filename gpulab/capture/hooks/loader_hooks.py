"""Step marks without changes to the user's code: DataLoader `__next__`, optimizer steps, gpulab.step().

The hooks run in the user's loop, so all of their code is guarded. They tell the user's objects apart by identity and
exact type: a dataset, a sampler or an optimizer may define `__hash__`, `__eq__`, `__len__` and properties that fail or
are slow.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from gpulab.capture.hooks.batch_inspection import BatchInspection
from gpulab.capture.hooks.evaluations.evaluation_watch import EvaluationWatch
from gpulab.capture.hooks.gradient_buckets import GradientBuckets
from gpulab.capture.hooks.loader_pass import LoaderPass, PassCounter
from gpulab.capture.hooks.loader_settings import (
    SamplerSettings,
    collate_name,
    is_known,
    loader_settings,
    other_settings,
    reference_to,
)
from gpulab.capture.hooks.mark_buffer import MarkBuffer
from gpulab.capture.hooks.models.frozen_models import FrozenModels
from gpulab.capture.hooks.models.gradient_watch import DISCARDED, GradientWatch
from gpulab.capture.hooks.models.module_watch import ModuleWatch
from gpulab.capture.hooks.models.watched_calls import REPEATED
from gpulab.capture.hooks.phase_recorder import PhaseRecorder
from gpulab.capture.hooks.training_calls import STEP_MARKS, TrainingCalls
from gpulab.capture.hooks.user_variables import (
    describe_model,
    describe_optimizer,
    find_framework,
    find_ignore_index,
    find_loader,
    find_variable_name,
    group_count,
    parameter_count,
    trained_module,
)
from gpulab.capture.hooks.workers.fetch_times import FetchTimes
from gpulab.capture.job_rank import rank_facts
from gpulab.capture.protection.guard import Guard, class_name
from gpulab.deferred_signals import DeferredSignals
from gpulab.rows import Rows
from gpulab.run import Gap, Loader, Model, Optimizer
from gpulab.sensors.host.storage import dataset_file_system
from gpulab.tables import MARKS, MarkKind

SETTINGS = "settings of the DataLoader or the optimizer"
FROZEN = "models that no optimizer trains"
BUCKETS = "sizes of the buckets of gradients"


@dataclass(frozen=True)
class MarkClocks:
    """Clocks for step marks, in ns: time, CPU time of the calling thread, CPU time of the process."""

    now_ns: Callable[[], int] = time.time_ns
    thread_cpu_ns: Callable[[], int] = time.thread_time_ns
    process_cpu_ns: Callable[[], int] = time.process_time_ns


class _NextCall(NamedTuple):
    """A call of a DataLoader iterator's `__next__` that has begun."""

    loader: int
    epoch: int
    process_cpu_ns: int
    thread_cpu_ns: int
    start_ns: int
    begins_step: bool  # unless the pass over the data ends here


class StepMarks:
    """Hooks torch while installed and records step marks of the thread that installed it.

    `on_boundary(known_steps)` is called at the start of a step, before the user's code continues.
    """

    def __init__(
        self,
        on_boundary: Callable[[int | None], None],
        timer: MarkClocks | None = None,
        guard: Guard | None = None,
    ) -> None:
        self.loaders: list[Loader] = []
        self.models: list[Model] = []
        self.optimizers: list[Optimizer] = []
        self.frozen = FrozenModels()
        self.evaluations = EvaluationWatch()
        self.buckets = GradientBuckets()
        self.buffer = MarkBuffer()
        self.worker_pids: tuple[int, ...] = ()
        self.steps = 0  # boundaries so far
        self._ended_passes = 0  # boundaries at which a pass over the data ended instead
        self.loader_wait_ns = 0
        self.first_mark_ns: int | None = None
        self.last_mark_ns: int | None = None
        self._on_boundary = on_boundary
        self._timer = timer or MarkClocks()
        self._guard = guard or Guard()
        self.modules = ModuleWatch(self._guard)
        self.fetches = FetchTimes(self._guard)
        self.gradients = GradientWatch(self._guard)
        self.phases = PhaseRecorder(self._timer.now_ns)
        self._calls = TrainingCalls(
            self._guard, self._mark_optimizer_step, self._backward_ended, lambda: self._instant(MarkKind.CLOSURE)
        )
        self._iterators: dict[int, tuple[weakref.ref[Any] | None, int]] = {}  # by id: the iterator and its loader
        self._indices: dict[tuple[int, Loader], int] = {}
        self.samplers = SamplerSettings()
        self._described: dict[int, weakref.ref[Any] | None] = {}  # by id: optimizers that were inspected
        self._epochs: list[int] = []
        self._inspections: defaultdict[int, BatchInspection] = defaultdict(BatchInspection)  # by index of the loader
        self._spooled = 0  # marks that `new_rows` has returned
        self._leader = -1  # the loader whose `__next__` starts a step
        self._batches = 0  # of the leader since the first one after the latest update
        self._accumulated = 1  # batches of the leader from one update to the next
        self._optimizer_numbers: dict[int, int] = {}  # by id
        self._group_counts: dict[int, int] = {}  # parameter groups of each optimizer, by its number
        self._optimizer_count = 0
        self._stepped: set[int] = set()  # optimizers that stepped since the last boundary, by number
        self._updates = 0  # calls of optimizers
        self._fetched_from = self._updated_with = -1  # the loader of the latest batch: now, and at the latest update
        self._updates_before: dict[int, tuple[int, int]] = {}  # epoch, and the same, at the latest batch of a loader
        self._user_marks = False
        self._passes = PassCounter()
        self._undo: list[Callable[[], None]] = []
        self.thread = threading.get_ident()

    @property
    def gaps(self) -> list[Gap]:
        """What could not be recorded."""
        gaps = [*self._guard.gaps, *self.phases.gaps]
        if not (missing := self.buffer.missing):
            return gaps
        return [
            *gaps,
            Gap(
                what=f"{missing:,} of {self.buffer.count:,} step marks",
                why="gpulab keeps the first and the latest marks only, so that its memory does not grow",
                fix="nothing to do: the number of steps is exact, and the remaining steps are measured",
            ),
        ]

    def install(self) -> None:
        """Hook torch's DataLoader iterators and optimizers."""
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        iterators: Any = _BaseDataLoaderIter
        original = iterators.__next__
        installed = threading.Event()  # a flag that a patch of the user's, made on top of ours, may outlive

        def marked_next(iterator: Any) -> Any:
            __tracebackhide__ = True  # an error in the user's dataset should show only the user's lines
            if threading.get_ident() != self.thread or not installed.is_set():
                return original(iterator)
            return self._next(iterator, original)

        def restore() -> None:
            installed.clear()
            if iterators.__dict__.get("__next__") is marked_next:
                iterators.__next__ = original

        installed.set()
        iterators.__next__ = marked_next
        self._calls.install()
        self.fetches.install()
        removals = self._calls.remove, self.fetches.remove, self.modules.remove, self.gradients.remove
        self._undo = [restore, *removals, self.frozen.release]

    def remove(self) -> None:
        """Restore torch; a patch that the user's code put over ours stays."""
        while self._undo:
            self._undo.pop()()

    @property
    def current_step(self) -> int:
        """Number of the step that runs, from 1; between two passes over the data, that of the last one."""
        return self.steps - self._ended_passes

    @property
    def loader_pass(self) -> LoaderPass | None:
        """How far the loop is in its pass over the data; None if that is unknown. For the sampler's thread."""
        if self._leader < 0 or self._user_marks:
            return None
        batches = self.loaders[self._leader].batches
        return self._passes.state(batches)

    def user_step(self) -> None:
        """Mark the end of a step, as requested by the user's code; steps of other threads do not count."""
        if threading.get_ident() == self.thread:
            self._guard.call(STEP_MARKS, self._mark_user_step, None)

    def rows(self, began_ns: int) -> Rows:
        """The recorded marks, as rows of tables.MARKS."""
        return self.buffer.rows(began_ns)

    def new_rows(self) -> tuple[Rows]:
        """The marks since the previous call, with UNIX times; for the sampler's thread."""
        count = self.buffer.count
        marks, self._spooled = self.buffer.since(self._spooled), count
        return (MARKS.of(marks),)

    def _mark_user_step(self) -> None:
        self._user_marks = True
        self._instant(MarkKind.USER)
        self._boundary(None)

    def _next(self, iterator: Any, original: Callable[[Any], Any]) -> Any:
        __tracebackhide__ = True
        call = self._guard.call(STEP_MARKS, self._before_next, None, iterator)
        yielded = False
        try:
            batch = original(iterator)
            yielded = True
        finally:
            if call is not None:
                self._guard.call(STEP_MARKS, self._after_next, None, call, yielded)
        if call is not None and self._inspections[call.loader].is_due():
            self._guard.call(SETTINGS, self._inspect_batch, None, call.loader, batch)
        return batch

    def _before_next(self, iterator: Any) -> _NextCall:
        loader, epoch = self._identify(iterator)
        begins_step = not self._user_marks and self._starts_step(loader, epoch)
        if begins_step:
            self._leader = loader
            self._boundary(self.loaders[loader].batches)
        timer = self._timer
        return _NextCall(loader, epoch, timer.process_cpu_ns(), timer.thread_cpu_ns(), timer.now_ns(), begins_step)

    def _starts_step(self, loader: int, epoch: int) -> bool:
        """Whether a batch of this loader starts a step.

        It does not within the batches whose gradients are accumulated for one update, nor in an evaluation that comes
        between the updates of a loop without a DataLoader, or that the program names.
        """
        if self.phases.evaluates(trained=self._updates > 0):
            return False
        previous_epoch, updates = self._updates_before.get(loader, (-1, 0))
        is_trained_on = previous_epoch == epoch and self._updates > updates
        self._updates_before[loader] = epoch, self._updates
        if loader == self._leader:
            self._batches += 1
            if self._stepped:
                self._accumulated, self._batches = self._batches, 0
                return True
            return self._batches >= self._accumulated
        if self._leader >= 0:  # another loader takes over once an optimizer stepped with a batch of it
            return bool(self._stepped) and self._updated_with == loader
        return is_trained_on or not self._updates

    def _after_next(self, call: _NextCall, yielded: bool) -> None:
        timer = self._timer
        end_ns = timer.now_ns()
        spent_ns = timer.thread_cpu_ns() - call.thread_cpu_ns
        process = call.process_cpu_ns, timer.process_cpu_ns()
        mark = (MarkKind.NEXT, call.start_ns, end_ns, call.loader, call.epoch, yielded, spent_ns, *process, -1)
        self.buffer.append(mark)
        self._fetched_from = call.loader if yielded else -1
        if yielded and call.loader == self._leader:
            self._passes.add_batch(call.loader, call.epoch)
        self._ended_passes += call.begins_step and not yielded
        self.loader_wait_ns += end_ns - call.start_ns
        self._note_times(call.start_ns, end_ns)

    def _backward_ended(self) -> None:
        if not (self._updates or self.loaders or self._user_marks):
            self._instant(MarkKind.BACKWARD)
            self._boundary(None)

    def _mark_optimizer_step(self, optimizer: Any) -> None:
        if not is_known(optimizer, self._described):
            self._described[id(optimizer)] = reference_to(optimizer)
            self._optimizer_numbers[id(optimizer)] = self._optimizer_count
            self._optimizer_count += 1
            self._guard.call(SETTINGS, self._inspect_optimizer, None, optimizer)
            if rank_facts():
                self._guard.call(BUCKETS, self._find_buckets, None)
            if len(self.optimizers) == self._optimizer_count:  # otherwise it cannot be read
                self._guard.call(FROZEN, self._find_frozen_models, None, optimizer)
        number = self._optimizer_numbers[id(optimizer)]
        if group_count(optimizer) != self._group_counts.get(number):
            self._guard.call(SETTINGS, self._count_parameters, None, number, optimizer)
        self._guard.call(BUCKETS, self.buckets.optimizer_stepped, None)
        self._guard.call(DISCARDED, self.gradients.optimizer_stepped, None, number, optimizer, sys._getframe())
        if self.frozen.is_due():
            self._guard.call(FROZEN, self.frozen.compare, None)
        self._instant(MarkKind.OPTIMIZER, number)
        self._guard.call(REPEATED, self.modules.optimizer_stepped, None, sys._getframe())
        is_next_iteration = number in self._stepped  # optimizers that take turns step once in an iteration
        if self._leader < 0 and not self._user_marks and (is_next_iteration or not self.steps):
            self._boundary(None)
        self._stepped.add(number)
        self._updates += 1
        self._passes.add_update()
        self._updated_with = self._fetched_from

    def _instant(self, kind: MarkKind, optimizer: int = -1) -> None:
        now_ns = self._timer.now_ns()
        self.buffer.append((kind, now_ns, now_ns, -1, -1, False, 0, -1, -1, optimizer))
        self._note_times(now_ns, now_ns)

    def _note_times(self, start_ns: int, end_ns: int) -> None:
        if self.first_mark_ns is None:
            self.first_mark_ns = start_ns
        self.last_mark_ns = end_ns

    def _boundary(self, known_steps: int | None) -> None:
        self._stepped.clear()
        self.steps += 1
        self._on_boundary(known_steps)

    def _identify(self, iterator: Any) -> tuple[int, int]:
        """Index of the iterator's loader, and number of this pass over it."""
        reference, index = self._iterators.get(id(iterator), (None, -1))
        is_new = index < 0 or (reference is not None and reference() is not iterator)
        if not is_new and iterator._num_yielded:
            return index, self._epochs[index]
        if is_new:
            index = self._index(iterator)
        self._epochs[index] += 1
        self.worker_pids = tuple(worker.pid for worker in getattr(iterator, "_workers", ()))
        return index, self._epochs[index]

    def _index(self, iterator: Any) -> int:
        """Index of the loader of an iterator that was not seen before."""
        self._iterators = {
            key: (ref, n) for key, (ref, n) in self._iterators.items() if ref is None or ref() is not None
        }
        facts = loader_settings(iterator, self.samplers)
        key = id(iterator._dataset), facts
        index = self._indices.setdefault(key, len(self.loaders))
        if index == len(self.loaders):
            self.loaders.append(facts)
            self._epochs.append(-1)
            self._guard.call(SETTINGS, self._inspect_loader, None, index, iterator)
        self._iterators[id(iterator)] = reference_to(iterator), index
        self.fetches.add_iterator(index, iterator)
        return index

    def _inspect_optimizer(self, optimizer: Any) -> None:
        import torch

        frame = sys._getframe(1)
        with torch._C.DisableTorchFunction():  # a mode of the user's would count our calls
            self.optimizers.append(describe_optimizer(frame, optimizer))
            variable = trained_module(frame, optimizer)
            model = describe_model(frame, optimizer, variable)
            self.evaluations.add_training(frame, variable.value if variable else None)
        if model is not None:
            self.models.append(model)

    def _find_buckets(self) -> None:
        self.buckets.find_model(sys._getframe(1))

    def _find_frozen_models(self, optimizer: Any) -> None:
        import torch

        with torch._C.DisableTorchFunction():
            self.frozen.add_optimizer(sys._getframe(1), optimizer)

    def _count_parameters(self, number: int, optimizer: Any) -> None:
        """Note the parameters of an optimizer again if it has new groups, as when layers are unfrozen one by one."""
        is_new = number not in self._group_counts
        self._group_counts[number] = group_count(optimizer)
        if not is_new and number < len(self.optimizers):  # a failed inspection ends all: the numbers are indices
            self.optimizers[number] = replace(self.optimizers[number], tensors=parameter_count(optimizer))

    def _inspect_batch(self, index: int, batch: Any) -> None:
        self.loaders[index] = self._inspections[index].inspect(batch, self.loaders[index])

    def _inspect_loader(self, index: int, iterator: Any) -> None:
        # The caller's frame: a frame that refers to itself would keep the dataset until the next garbage collection.
        frame, dataset = sys._getframe(1), iterator._dataset
        with DeferredSignals(again=True):  # an unusable path is an OSError there, as is a handler's TimeoutError
            location = dataset_file_system(dataset)
        name, loader, function = find_loader(frame, dataset, iterator._index_sampler) or (None, None, None)
        self.loaders[index] = replace(
            self.loaders[index],
            name=name,
            function=function,
            kind=None if loader is None else class_name(type(loader)),
            other_settings=() if loader is None else other_settings(loader),
            collate=collate_name(iterator),
            dataset_name=find_variable_name(frame, lambda value: value is dataset),
            framework=find_framework(frame),
            ignore_index=find_ignore_index(frame, self.loaders[index].ignore_index),
            location=location,
        )
