"""Plan when the profiler is on, from step boundaries and time alone: deterministic and testable.

Recording everything would create too many events in a long cell; recording only steps would miss a cell without any.

  opening    from the first line of the cell to the end of its first step: the whole recording, if no loop is found
  warming    a few steps with the profiler off: they show the step time without its overhead
  recording  enough steps for a diagnosis, within the limits on events
  resting    profiler off, because the next step would have had too many events; some steps later it records again
  done       profiler off; marks and sensors continue, and give more un-profiled steps

Steps with more events than a window may hold are recorded in a deferred window, if that is possible: the profiler is
paused at its end, and processes the events after the cell, when nothing waits for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SECOND_NS = 1_000_000_000
FEW_STEPS = 3  # with fewer recorded steps, a diagnosis is uncertain
FULL_FRAC = 0.75  # of the events that a window may hold; the watch stops it some events before the limit
_SURELY = 3  # times as many events as fit, by the rate in the first step, which may be unlike the others
_PROBABLY = 1.5
MAX_RESTARTS = 8  # of the profiler in one phase: each takes some milliseconds


class ProfilerPhase(Enum):
    """Phase of the profiler; the value is shown in the live panel."""

    OPENING = "waiting for the first step"
    WARMING = "warming up"
    RECORDING = "recording"
    RESTING = "pausing between two recordings"
    DONE = "enough steps recorded; the cell runs on"


class ProfilerAction(Enum):
    """Action for the profiler at this boundary."""

    NONE = "none"
    START = "start"
    STOP = "stop"


@dataclass(frozen=True, kw_only=True)
class RecordingLimits:
    """How much to record. The defaults suffice for steps of 1 ms as well as of 10 s."""

    steps: int | None = None  # exactly this many; None: as many as the other limits allow
    max_events: int = 40_000  # in one window; the loop waits while the profiler stops, about 5 us per event
    max_requested_events: int = 1_000_000  # if the number of steps was requested; each takes 1 to 3 kB
    max_deferred_events: int = 0  # in a window that the profiler processes after the cell; 0: that is not possible
    warm_up_steps: int = 5  # un-profiled steps before recording; 2 if the loader is known to be short
    short_warm_up_steps: int = 8  # the same for short steps, of which some are cold, and some lie beside pauses
    short_ns: int = SECOND_NS // 20
    target_steps: int = 14  # twelve interior steps give a stable median
    target_ns: int = 1 * SECOND_NS
    slow_ns: int = 10 * SECOND_NS  # after this, `few_steps` suffice
    min_slow_steps: int = 5  # three of them interior
    max_windows: int = 4  # of recorded steps: each ends when the next step would have too many events
    rest_steps: int = 5  # un-profiled steps between two windows
    rest_ns: int = SECOND_NS // 2  # and at least this time between two windows, or a few times
    rest_holds: int = 4  # what the loop waited when the latest one ended, if that is shorter
    # Windows start after a multiple of so many steps, so that ranks record the same ones: the first window, and later
    # ones, whose time depends on how long each rank waited for its profiler.
    aligned_steps: int = 1
    aligned_later_steps: int = 1
    opening_timeout_ns: int = 2 * SECOND_NS  # stop if no step came by then: a set-up may run for minutes
    idle_timeout_ns: int = 5 * SECOND_NS  # stop recording if no step came for this long: the loop is over


@dataclass
class RecordingPlan:
    """Decides when to start and stop; holds no profiler and reads no clock.

    The number of events is an estimate while the profiler runs, and may be many times too high. It is known exactly
    when the profiler has stopped: if there are few, `resume` takes the plan back to the phase that ended early.
    """

    limits: RecordingLimits
    phase: ProfilerPhase = ProfilerPhase.OPENING
    boundaries: int = 0
    windows: int = 0  # of recorded steps, that ended because of their events
    held_ns: int | None = None  # how long the loop waited for the profiler when the latest window ended
    is_deferred: bool = False  # the next window of recorded steps, or the present one, is processed after the cell
    _is_limited: bool = False  # the latest window ended because of its events
    _earlier_steps: int = 0  # recorded in earlier windows
    _earlier_ns: int = 0  # and the time that they took
    _phase_ns: int = 0
    _phase_steps: int = 0
    _last_ns: int = 0
    _slowest_ns: int = 0
    _known_steps: int | None = field(default=None)
    _interrupted: tuple[ProfilerPhase, int, int] | None = None  # phase, its start and steps, if it ended early
    _events: int = 0  # in the windows of this phase that ended early
    _event_steps: int = 0  # steps in these windows
    _restarts: int = 0
    _false_alarms: int = 0  # windows that ended early with few events, within an operator
    _events_per_ns: float = 0.0  # in the first step, if its recording ended early for its events
    _likely_events_per_ns: float = 0.0  # in the code before it, and in windows of recorded steps that ended early
    _shortest_ns: int = 0  # of the steps while the profiler was off

    def begin(self, at_ns: int) -> None:
        """The cell begins with the profiler on."""
        self._phase_ns = self._last_ns = at_ns

    @property
    def may_be_postponed(self) -> bool:
        """Whether the profiler is on and waits for the first step."""
        return self.phase is ProfilerPhase.OPENING and not self.boundaries

    def postpone(self, at_ns: int) -> None:
        """The cell imports packages, which can take longer than the opening: that begins afterwards."""
        self.begin(at_ns)
        self._restarts = 0  # memory of the packages was taken for events

    def boundary(self, at_ns: int, known_steps: int | None = None, events: int | None = None) -> ProfilerAction:
        """A step begins now; `known_steps`: length of the loader's epoch; `events`: number in the window so far."""
        step_ns = at_ns - self._last_ns
        if self.boundaries:
            self._slowest_ns = max(self._slowest_ns, step_ns)
        self.boundaries += 1
        self._known_steps = known_steps
        self._last_ns = at_ns
        if self.phase is ProfilerPhase.OPENING:
            if self.boundaries < 2:
                return ProfilerAction.NONE
            self._enter(ProfilerPhase.WARMING, at_ns)
            return ProfilerAction.STOP
        self._phase_steps += 1
        if self.phase is ProfilerPhase.WARMING:
            self._shortest_ns = min(self._shortest_ns or step_ns, step_ns)
        if self._may_record(at_ns):
            if self._exceeds_window(self._events_per_ns, _SURELY) and not self._defers():
                self._is_limited = True
                self._enter(ProfilerPhase.DONE, at_ns)
                return ProfilerAction.NONE
            if self._exceeds_window(self._likely_events_per_ns, _PROBABLY):
                self._defers()
            self._enter(ProfilerPhase.RECORDING, at_ns)
            self._events = self._event_steps = self._restarts = 0
            return ProfilerAction.START
        if self.phase is ProfilerPhase.RECORDING and self._enough(at_ns):
            self._earlier_steps += self._phase_steps
            self._enter(ProfilerPhase.DONE, at_ns)
            return ProfilerAction.STOP
        if self.phase is ProfilerPhase.RECORDING and self._next_step_exceeds(events):
            self._interrupt(self._after_window(), at_ns)
            return ProfilerAction.STOP
        return ProfilerAction.NONE

    def tick(self, at_ns: int) -> ProfilerAction:
        """Check timeouts; called several times a second from outside the loop."""
        silent_ns = at_ns - self._last_ns
        if self.may_be_postponed and at_ns - self._phase_ns > self.limits.opening_timeout_ns:
            self._enter(ProfilerPhase.WARMING, at_ns)
            return ProfilerAction.STOP
        if self.phase is ProfilerPhase.OPENING and self.boundaries and silent_ns > self.limits.slow_ns:
            self._enter(ProfilerPhase.WARMING, at_ns)
            return ProfilerAction.STOP
        timeout_ns = max(self.limits.idle_timeout_ns, 5 * self._slowest_ns)
        if self.phase is ProfilerPhase.RECORDING and silent_ns > timeout_ns:
            self._enter(ProfilerPhase.DONE, at_ns)
            return ProfilerAction.STOP
        return ProfilerAction.NONE

    @property
    def allowed_events(self) -> int:
        """How many events the next window of this phase may hold."""
        return self._max_events(self.phase) - self._events

    def exceed(self, at_ns: int) -> ProfilerAction:
        """The window seems to hold as many events as it may: stop, even in the middle of a step."""
        following = {ProfilerPhase.OPENING: ProfilerPhase.WARMING, ProfilerPhase.RECORDING: self._after_window()}
        if self.phase not in following:
            return ProfilerAction.NONE
        self._interrupt(following[self.phase], at_ns)
        return ProfilerAction.STOP

    @property
    def is_cut(self) -> bool:
        """Whether fewer than FEW_STEPS were recorded, because of their number of events."""
        return self._is_limited and self._earlier_steps < FEW_STEPS

    @property
    def is_interrupted(self) -> bool:
        """Whether a phase ended early, because of an estimated number of events."""
        return self._interrupted is not None

    def resume(self, events: int | None, *, may_restart: bool = True) -> bool:
        """The profiler has stopped, with this number of events: return whether to start it again at once."""
        if self._interrupted is None:
            return False
        (phase, phase_ns, steps), self._interrupted = self._interrupted, None
        rate = (events or 0) / max(1, self._phase_ns - phase_ns)
        if phase is ProfilerPhase.OPENING and self.boundaries:
            self._events_per_ns = max(self._events_per_ns, rate)
        else:
            self._likely_events_per_ns = max(self._likely_events_per_ns, rate)
        self._events += events or 0
        self._event_steps = steps
        self._restarts += 1
        is_full = events is None or self._events > self._max_events(phase) / 2
        if is_full or not may_restart or self._restarts > MAX_RESTARTS:
            if phase is ProfilerPhase.RECORDING:
                self._earlier_steps += steps
                self._earlier_ns += self._phase_ns - phase_ns
                self._false_alarms += not is_full
                if is_full or self._false_alarms > MAX_RESTARTS:
                    self._is_limited = True
                    self.windows += 1
                if not steps and is_full and self._is_step_too_large(events):
                    self._enter(ProfilerPhase.RESTING if self._defers() else ProfilerPhase.DONE, self._last_ns)
            return False
        self.phase, self._phase_ns, self._phase_steps = phase, phase_ns, steps
        return True

    def give_up(self, at_ns: int) -> None:
        """A window has so many events that it has to wait for the end of the code: there will be no other one."""
        self.resume(None)
        self._is_limited = True
        self._enter(ProfilerPhase.DONE, at_ns)

    def stop_for_good(self, at_ns: int) -> None:
        """Stop recording for good: the code has ended, another profiler took over, or recording failed."""
        if self.phase is ProfilerPhase.RECORDING:
            self._earlier_steps += self._phase_steps
        self._enter(ProfilerPhase.DONE, at_ns)

    def _enter(self, phase: ProfilerPhase, at_ns: int) -> None:
        self.phase, self._phase_ns, self._phase_steps = phase, at_ns, 0
        self._interrupted = None

    def _interrupt(self, phase: ProfilerPhase, at_ns: int) -> None:
        """Enter the next phase before this one has all it needs."""
        interrupted = (self.phase, self._phase_ns, self._phase_steps)
        self._enter(phase, at_ns)
        self._interrupted = interrupted

    def _is_step_too_large(self, events: int | None) -> bool:
        """Whether a window without a complete step shows that no other will have one.

        An early end may also come from memory of the program that was taken for events; that is known afterwards.
        """
        if events is None:
            return self.windows > 1
        return self._events > FULL_FRAC * self._max_events(ProfilerPhase.RECORDING)

    def _exceeds_window(self, events_per_ns: float, times: float) -> bool:
        """Whether each step has so many times the events that a window may hold: none would be recorded completely."""
        if self.limits.steps is not None or self.is_deferred:
            return False
        return events_per_ns * self._shortest_ns > times * self.limits.max_events

    def _defers(self) -> bool:
        """Let the next window be a deferred one, if it can hold a step; return whether it is. There is one at most."""
        # By the rate in the first step; 0 if that was recorded completely.
        if self.is_deferred or self._events_per_ns * self._shortest_ns > _PROBABLY * self.limits.max_deferred_events:
            return False
        self.is_deferred = self.limits.max_deferred_events > 0
        return self.is_deferred

    def _after_window(self) -> ProfilerPhase:
        """Return the phase that follows a window of recorded steps which has to end for its events."""
        is_last = self.windows + 1 >= self.limits.max_windows or self.limits.steps is not None or self.is_deferred
        return ProfilerPhase.DONE if is_last else ProfilerPhase.RESTING

    def _may_record(self, at_ns: int) -> bool:
        """Whether a window of recorded steps may start at this boundary."""
        is_first = self.phase is ProfilerPhase.WARMING
        if self.boundaries % (self.limits.aligned_steps if is_first else self.limits.aligned_later_steps):
            return False
        if self.phase is ProfilerPhase.WARMING and self.limits.aligned_steps > 1:
            # The opening of one rank may last longer than that of another, and steps may be short on one only.
            steps = self.limits.aligned_steps if self._is_short_or_slow() else self.limits.short_warm_up_steps
            return self.boundaries >= steps and self._phase_steps > 0
        if self.phase is ProfilerPhase.WARMING:
            return self._phase_steps >= self._warm_steps()
        has_rested = self._phase_steps >= self.limits.rest_steps and at_ns - self._phase_ns >= self._rest_ns()
        return self.phase is ProfilerPhase.RESTING and has_rested

    def _rest_ns(self) -> int:
        """Return the shortest time between two windows: short loops with many events have little time for several."""
        if self.held_ns is None:
            return self.limits.rest_ns
        return min(self.limits.rest_ns, self.limits.rest_holds * self.held_ns)

    def _max_events(self, phase: ProfilerPhase) -> int:
        if self.limits.steps is not None and phase is ProfilerPhase.RECORDING:
            return self.limits.max_requested_events
        if self.is_deferred and phase is ProfilerPhase.RECORDING:
            return self.limits.max_deferred_events
        return self.limits.max_events

    def _recorded_half_epoch(self, steps: int) -> bool:
        """Whether half of a known epoch is recorded: the other half shows the step time without the profiler."""
        return self._known_steps is not None and steps >= self._known_steps / 2

    def _warm_steps(self) -> int:
        if self.boundaries == 1:  # the opening timed out before the first step, which is cold: skip it
            return 2
        if self._is_short_or_slow():
            return 2
        is_short = 0 < self._shortest_ns < self.limits.short_ns
        return max(self.limits.warm_up_steps, self.limits.short_warm_up_steps * is_short)

    def _is_short_or_slow(self) -> bool:
        """Whether the loop is known to have few steps, or a step takes very long: there is no time for a warm-up."""
        is_short = self._known_steps is not None and self._known_steps < 3 * self.limits.warm_up_steps
        return is_short or self._slowest_ns > self.limits.slow_ns

    def _next_step_exceeds(self, events: int | None) -> bool:
        """Whether another step like those so far may have more events than the window may hold."""
        steps = self._phase_steps - self._event_steps
        if events is None or not steps or self.limits.steps is not None:
            return False
        return events * (steps + 1) / steps > self.allowed_events

    def _enough(self, at_ns: int) -> bool:
        steps, spent_ns = self._earlier_steps + self._phase_steps, self._earlier_ns + at_ns - self._phase_ns
        if self.limits.steps is not None:
            return steps >= self.limits.steps
        if steps >= self.limits.target_steps and (
            spent_ns >= self.limits.target_ns or self._recorded_half_epoch(steps)
        ):
            return True
        return steps >= self.limits.min_slow_steps and spent_ns >= self.limits.slow_ns
