"""What the modules of evaluations, and of other code that does not train, get: in a few short windows.

The sampler's thread sees that such code runs, and begins and ends the windows. A window ends when the thread sees the
code for the last time, so that no training is in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from gpulab.capture.hooks.evaluations.call_sizes import CalledModule
from gpulab.capture.hooks.evaluations.growing_inputs import GrowingCalls
from gpulab.capture.hooks.evaluations.sequence_calls import SequenceCalls
from gpulab.capture.hooks.models.watched_calls import WatchedCalls, watch_calls
from gpulab.capture.hooks.models.watched_step import Key, RepeatedWork, WatchedStep
from gpulab.capture.protection.guard import Guard

_MOST_WINDOWS, _MOST_ATTEMPTS = 3, 8
_MIN_WINDOW_NS, _MAX_WINDOW_NS = 150_000_000, 2_000_000_000
_MAX_SEQUENCE_NS = 5_000_000_000  # in which to note outermost calls: a few are enough, but some take long
_MAX_OVERHEAD_NS = 100_000_000  # in a window; evaluations with many short calls would take longer than they do

K = TypeVar("K")
T = TypeVar("T")


class _Watched(WatchedCalls, Protocol):
    """The calls of a window."""

    @property
    def age_ns(self) -> int: ...

    @property
    def overhead_ns(self) -> int: ...


Calls = TypeVar("Calls", bound=_Watched)
Part = TypeVar("Part")


@dataclass(frozen=True)
class EvaluatedPart:
    """A part of an evaluation whose calls of modules were noted."""

    work: dict[Key, RepeatedWork]
    modules: dict[int, CalledModule]
    length_ns: int  # without what watching took


@dataclass(frozen=True)
class SequencePart:
    """A part of an evaluation, or of other code, whose outermost calls were noted."""

    growing: dict[int, GrowingCalls]
    length_ns: int


class WatchedParts(Generic[Calls, Part]):
    """Notes what a thread calls in code of one kind. Its callers are two threads, with a lock but for `updated`.

    new: creates what notes the calls of a window. part: describes them. max_ns: length of a window.
    """

    def __init__(
        self, thread: int, guard: Guard, new: Callable[[], Calls], part: Callable[[Calls, int], Part], max_ns: int
    ) -> None:
        self._thread = thread
        self._guard = guard
        self._new = new
        self._part = part
        self._max_ns = max_ns
        self._attempts = self._finished = 0
        self._calls: Calls | None = None
        self._window: Part | None = None  # until the latest sample that shows the code
        self._restore: Callable[[], None] | None = None
        self.windows: list[Part] = []

    @property
    def is_watching(self) -> bool:
        """Whether the calls of modules go through a wrapper."""
        return self._calls is not None

    @property
    def is_done(self) -> bool:
        """Whether no other window will begin."""
        return self._calls is None and (self._attempts >= _MOST_ATTEMPTS or self._finished >= _MOST_WINDOWS)

    def sampled(self, runs: bool) -> None:
        """Note whether such code runs now: begin a window, or end one."""
        calls = self._calls
        if calls is None:
            if runs and not self.is_done:
                self._begin()
            return
        is_over = calls.is_over or not runs  # an update, an error or torch.compile ended it; or the code did
        if not is_over and (length_ns := calls.age_ns) >= _MIN_WINDOW_NS:
            self._window = self._part(calls, length_ns - calls.overhead_ns)
            is_over = length_ns >= self._max_ns or calls.overhead_ns >= _MAX_OVERHEAD_NS
        if is_over:
            self.stop()

    def updated(self) -> None:
        """An optimizer stepped: what runs is training."""
        if (calls := self._calls) is not None:
            calls.end()

    def stop(self) -> None:
        """End the current window."""
        if self._restore is not None:
            self._restore()
        if self._window is not None:
            self.windows.append(self._window)
            self._finished += 1
        self._calls = self._restore = self._window = None

    def _begin(self) -> None:
        self._attempts += 1
        calls = self._new()
        self._restore = watch_calls(calls, self._thread, self._guard)
        self._calls = calls if self._restore is not None else None


def watched_evaluations(thread: int, guard: Guard) -> WatchedParts[WatchedStep, EvaluatedPart]:
    """Watch what the modules of evaluations compute, also within each other."""
    return WatchedParts(thread, guard, lambda: WatchedStep(is_evaluation=True), _evaluated_part, _MAX_WINDOW_NS)


def watched_sequences(thread: int, guard: Guard) -> WatchedParts[SequenceCalls, SequencePart]:
    """Watch outermost calls for sequences that grow."""
    return WatchedParts(thread, guard, SequenceCalls, _sequence_part, _MAX_SEQUENCE_NS)


def _sequence_part(calls: SequenceCalls, _: int) -> SequencePart:
    return SequencePart(_copied(calls.modules), calls.length_ns)


def _evaluated_part(calls: WatchedStep, length_ns: int) -> EvaluatedPart:
    return EvaluatedPart(_copied(calls.work), _copied(calls.sizes.modules), length_ns)


def _copied(objects: dict[K, T]) -> dict[K, T]:
    """Copy a dictionary and its values, while the recorded thread changes them."""
    return {key: copy.copy(value) for key, value in dict(objects).items()}
