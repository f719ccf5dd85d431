"""Which layers a training step calls, and which modules compute outputs again: for the same tensors, or equal rows.

During a few single steps, a wrapper of `torch.nn.Module.__call__` notes what each module gets (see `WatchedStep`).
Hooks would switch off fast paths of PyTorch. torch.compile must not see the wrapper, or it would compile again without
it: a step ends as soon as anything is compiled, and programs with compiled code are left alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

from gpulab.capture.hooks.models.dropout_calls import TimedDropout
from gpulab.capture.hooks.models.layer_calls import TimedLayer
from gpulab.capture.hooks.models.module_tree import MAX_SUBMODULES, children_of, parameters_in, submodules_in
from gpulab.capture.hooks.models.separate_modules import SeparateLayer
from gpulab.capture.hooks.models.watched_step import WatchedStep
from gpulab.capture.hooks.models.zero_matrices import SparseProduct
from gpulab.capture.hooks.user_variables import NamedValues, visible_values
from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.uncompiled import has_compiled
from gpulab.run import RepeatedInputs, SeparateModules, SparseOperand

REPEATED = "layers, and modules that compute something again"
_WATCHED_AFTER = (2, 4)  # updates: the first steps warm up, and the profiler starts later
_MOST_MODULES = 20  # with the most repeated work


class ModuleWatch:
    """Watches a few single steps of the thread that created it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._thread = threading.get_ident()
        self._updates = 0
        self._step: WatchedStep | None = None
        self._restore: Callable[[], None] | None = None
        self._results: list[dict[tuple[Any, ...], RepeatedInputs]] = []  # of each watched step
        self.layers: Counter[TimedLayer] = Counter()  # of the latest watched step
        self.dropouts: Counter[TimedDropout] = Counter()  # of the same step
        self.products: list[tuple[SparseProduct, SparseOperand]] = []  # of the same step, not timed yet
        self.separate: list[tuple[Counter[SeparateLayer], SeparateModules]] = []  # of the same step, not timed yet
        self._matrices: list[weakref.ref[Any]] = []  # of mostly zeros, in the same step

    @property
    def repeated(self) -> tuple[RepeatedInputs, ...]:
        """What modules computed again in every watched step, the most expensive first; the smaller figures."""
        if len(self._results) < len(_WATCHED_AFTER):
            return ()
        in_all = set.intersection(*[set(results) for results in self._results])
        least = [min([results[key] for results in self._results], key=_step_frac) for key in in_all]
        return tuple(sorted(least, key=_step_frac, reverse=True))

    def optimizer_stepped(self, innermost: FrameType | None) -> None:
        """Count an update: a step that is watched ends, or begins."""
        self._updates += 1
        step = self._step
        if step is not None:
            is_complete = not step.is_over
            duration_ns = step.end()
            self.remove()
            if is_complete:
                variables = visible_values(innermost)
                self._results.append(_results(step, duration_ns, variables))
                self.layers, self.dropouts = step.layers, step.dropouts
                self.products = _products(step, duration_ns, variables, self._matrices)
                self._matrices = step.zeros.references
                self.separate = _separate(step, duration_ns, variables)
        if self._updates in _WATCHED_AFTER and (compilations := _first_compilation()) is not None:
            self._begin(compilations)

    def remove(self) -> None:
        """Restore `torch.nn.Module.__call__`; a patch that the user's code put over ours stays."""
        if self._restore is not None:
            self._restore()
        self._step = self._restore = None

    def _begin(self, compilations: Any) -> None:
        from torch import nn

        kind: Any = nn.Module
        original = kind.__call__
        step, process = WatchedStep(), os.getpid()

        def watched_call(module: Any, /, *arguments: Any, **options: Any) -> Any:
            __tracebackhide__ = True  # an error in the user's model should show only the user's lines
            # A forked worker has the same thread, and would be watched for as long as it lives.
            if step.is_over or threading.get_ident() != self._thread or os.getpid() != process:
                return original(module, *arguments, **options)
            call = self._guard.call(REPEATED, step.before, None, module, arguments, options)
            try:
                output = original(module, *arguments, **options)
            except BaseException:
                step.end()
                raise
            if call is not None:
                self._guard.call(REPEATED, step.after, None, call, output)
            return output

        def unpatch(*_: Any) -> None:
            step.end()
            if kind.__dict__.get("__call__") is watched_call:
                kind.__call__ = original

        def restore() -> None:
            unpatch()
            with contextlib.suppress(ValueError):  # torch.compiler.reset() has removed it
                compilations.remove_start_callback(unpatch)

        self._step, self._restore = step, restore
        compilations.register_start_callback(unpatch)
        kind.__call__ = watched_call


def _step_frac(repeated: RepeatedInputs) -> float:
    return repeated.step_frac or 0.0


def _first_compilation() -> Any:
    """Return what calls back when torch.compile begins to compile; None if it has compiled anything.

    None, too, if it is not imported, which happens with PyTorch's optimizers: importing it takes a second.
    """
    dynamo = sys.modules.get("torch._dynamo")
    return None if dynamo is None or has_compiled() else dynamo.callback.callback_handler


def _results(step: WatchedStep, duration_ns: int, variables: NamedValues) -> dict[tuple[Any, ...], RepeatedInputs]:
    results: dict[tuple[Any, ...], RepeatedInputs] = {}
    works = sorted(step.work.values(), key=lambda work: work.saved_ns, reverse=True)[:_MOST_MODULES]
    modules = [(work, module) for work in works if (module := work.module()) is not None]
    names = _names([module for _, module in modules], variables)
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
