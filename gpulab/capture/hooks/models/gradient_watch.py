"""Gradients of an optimizer's parameters that backward passes for another one compute, and that are deleted unused.

In a GAN, the loss of the discriminator also reaches the generator unless its output is detached. At each update, the
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
from gpulab.capture.hooks.models.module_tree import swaps_tensors
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


@dataclass
class _Pair:
    """What backward passes before the steps of one optimizer do to the gradients of another one."""

    discarded: int = 0
    is_ruled_out: bool = False  # the gradients are used, or an iteration is too long to be measured
    fractions: list[float] = field(default_factory=list)  # of each measured iteration
    passes: int = 0  # in the latest one
    location: str | None = None
    model: str | None = None
    optimizer: str | None = None


@dataclass
class _Cycle:
    """An iteration that is measured: from a step of the other optimizer to its next one."""

    stepping: int
    other: int
    handles: list[Any]
    arrivals: list[_Arrival] = field(default_factory=list)  # before steps of the stepping optimizer
    latest: list[_Arrival] = field(default_factory=list)  # since the latest step of any optimizer
    start_ns: int = field(default_factory=time.perf_counter_ns)


class GradientWatch:
    """Compares the gradients of all optimizers whenever one of them steps."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._optimizers: dict[int, _Watched] = {}
        self._pairs: dict[tuple[int, int], _Pair] = {}  # of the optimizer that steps and the other one
        self._cycle: _Cycle | None = None

    @property
    def discarded(self) -> tuple[DiscardedGradients, ...]:
        """The pairs of which each measured iteration discarded gradients, the most expensive first."""
        entries = [
            DiscardedGradients(
                model=pair.model,
                optimizer=pair.optimizer,
                location=pair.location,
                passes=pair.passes,
                step_frac=median(pair.fractions),
            )
            for pair in list(self._pairs.values())  # the sampler's thread asks, too
            if pair.fractions and min(pair.fractions) > 0 and not pair.is_ruled_out
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
            if self._cycle is not None:
                self._continue_cycle(self._cycle, number, innermost)
            self._compare(number, stepped)
            for other, watched in self._optimizers.items():
                if other != number:
                    self._note_new_gradients(number, watched)
            stepped.gradients, stepped.added = _gradients(stepped.parameters), {}
            if self._cycle is None:
                self._begin_cycle(number)

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

    def _begin_cycle(self, number: int) -> None:
        """Measure the iteration that begins if others discard gradients of the optimizer that has just stepped."""
        for (stepping, other), pair in self._pairs.items():
            is_due = pair.discarded >= _MIN_DISCARDED and len(pair.fractions) < _CYCLES
            if other == number and is_due and not pair.is_ruled_out and not has_compiled():
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

    def _continue_cycle(self, cycle: _Cycle, number: int, innermost: FrameType | None) -> None:
        """Assign the latest backward passes to the optimizer that has stepped; its own step ends an iteration."""
        is_too_long = len(cycle.latest) + len(cycle.arrivals) >= _MOST_ARRIVALS
        if number == cycle.stepping:
            cycle.arrivals += cycle.latest
        cycle.latest.clear()
        if is_too_long:  # the other optimizer may never step again
            self._remove_hooks()
            self._pairs[cycle.stepping, cycle.other].is_ruled_out = True
        elif number == cycle.other:
            self._end_cycle(cycle, innermost)

    def _end_cycle(self, cycle: _Cycle, innermost: FrameType | None) -> None:
        duration_ns = time.perf_counter_ns() - cycle.start_ns
        self._remove_hooks()
        pair = self._pairs[cycle.stepping, cycle.other]
        tails = _tails(cycle.arrivals)
        pair.fractions.append(sum([duration for duration, _ in tails]) / max(1, duration_ns))
        pair.passes = len(tails)
        if tails and pair.location is None:
            pair.location = tails[0][1]
            other, stepping = [self._optimizers[key].optimizer() for key in (cycle.other, cycle.stepping)]
            variable = trained_module(innermost, other) if other is not None else None
            pair.model = variable.name if variable else None
            pair.optimizer = find_variable_name(innermost, lambda value: value is stepping)


def _tails(arrivals: list[_Arrival]) -> list[tuple[int, str | None]]:
    """Return how long backward passes went on after the gradients of the stepping optimizer, and the calling lines.

    A pass that reaches the other optimizer's parameters first, such as that of a generator's loss through the
    discriminator, has no such part.
    """
    tails = []
    for number in dict.fromkeys([arrival.backward for arrival in arrivals]):
        of_pass = [arrival for arrival in arrivals if arrival.backward == number]
        useful = [arrival.at_ns for arrival in of_pass if not arrival.is_other]
        others = [arrival.at_ns for arrival in of_pass if arrival.is_other]
        if useful and others and min(others) > max(useful):
            tails.append((max(others) - max(useful), of_pass[0].location))
    return tails


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
