"""What the modules of evaluations get, in a few short windows, as `WatchedStep` notes it for a training step.

The sampler's thread sees that an evaluation runs, and begins and ends the windows. A window ends when the thread sees
the evaluation for the last time, so that no training is in it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from gpulab.capture.hooks.evaluations.call_sizes import CalledModule
from gpulab.capture.hooks.models.watched_calls import watch_calls
from gpulab.capture.hooks.models.watched_step import Key, RepeatedWork, WatchedStep
from gpulab.capture.protection.guard import Guard

_MOST_WINDOWS, _MOST_ATTEMPTS = 3, 8
_MIN_WINDOW_NS, _MAX_WINDOW_NS = 150_000_000, 2_000_000_000
_MAX_OVERHEAD_NS = 100_000_000  # in a window; evaluations with many short calls would take longer than they do

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True)
class EvaluatedPart:
    """A part of an evaluation whose calls of modules were noted."""

    work: dict[Key, RepeatedWork]
    modules: dict[int, CalledModule]
    length_ns: int  # without what watching took


class EvaluationCalls:
    """Notes what a thread calls in evaluations. Its callers are two threads, which hold a lock but for `updated`."""

    def __init__(self, thread: int, guard: Guard) -> None:
        self._thread = thread
        self._guard = guard
        self._attempts = self._finished = 0
        self._calls: WatchedStep | None = None
        self._window: EvaluatedPart | None = None  # until the latest sample that shows the evaluation
        self._restore: Callable[[], None] | None = None
        self.windows: list[EvaluatedPart] = []

    @property
    def is_watching(self) -> bool:
        """Whether the calls of modules go through a wrapper."""
        return self._calls is not None

    def sampled(self, evaluates: bool) -> None:
        """Note whether an evaluation runs now: begin a window, or end one."""
        calls = self._calls
        if calls is None:
            if evaluates and self._attempts < _MOST_ATTEMPTS and self._finished < _MOST_WINDOWS:
                self._begin()
            return
        is_over = calls.is_over or not evaluates  # an update, an error or torch.compile ended it; or the evaluation did
        if not is_over and (length_ns := calls.age_ns) >= _MIN_WINDOW_NS:
            self._window = EvaluatedPart(
                _copied(calls.work), _copied(calls.sizes.modules), length_ns - calls.sizes.overhead_ns
            )
            is_over = length_ns >= _MAX_WINDOW_NS or calls.sizes.overhead_ns >= _MAX_OVERHEAD_NS
        if is_over:
            self.stop()

    def updated(self) -> None:
        """An optimizer stepped: what runs is no evaluation."""
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
        calls = WatchedStep(is_evaluation=True)
        self._restore = watch_calls(calls, self._thread, self._guard)
        self._calls = calls if self._restore is not None else None


def _copied(objects: dict[K, T]) -> dict[K, T]:
    """Copy a dictionary and its values, while the recorded thread changes them."""
    return {key: copy.copy(value) for key, value in dict(objects).items()}
