"""Which layers a training step calls, and which modules compute outputs again: for the same tensors, or equal rows.

During a few single steps, and for parts of evaluations, `WatchedStep` notes what each module gets.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from types import FrameType
from typing import Any, TypeVar

from gpulab.capture.hooks.evaluations.call_sizes import CalledModule, evaluated_modules, fastest
from gpulab.capture.hooks.evaluations.evaluation_calls import (
    EvaluatedPart,
    WatchedParts,
    watched_evaluations,
    watched_sequences,
)
from gpulab.capture.hooks.evaluations.growing_inputs import GrowingCalls, growing_inputs
from gpulab.capture.hooks.models.dropout_calls import TimedDropout
from gpulab.capture.hooks.models.layer_calls import TimedLayer
from gpulab.capture.hooks.models.module_tree import MAX_SUBMODULES, children_of, parameters_in, submodules_in
from gpulab.capture.hooks.models.separate_modules import SeparateLayer
from gpulab.capture.hooks.models.watched_calls import watch_calls
from gpulab.capture.hooks.models.watched_step import Key, RepeatedWork, WatchedStep
from gpulab.capture.hooks.models.zero_matrices import SparseProduct
from gpulab.capture.hooks.user_variables import NamedValues, visible_values
from gpulab.capture.protection.guard import Guard
from gpulab.run import EvaluatedModule, GrowingInput, RepeatedInputs, SeparateModules, SparseOperand

_WATCHED_AFTER = (2, 4)  # updates: the first steps warm up, and the profiler starts later
_MOST_MODULES = 20  # with the most repeated work
_MAX_BEGIN_S = 1.0  # that another thread takes to begin watching

K = TypeVar("K")
C = TypeVar("C", RepeatedWork, CalledModule, GrowingCalls)
_Results = dict[tuple[Any, ...], RepeatedInputs]


@dataclass(frozen=True, kw_only=True)
class ModuleResults:
    """What modules do in steps and evaluations, as fields of a Run."""

    repeated_inputs: tuple[RepeatedInputs, ...] = ()
    repeated_in_evaluations: tuple[RepeatedInputs, ...] = ()
    evaluated_modules: tuple[EvaluatedModule, ...] = ()
    growing_inputs: tuple[GrowingInput, ...] = ()


class ModuleWatch:
    """Watches a few single steps, and parts of evaluations, of the thread that created it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._thread = threading.get_ident()
        self._updates = 0
        self._step: WatchedStep | None = None
        self._restore: Callable[[], None] | None = None
        self._begin_count = 0  # steps
        self._results: list[_Results] = []  # of each watched step
        self.layers: Counter[TimedLayer] = Counter()  # of the latest watched step
        self.dropouts: Counter[TimedDropout] = Counter()  # of the same step
        self.products: list[tuple[SparseProduct, SparseOperand]] = []  # of the same step, not timed yet
        self.separate: list[tuple[Counter[SeparateLayer], SeparateModules]] = []  # of the same step, not timed yet
        self._matrices: list[weakref.ref[Any]] = []  # of mostly zeros, in the same step
        self._evaluations = watched_evaluations(self._thread, guard)
        self._evaluated_sequences = watched_sequences(self._thread, guard)
        self._other_sequences = watched_sequences(self._thread, guard)  # in code that neither trains nor evaluates
        self._named_sequences = 0  # windows
        self._samples = self._other_samples = 0
        self._windows: list[EvaluatedPart] = []  # of evaluations, whose modules have names
        self._evaluated_names: dict[int, str] = {}  # by id of the module
        self._trained: dict[int, CalledModule] = {}  # that the latest watched step called, by id
        self._is_over = False
        self._lock = threading.Lock()  # against a step and an evaluation at a time, which two threads begin

    @property
    def results(self) -> ModuleResults:
        """What was found so far."""
        return ModuleResults(
            repeated_inputs=self.repeated,
            repeated_in_evaluations=self.repeated_in_evaluations,
            evaluated_modules=self.evaluated,
            growing_inputs=(*self._growing(in_evaluations=True), *self._growing(in_evaluations=False)),
        )

    @property
    def repeated(self) -> tuple[RepeatedInputs, ...]:
        """What modules computed again in every watched step, the most expensive first; the smaller figures."""
        if len(self._results) < len(_WATCHED_AFTER):
            return ()
        in_all = set.intersection(*[set(results) for results in self._results])
        return _by_time(min([results[key] for results in self._results], key=_step_frac) for key in in_all)

    @property
    def repeated_in_evaluations(self) -> tuple[RepeatedInputs, ...]:
        """What modules computed again in the watched parts of evaluations, in the same way."""
        length_ns = sum([window.length_ns for window in self._all_windows])
        work = _sum_of([window.work for window in self._all_windows])
        results = _results(work, length_ns, lambda _: self._evaluated_names)
        return _by_time(results.values())

    @property
    def evaluated(self) -> tuple[EvaluatedModule, ...]:
        """Modules that evaluations call, and the watched steps, too: those with the most time first."""
        calls = _sum_of([window.modules for window in self._all_windows])
        length_ns = sum([window.length_ns for window in self._all_windows])
        modules = evaluated_modules(calls, self._trained, length_ns, self._evaluated_names)
        return tuple(modules[:_MOST_MODULES])

    @property
    def _all_windows(self) -> list[EvaluatedPart]:
        return [*self._windows, *self._evaluations.windows]

    def _growing(self, *, in_evaluations: bool) -> list[GrowingInput]:
        """What evaluations, or other code, call for growing sequences: the most expensive first."""
        windows = (self._evaluated_sequences if in_evaluations else self._other_sequences).windows
        growing = growing_inputs(
            _sum_of([window.growing for window in windows]),
            sum([window.length_ns for window in windows]),
            self._evaluated_names,
            None if in_evaluations else (self._other_samples, self._samples),
        )
        return growing[:_MOST_MODULES]

    def sampled(self, evaluates: bool, other_samples: int = 0) -> None:
        """Note whether an evaluation runs now, or how many samples show other code that does not train, this one too.

        For the sampler's thread. At most one of them is given.
        """
        self._samples += 1
        self._other_samples += other_samples
        if self._lock.acquire(blocking=False):
            try:
                if self._step is None and not self._is_over:
                    self._watch(evaluates, other_samples > 0)
            finally:
                self._lock.release()

    def _watch(self, evaluates: bool, runs_otherwise: bool) -> None:
        """Begin or end windows, one at a time: what ends comes first."""
        is_done = self._evaluations.is_done
        states: dict[WatchedParts[Any, Any], bool] = {
            self._evaluations: evaluates and not is_done,
            self._evaluated_sequences: evaluates and is_done,
            self._other_sequences: runs_otherwise,
        }
        for parts, runs in sorted(states.items(), key=itemgetter(1)):
            parts.sampled(runs)

    def optimizer_stepped(self, innermost: FrameType | None) -> None:
        """Count an update: a step that is watched ends, or begins."""
        self._end_evaluation()
        self._updates += 1
        self._name_evaluated(innermost)
        step = self._step
        if step is not None:
            is_complete = not step.is_over
            duration_ns = step.end()
            self._end_step()
            if is_complete:
                variables = visible_values(innermost)
                self._results.append(_results(step.work, duration_ns, partial(_names, variables=variables)))
                self.layers, self.dropouts = step.layers, step.dropouts
                self._trained = fastest(self._trained, step.sizes.modules)
                self.products = _products(step, duration_ns, variables, self._matrices)
                self._matrices = step.zeros.references
                self.separate = _separate(step, duration_ns, variables)
        if self._begin_count < len(_WATCHED_AFTER) and self._updates >= _WATCHED_AFTER[self._begin_count]:
            self._begin_step()

    def remove(self) -> None:
        """Restore `torch.nn.Module.__call__`; a patch that the user's code put over ours stays."""
        self._is_over = True  # the sampler's thread may be late, behind a driver that hangs
        has_lock = self._lock.acquire(timeout=_MAX_BEGIN_S)
        self._end_step()
        self._stop_parts()
        if has_lock:
            self._lock.release()

    def _end_evaluation(self) -> None:
        """End the part that is watched; the sampler's thread does it if it has the lock."""
        for parts in self._parts:
            parts.updated()
            if parts.is_watching and self._lock.acquire(blocking=False):
                parts.stop()
                self._lock.release()

    @property
    def _parts(self) -> tuple[WatchedParts[Any, Any], ...]:
        return self._evaluations, self._evaluated_sequences, self._other_sequences

    def _stop_parts(self) -> None:
        for parts in self._parts:
            parts.stop()

    def _begin_step(self) -> None:
        """Watch the step that begins; if the sampler's thread has the lock, try again at the next update."""
        if not self._lock.acquire(blocking=False):  # a process that was forked meanwhile can never acquire it
            return
        try:
            self._stop_parts()
            self._begin_count += 1
            step = WatchedStep()
            self._restore = watch_calls(step, self._thread, self._guard)
            self._step = step if self._restore is not None else None
        finally:
            self._lock.release()

    def _end_step(self) -> None:
        if self._restore is not None:
            self._restore()
        self._step = self._restore = None

    def _name_evaluated(self, innermost: FrameType | None) -> None:
        """Name the modules of windows that have ended: here, the variables of the training are visible."""
        windows, self._evaluations.windows = self._evaluations.windows, []
        self._windows += windows
        sequences = [*self._evaluated_sequences.windows, *self._other_sequences.windows]
        unnamed, self._named_sequences = sequences[self._named_sequences :], len(sequences)
        references = [work.module for window in windows for work in window.work.values()]
        references += [calls.module for window in windows for calls in window.modules.values()]
        references += [calls.module for window in unnamed for calls in window.growing.values()]
        modules = [module for reference in references if (module := reference()) is not None]
        if modules:
            self._evaluated_names.update(_names(modules, visible_values(innermost)))


