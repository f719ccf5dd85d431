"""Gradients of an optimizer's parameters that backward passes for another one compute, and that are deleted unused.

In a GAN, the loss of the discriminator also reaches the generator unless its output is detached, and the loss of the
generator runs through the discriminator, where it also computes gradients of the weights. At each update, the
gradients of all optimizers are compared: which ones are new, and whether an optimizer still has them when it steps.
Then hooks on a few parameters note, for some iterations, when a backward pass reaches them. No operator is called.
"""

from __future__ import annotations

import sys
import time
import weakref
from dataclasses import dataclass, field
from statistics import median
from types import FrameType
from typing import Any, NamedTuple

from gpulab.capture.hooks.batch_contents import is_tensor
from gpulab.capture.hooks.models.module_tree import all_parameters_in, submodules_in, swaps_tensors
from gpulab.capture.hooks.models.tensor_memory import version_of
from gpulab.capture.hooks.user_variables import find_variable_name, optimizer_parameters, trained_module
from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.uncompiled import has_compiled
from gpulab.run import DiscardedGradients
from gpulab.sensors.host.frames import user_line

DISCARDED = "gradients that are deleted"
_MOST_OPTIMIZERS = 4
_COMPARED = 4  # parameters of an optimizer at each update
_HOOKED = 200  # parameters of an optimizer in a measured iteration
_MIN_DISCARDED = 2  # times, before anything is measured
_MOST_ARRIVALS = 50_000  # of gradients in a measured iteration; a longer one is given up
_MOST_STEPS = 1_000  # of optimizers in a measured iteration; a longer one is given up, too
_CYCLES = 3  # iterations that are measured

Gradient = tuple[weakref.ref[Any], int]  # and its version


class _Arrival(NamedTuple):
    """A backward pass has computed the gradient of a parameter."""

    backward: int  # number of the backward pass
    is_other: bool  # the parameter is not the stepping optimizer's
    at_ns: int
    location: str | None


@dataclass
class _Watched:
    """An optimizer and what was seen of the gradients of its parameters."""

    optimizer: weakref.ref[Any]
    parameters: list[weakref.ref[Any]] = field(default_factory=list)
    gradients: list[Gradient | None] = field(default_factory=list)
    added: dict[int, list[Gradient | None]] = field(default_factory=dict)  # by the optimizer that stepped
    has_begun: bool = False

    def begin(self) -> None:
        """Choose the parameters whose gradients are compared; does nothing the second time."""
        if self.has_begun:
            return
        self.has_begun = True
        trained = _trained(self.optimizer())
        last = len(trained) - 1
        positions = sorted({round(last * part / (_COMPARED - 1)) for part in range(_COMPARED)}) if trained else []
        self.parameters = [weakref.ref(trained[position]) for position in positions]
        self.gradients = [None] * len(positions)


class _Part(NamedTuple):
    """The part of a backward pass that computes gradients of the other optimizer's parameters."""

    duration_ns: int
    location: str | None  # that calls backward()


@dataclass
class _Parts:
    """Such parts of all backward passes, either before the gradients that are used or behind them."""

    fractions: list[float] = field(default_factory=list)  # of each measured iteration
    passes: int = 0  # in the latest one
    location: str | None = None

    def add(self, parts: list[_Part], iteration_ns: int) -> None:
        """Add the parts in an iteration."""
        self.fractions.append(sum([part.duration_ns for part in parts]) / max(1, iteration_ns))
        self.passes = len(parts)
        self.location = self.location or (parts[0].location if parts else None)


@dataclass
class _Pair:
    """What backward passes before the steps of one optimizer do to the gradients of another one."""

    discarded: int = 0
    is_ruled_out: bool = False  # the gradients are used, or an iteration is too long to be measured
    behind: _Parts = field(default_factory=_Parts)
    through: _Parts = field(default_factory=_Parts)
    model: str | None = None
    owner: str | None = None
    optimizer: str | None = None


@dataclass
class _Cycle:
    """An iteration that is measured: between two steps of the other optimizer that follow one of the stepping one."""

    stepping: int
    other: int
    handles: list[Any]
    arrivals: list[_Arrival] = field(default_factory=list)  # before steps of the stepping optimizer
    latest: list[_Arrival] = field(default_factory=list)  # since the latest step of any optimizer
    steps: int = 0  # of all optimizers
    start_ns: int = field(default_factory=time.perf_counter_ns)


