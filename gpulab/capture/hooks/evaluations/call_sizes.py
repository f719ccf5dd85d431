"""The sizes of what a module gets per call, and how long a call takes: in training steps, and in evaluations.

The first two dimensions of the first tensor count: one of them is the batch. In modules with batch_first=False, it may
be the second one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.models.module_tree import first_parameter, submodules_in
from gpulab.run import EvaluatedModule

Sizes = tuple[float, float]

_MOST_MODULES = 10_000
_MOST_ARGUMENTS = 16
_MIN_FRAC = 0.01  # of evaluations; a window that begins within a call sees some of its parts as outermost


@dataclass
class CalledModule:
    """The calls of one module."""

    module: weakref.ref[Any]
    calls: int = 0
    first: int = 0  # sum of the sizes of the first dimension
    second: int = 0
    total_ns: int = 0

    @property
    def mean_ns(self) -> float:
        """Time per call."""
        return self.total_ns / max(1, self.calls)

    @property
    def sizes(self) -> Sizes:
        """The mean of both sizes per call."""
        return self.first / max(1, self.calls), self.second / max(1, self.calls)

    def __add__(self, other: CalledModule) -> CalledModule:
        """Add the calls of the same module in another part of the run."""
        return CalledModule(
            self.module,
            self.calls + other.calls,
            self.first + other.first,
            self.second + other.second,
            self.total_ns + other.total_ns,
        )


@dataclass(frozen=True)
class SizedCall:
    """A call of a module that is running."""

    module: Any
    sizes: tuple[int, int] | None  # None if its calls are not counted
    start_ns: int
    overhead_ns: int  # of watching, until then


class CallSizes:
    """Counts the calls of modules with parameters; `outermost`: only those that no other one makes."""

    def __init__(self, *, outermost: bool) -> None:
        self.modules: dict[int, CalledModule] = {}
        self.overhead_ns = 0  # what watching the calls took
        self._outermost = outermost
        self._depth = 0
        self._is_counted: dict[int, tuple[weakref.ref[Any], bool]] = {}

    def sizes_of(self, module: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> tuple[int, int] | None:
        """Return the sizes of what a call gets; None if its calls are not counted."""
        is_inner = self._outermost and self._depth > 0
        return None if is_inner or not self._counts(module) else _sizes([*arguments, *dict.values(options)])

    def start(self, module: Any, sizes: tuple[int, int] | None, began_ns: int) -> SizedCall:
        """Note that a call begins now; `began_ns`: when the work for it began."""
        self._depth += 1
        now_ns = time.perf_counter_ns()
        self.overhead_ns += now_ns - began_ns
        return SizedCall(module, sizes, now_ns, self.overhead_ns)

    def leave(self, call: SizedCall, ended_ns: int) -> int:
        """Note the end of a call; return its duration, without what watching took meanwhile."""
        self._depth -= 1
        duration_ns = ended_ns - call.start_ns - (self.overhead_ns - call.overhead_ns)
        if call.sizes is None:
            return duration_ns
        counts = self.modules.get(id(call.module))
        if counts is None or counts.module() is not call.module:
            counts = self.modules[id(call.module)] = CalledModule(weakref.ref(call.module))
        counts.calls += 1
        counts.first += call.sizes[0]
        counts.second += call.sizes[1]
        counts.total_ns += duration_ns
        return duration_ns

    def _counts(self, module: Any) -> bool:
        """Whether a module has parameters."""
        reference, counts = self._is_counted.get(id(module), (None, False))
        if reference is not None and reference() is module:
            return counts
        counts = first_parameter(module) is not None
        if len(self._is_counted) < _MOST_MODULES:
            self._is_counted[id(module)] = weakref.ref(module), counts
        return counts


def fastest(earlier: Mapping[int, CalledModule], latest: Mapping[int, CalledModule]) -> dict[int, CalledModule]:
    """Return the calls of each module in the step in which an element took less time; a step may not call all."""
    slower = {key for key, calls in latest.items() if key in earlier and _element_ns(earlier[key]) < _element_ns(calls)}
    return {**earlier, **{key: calls for key, calls in latest.items() if key not in slower}}


def _element_ns(calls: CalledModule) -> float:
    first, second = calls.sizes
    return calls.mean_ns / max(1.0, first * second)


def evaluated_modules(
    calls: Mapping[int, CalledModule], trained: Mapping[int, CalledModule], length_ns: int, names: Mapping[int, str]
) -> list[EvaluatedModule]:
    """Describe modules that evaluations of this length and training steps call, those with the most time first."""
    modules = []
    for key, in_evaluations in calls.items():
        module, training = in_evaluations.module(), trained.get(key)
        if module is None or training is None or training.module() is not module:
            continue
        evaluated = EvaluatedModule(
            kind=type(module).__name__,
            name=names.get(key),
            sizes=in_evaluations.sizes,
            call_ns=in_evaluations.mean_ns,
            training_sizes=training.sizes,
            training_call_ns=training.mean_ns,
            has_time_first=has_time_first(module),
            evaluation_frac=min(1.0, in_evaluations.total_ns / max(1, length_ns)),
        )
        if evaluated.evaluation_frac >= _MIN_FRAC:
            modules.append(evaluated)
    return sorted(modules, key=lambda each: each.evaluation_frac, reverse=True)


def has_time_first(module: Any) -> bool:
    """Whether a layer in a module has the option batch_first, and it is off, as by default."""
    options = [object.__getattribute__(inner, "__dict__").get("batch_first") for inner in submodules_in(module)]
    return any([option is False for option in options])


def _sizes(arguments: list[Any]) -> tuple[int, int] | None:
    import torch

    for value in arguments[:_MOST_ARGUMENTS]:
        if is_tensor(type(value)) and not torch.Tensor.is_nested.__get__(value):  # type: ignore[attr-defined]
            shape = torch.Tensor.size(value)
            return (int(shape[0]), int(shape[1])) if len(shape) > 1 else None
    return None