def _by_time(repeated: Iterable[RepeatedInputs]) -> tuple[RepeatedInputs, ...]:
    return tuple(sorted(repeated, key=_step_frac, reverse=True))


def _step_frac(repeated: RepeatedInputs) -> float:
    return repeated.step_frac or 0.0


def _sum_of(parts: list[dict[K, C]]) -> dict[K, C]:
    """Add up the calls of each module in these parts."""
    total: dict[K, C] = {}
    for part in parts:
        for key, calls in part.items():
            total[key] = calls if key not in total else total[key] + calls
    return total


def _results(
    repeated_work: Mapping[Key, RepeatedWork], duration_ns: int, names_of: Callable[[list[Any]], dict[int, str]]
) -> _Results:
    results: _Results = {}
    works = sorted(repeated_work.values(), key=lambda work: work.saved_ns, reverse=True)[:_MOST_MODULES]
    modules = [(work, module) for work in works if (module := work.module()) is not None]
    names = names_of([module for _, module in modules])
    for work, module in modules:
        repeated = RepeatedInputs(
            kind=type(module).__name__,
            name=names.get(id(module)),
            location=work.location,
            calls=work.calls,
            step_frac=work.saved_ns / max(1, duration_ns),
            distinct_frac=sum(work.distinct) / len(work.distinct) if work.distinct else None,
            with_gradient=work.with_gradient,
        )
        results[repeated.kind, repeated.name, repeated.location, bool(work.distinct)] = repeated
    return results