class GradientWatch:
    """Compares the gradients of all optimizers whenever one of them steps."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._optimizers: dict[int, _Watched] = {}
        self._pairs: dict[tuple[int, int], _Pair] = {}  # of the optimizer that steps and the other one
        self._cycle: _Cycle | None = None
        self._stepped_since: dict[int, set[int]] = {}  # optimizers that stepped since the latest step of each one

    @property
    def discarded(self) -> tuple[DiscardedGradients, ...]:
        """The pairs of which each measured iteration discarded gradients, the most expensive first."""
        entries = [
            DiscardedGradients(
                model=pair.model,
                owner=pair.owner,
                optimizer=pair.optimizer,
                location=parts.location,
                passes=parts.passes,
                step_frac=median(parts.fractions),
                passed_through=parts is pair.through,
            )
            for pair in list(self._pairs.values())  # the sampler's thread asks, too
            for parts in (pair.behind, pair.through)
            if parts.fractions and min(parts.fractions) > 0 and not pair.is_ruled_out
        ]
        return tuple(sorted(entries, key=lambda gradients: -(gradients.step_frac or 0.0)))

    def optimizer_stepped(self, number: int, optimizer: Any, innermost: FrameType | None) -> None:
        """Compare gradients after a step of the optimizer with this number."""
        import torch

        if len(self._optimizers) > _MOST_OPTIMIZERS or swaps_tensors():
            self._remove_hooks()
            return
        with torch._C.DisableTorchFunction():
            stepped = self._optimizers.get(number)
            if stepped is None:
                stepped = self._optimizers.setdefault(number, _Watched(weakref.ref(optimizer)))
            if len(self._optimizers) == 1:
                return  # without a reference to any parameter: the program may swap its tensors
            for watched in self._optimizers.values():
                watched.begin()
            since = self._stepped_since.get(number, set())
            if self._cycle is not None:
                self._continue_cycle(self._cycle, number, since, innermost)
            self._compare(number, stepped)
            for other, watched in self._optimizers.items():
                if other != number:
                    self._note_new_gradients(number, watched)
            stepped.gradients, stepped.added = _gradients(stepped.parameters), {}
            if self._cycle is None:
                self._begin_cycle(number, since)
            for others in self._stepped_since.values():
                others.add(number)
            self._stepped_since[number] = set()

    def remove(self) -> None:
        """Remove all hooks and references."""
        self._remove_hooks()
        self._optimizers.clear()

    def _remove_hooks(self) -> None:
        if self._cycle is not None:
            for handle in self._cycle.handles:
                handle.remove()
        self._cycle = None

    def _compare(self, number: int, stepped: _Watched) -> None:
        """Find out whether gradients that were added before the steps of others have been used by this step."""
        current = _gradients(stepped.parameters)
        for other, added in stepped.added.items():
            pair = self._pairs.setdefault((other, number), _Pair())
            if any([new is not None and _is_same(new, now) for new, now in zip(added, current, strict=True)]):
                pair.is_ruled_out = True
            else:
                pair.discarded += 1

    def _note_new_gradients(self, number: int, watched: _Watched) -> None:
        current = _gradients(watched.parameters)
        is_new = [
            now is not None and (before is None or not _is_same(before, now) or before[1] != now[1])
            for before, now in zip(watched.gradients, current, strict=True)
        ]
        if any(is_new):
            watched.added[number] = [now if new else None for now, new in zip(current, is_new, strict=True)]
        watched.gradients = current

    def _begin_cycle(self, number: int, since: set[int]) -> None:
        """Measure the iteration that begins if others discard gradients of the optimizer that has just stepped.

        `since`: the optimizers that stepped after the previous step of this one.
        """
        for (stepping, other), pair in self._pairs.items():
            is_due = pair.discarded >= _MIN_DISCARDED and len(pair.behind.fractions) < _CYCLES
            if other == number and stepping in since and is_due and not pair.is_ruled_out and not has_compiled():
                self._cycle = cycle = _Cycle(stepping, other, [])
                for key, is_other in ((stepping, False), (other, True)):
                    self._add_hooks(cycle, self._optimizers[key].optimizer(), is_other)
                return

    def _add_hooks(self, cycle: _Cycle, optimizer: Any, is_other: bool) -> None:
        import torch

        def arrived(_: Any) -> None:  # on a GPU, in a thread of autograd
            if len(cycle.latest) + len(cycle.arrivals) < _MOST_ARRIVALS:
                self._guard.call(DISCARDED, note, None)

        def note() -> None:
            backward, at_ns = torch._C._current_graph_task_id(), time.perf_counter_ns()
            is_first = not cycle.latest or cycle.latest[-1].backward != backward
            cycle.latest.append(_Arrival(backward, is_other, at_ns, user_line(sys._getframe(1)) if is_first else None))

        kind: Any = torch.Tensor
        for parameter in _trained(optimizer)[:_HOOKED]:
            cycle.handles.append(kind.register_post_accumulate_grad_hook(parameter, arrived))

    def _continue_cycle(self, cycle: _Cycle, number: int, since: set[int], innermost: FrameType | None) -> None:
        """Assign the latest backward passes to the optimizer that has stepped; its own step ends an iteration."""
        cycle.steps += 1
        is_too_long = len(cycle.latest) + len(cycle.arrivals) >= _MOST_ARRIVALS or cycle.steps >= _MOST_STEPS
        if number == cycle.stepping:
            cycle.arrivals += cycle.latest
        cycle.latest.clear()
        if is_too_long:  # the other optimizer may never step again
            self._remove_hooks()
            self._pairs[cycle.stepping, cycle.other].is_ruled_out = True
        elif number == cycle.other and cycle.stepping in since:
            self._end_cycle(cycle, innermost)

    def _end_cycle(self, cycle: _Cycle, innermost: FrameType | None) -> None:
        duration_ns = time.perf_counter_ns() - cycle.start_ns
        self._remove_hooks()
        pair = self._pairs[cycle.stepping, cycle.other]
        behind, through = _parts_of(cycle.arrivals)
        pair.behind.add(behind, duration_ns)
        pair.through.add(through, duration_ns)
        if (behind or through) and pair.model is None and pair.optimizer is None:
            other, stepping = [self._optimizers[key].optimizer() for key in (cycle.other, cycle.stepping)]
            variable = trained_module(innermost, other) if other is not None else None
            pair.model = variable.name if variable and (behind or _trains_all(other, variable.value)) else None
            pair.owner = find_variable_name(innermost, lambda value: value is other)
            pair.optimizer = find_variable_name(innermost, lambda value: value is stepping)


def _parts_of(arrivals: list[_Arrival]) -> tuple[list[_Part], list[_Part]]:
    """Return the parts of backward passes behind the gradients of the stepping optimizer, and those before them.

    The second part begins with the first gradient of the other optimizer's parameters.
    """
    behind, through = [], []
    for number in dict.fromkeys([arrival.backward for arrival in arrivals]):
        of_pass = [arrival for arrival in arrivals if arrival.backward == number]
        useful = [arrival.at_ns for arrival in of_pass if not arrival.is_other]
        others = [arrival.at_ns for arrival in of_pass if arrival.is_other]
        if useful and others and min(others) > max(useful):
            behind.append(_Part(max(others) - max(useful), of_pass[0].location))
        elif useful and others and max(others) < min(useful):
            through.append(_Part(max(others) - min(others), of_pass[0].location))
    return behind, through


def _trains_all(optimizer: Any, module: Any) -> bool:
    """Whether the parameters that an optimizer trains are those of a module, of which none is frozen on purpose."""
    in_module = {id(parameter) for parameter in all_parameters_in(submodules_in(module))}
    return {id(parameter) for parameter in _trained(optimizer)} == in_module


def _trained(optimizer: Any) -> list[Any]:
    """Return the parameters that backward passes reach; none if the optimizer no longer exists."""
    import torch

    kind: Any = torch.Tensor
    parameters = [] if optimizer is None else optimizer_parameters(optimizer)
    return [
        parameter
        for parameter in parameters
        if is_tensor(type(parameter)) and kind.requires_grad.__get__(parameter) and kind.is_leaf.__get__(parameter)
    ]


def _gradients(parameters: list[weakref.ref[Any]]) -> list[Gradient | None]:
    """Return a reference to the gradient of each parameter, which does not keep it alive, and its version."""
    import torch

    kind: Any = torch.Tensor
    gradients: list[Gradient | None] = []
    for reference in parameters:
        parameter = reference()
        gradient = None if parameter is None else kind.grad.__get__(parameter)
        gradients.append(None if gradient is None else (weakref.ref(gradient), version_of(gradient)))
    return gradients


def _is_same(first: Gradient, second: Gradient | None) -> bool:
    return second is not None and first[0]() is second[0]() is not None
