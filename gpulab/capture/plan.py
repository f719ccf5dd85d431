"""When the profiler should be on: a plan fed with step boundaries and the time, pure and testable.

Recording everything would bury a long cell in events, and recording only steps would miss a cell without any. So:

  opening    from the first line of the cell to the end of its first step: all there is, if no loop is found
  warming    a few steps with the profiler off: they tell what a step costs without it
  recording  enough steps to judge, at most about `max_events` events
  done       profiler off; marks and sensors go on, and give more un-profiled steps
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SECOND_NS = 1_000_000_000


class Phase(Enum):
    """What the profiler is doing, in words for the live panel."""

    OPENING = "before the first step"
    WARMING = "warming up"
    RECORDING = "recording"
    DONE = "recorded; sensors go on"


class Act(Enum):
    """What to do with the profiler at this boundary."""

    NONE = "none"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much to record. The defaults give a verdict on steps of 1 ms and of 10 s alike."""

    steps: int | None = None  # exactly this many; None: as many as the other limits allow
    max_events: int = 200_000  # a million froze the kernel for seconds when it was tried
    warm_steps: int = 5  # un-profiled steps before recording; 2 where the loader is known to be short
    enough_steps: int = 14  # a dozen interior steps steady a median
    enough_ns: int = 1 * SECOND_NS
    slow_ns: int = 10 * SECOND_NS  # after this, `few_steps` suffice
    few_steps: int = 5  # three interior ones
    opening_ns: int = 2 * SECOND_NS  # without any step by then, stop: a set-up may run for minutes
    silent_ns: int = 5 * SECOND_NS  # recording, and no step came for so long: the loop is over


@dataclass
class Plan:
    """Decides; holds no profiler and reads no clock."""

    limits: Limits
    phase: Phase = Phase.OPENING
    boundaries: int = 0
    events_per_step: float | None = None
    _phase_ns: int = 0
    _phase_steps: int = 0
    _last_ns: int = 0
    _slowest_ns: int = 0
    _known_steps: int | None = field(default=None)

    def begin(self, at_ns: int) -> None:
        """The cell begins, profiler on."""
        self._phase_ns = self._last_ns = at_ns

    def boundary(self, at_ns: int, known_steps: int | None = None) -> Act:
        """A step begins now; `known_steps` is the length of the loader's epoch where it is known."""
        if self.boundaries:
            self._slowest_ns = max(self._slowest_ns, at_ns - self._last_ns)
        self.boundaries += 1
        self._known_steps = known_steps
        self._last_ns = at_ns
        if self.phase is Phase.OPENING:
            if self.boundaries < 2:
                return Act.NONE
            self._enter(Phase.WARMING, at_ns)
            return Act.STOP
        self._phase_steps += 1
        if self.phase is Phase.WARMING and self._phase_steps >= self._warm_steps():
            self._enter(Phase.RECORDING, at_ns)
            return Act.START
        if self.phase is Phase.RECORDING and self._enough(at_ns):
            self._enter(Phase.DONE, at_ns)
            return Act.STOP
        return Act.NONE

    def tick(self, at_ns: int) -> Act:
        """Time has passed; called several times a second from outside the loop."""
        silent_ns = at_ns - self._last_ns
        if self.phase is Phase.OPENING and at_ns - self._phase_ns > self.limits.opening_ns and not self.boundaries:
            self._enter(Phase.WARMING, at_ns)
            return Act.STOP
        if self.phase is Phase.OPENING and self.boundaries and silent_ns > self.limits.slow_ns:
            self._enter(Phase.WARMING, at_ns)
            return Act.STOP
        patience_ns = max(self.limits.silent_ns, 5 * self._slowest_ns)
        if self.phase is Phase.RECORDING and silent_ns > patience_ns:
            self._enter(Phase.DONE, at_ns)
            return Act.STOP
        return Act.NONE

    def give_up(self, at_ns: int) -> None:
        """Record no more: something else took the profiler, or it failed."""
        self._enter(Phase.DONE, at_ns)

    def _enter(self, phase: Phase, at_ns: int) -> None:
        self.phase, self._phase_ns, self._phase_steps = phase, at_ns, 0

    def _half_known(self, steps: int) -> bool:
        """Half of a known epoch is recorded: the rest shall tell what a step costs without the profiler."""
        return self._known_steps is not None and steps >= self._known_steps / 2

    def _warm_steps(self) -> int:
        if self.boundaries == 1:  # the opening timed out before the first step: that one is cold, let it pass
            return 2
        short = self._known_steps is not None and self._known_steps < 3 * self.limits.warm_steps
        slow = self._slowest_ns > self.limits.slow_ns
        return 2 if short or slow else self.limits.warm_steps

    def _enough(self, at_ns: int) -> bool:
        steps, spent_ns = self._phase_steps, at_ns - self._phase_ns
        if self.limits.steps is not None:
            return steps >= self.limits.steps
        if self.events_per_step and steps + 1 > max(3, self.limits.max_events / self.events_per_step):
            return True
        if steps >= self.limits.enough_steps and (spent_ns >= self.limits.enough_ns or self._half_known(steps)):
            return True
        return steps >= self.limits.few_steps and spent_ns >= self.limits.slow_ns