def _products(
    step: WatchedStep, duration_ns: int, variables: NamedValues, earlier: list[weakref.ref[Any]]
) -> list[tuple[SparseProduct, SparseOperand]]:
    """Return the products of a step, and the matrices in them; `earlier` are those of the step before."""
    works = [(work, work.module()) for work in step.zeros.products.values()]
    names = _names([module for _, module in works if module is not None], variables)
    products = []
    for work, module in works:
        matrix = work.matrix.reference()
        operand = SparseOperand(
            kind=type(module).__name__,
            name=names.get(id(module)),
            matrix=_name_of(matrix, variables),
            location=work.location,
            rows=work.matrix.rows,
            columns=work.matrix.columns,
            zero_frac=work.matrix.zero_frac,
            calls=work.calls,
            step_frac=work.total_ns / max(1, duration_ns),
            constant=matrix is not None and any([reference() is matrix for reference in earlier]),
        )
        products.append((work.product, operand))
    return products


def _separate(
    step: WatchedStep, duration_ns: int, variables: NamedValues
) -> list[tuple[Counter[SeparateLayer], SeparateModules]]:
    """Return groups of modules that one module could compute, and the layers of each module."""
    groups = step.groups.largest()[:_MOST_MODULES]
    names = _names([member for group in groups for member in group.members[:1]], variables)
    results = []
    for group in groups:
        members = group.members
        modules = SeparateModules(
            kind=type(members[0]).__name__,
            first=names.get(id(members[0])),
            location=group.location,
            modules=len(members),
            calls=group.calls,
            tensors=len(parameters_in([inner for member in members for inner in submodules_in(member)])),
            inputs=group.source,
            step_frac=group.total_ns / max(1, duration_ns),
        )
        results.append((step.groups.layers_of(group), modules))
    return results


def _name_of(tensor: Any, variables: NamedValues) -> str | None:
    names = [] if tensor is None else [name for name, value in variables if value is tensor]
    return names[0] if names else None


def _names(modules: list[Any], variables: NamedValues) -> dict[int, str]:
    """Return expressions of the user's for these modules, by id: those with the fewest parts."""
    from torch import nn

    missing = {id(module) for module in modules}
    names: dict[int, str] = {}
    visited: set[int] = set()
    parts: NamedValues = [(name, value) for name, value in variables if issubclass(type(value), nn.Module)]
    for name, module in parts:  # the list grows meanwhile
        if id(module) in visited or len(visited) > MAX_SUBMODULES or not missing:
            continue
        visited.add(id(module))
        if id(module) in missing:
            missing.discard(id(module))
            names[id(module)] = name
        parts += children_of(name, module)
    return names
