"""Turn the profiler on and off in the recorded thread, as the plan says, and keep what it recorded.

What is due is done at a step boundary, or by a pending call in the main thread between two bytecodes. It is never done
within a backward pass, where Python runs in hooks, checkpoints and custom functions: autograd restores the thread's
state afterwards, and with it a profiler that was stopped meanwhile.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import time_ns  # bound here: the program may replace the functions of the module

from gpulab.capture.job_rank import has_open_exchanges, rank_facts
from gpulab.capture.plan import FEW_STEPS, ProfilerAction, ProfilerPhase, RecordingLimits, RecordingPlan
from gpulab.capture.profiler import TraceWindow, is_profiler_running, yield_to_user_profiler
from gpulab.capture.protection.event_budget import EventWatch
from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.main_thread import PendingCall, is_importing
from gpulab.capture.protection.open_ranges import OpenRanges
from gpulab.capture.trace_windows import EVENTS, TraceWindows
from gpulab.deferred_signals import DeferredSignals
from gpulab.run import Gap, Run

# In one window: the loop waits while the profiler stops, for 3 to 6 us per event (trace) or 9 to 15 us (deep), and
# again while the events are written to disk, for 3 us per event. Until then each needs 1.3 kB.
MAX_EVENTS = {"sensors": 0, "trace": 40_000, "deep": 16_000}
ALIGNED_STEPS, ALIGNED_LATER_STEPS = 4, 12  # windows of ranks start after a multiple of so many steps
STORE_DELAY_NS = 300_000_000  # between these two waits
_TOO_MANY_TIMES = 6  # as many events as a window may hold: the loop would wait for a second and more
MAX_DEFERRED_EVENTS = 200_000  # in a window that is processed after the cell: 46 MB until then, and a second or two


def is_in_backward() -> bool:
    """Whether this thread runs Python inside a backward pass."""
    task = getattr(sys.modules["torch"]._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


@contextlib.contextmanager
def untraced() -> Iterator[None]:
    """Suspend the program's trace function (sys.settrace): with stacks, CPython would never return from ours."""
    function = sys.gettrace()
    if function is None:
        yield
        return
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(function)


class Tracing:
    """The profiler of one recording: `prepare`, `start`, then boundaries and ticks until `stop`, `read` and `close`.

    `options`: of torch.profiler. `steps`: how many to record, None for as many as a diagnosis needs.
    """

    def __init__(
        self,
        level: str,
        options: tuple[str, ...],
        steps: int | None,
        guard: Guard,
        path_in_spool: Callable[[int], Path | None],
    ) -> None:
        self.plan = RecordingPlan(RecordingLimits(steps=steps, max_events=MAX_EVENTS[level]))
        # Steps that the user asked for may need gigabytes of disk.
        self.windows = TraceWindows(path_in_spool, in_memory=steps is not None)
        self.pauses: list[tuple[int, int]] = []  # when the loop waited for the profiler, in UNIX ns
        self.gaps: list[Gap] = []
        self._options, self._guard = options, guard
        self._window: TraceWindow | None = None  # the one that records
        self._window_ns = 0
        self._paused_ns: int | None = None  # when it was paused; it stops at the next boundary
        self._deferred: tuple[TraceWindow, int, int] | None = None  # paused; with its start and end in UNIX ns
        self._ranges = OpenRanges()
        self._events = EventWatch(self._too_many_events)
        self._in_main_thread = False  # is the main thread recorded? Pending calls run there only
        self._is_busy = False  # a pending call may come while a boundary is followed
        self._is_overdue = False  # the profiler is to be stopped within a step
        self._is_full = False  # the window that records seemed to hold as many events as it may, within a step
        self._events_per_ns = 0.0  # in the latest window that ended early, if its events were counted
        self._missed: tuple[int | None, ...] = ()  # known steps at the latest boundary within a backward pass
        self._attending = PendingCall(self._attend)

    def prepare(self, exits: contextlib.ExitStack) -> None:
        """Create the profiler before anything is timed; record nothing beside another profiler."""
        if is_profiler_running():
            self.plan.stop_for_good(0)
            self._add_gap(
                EVENTS,
                "another PyTorch profiler is already running, and two cannot record at once",
                "stop it (profiler.stop(), or restart the kernel) and run the cell again",
            )
            return
        exits.enter_context(self._ranges.watched())
        exits.enter_context(yield_to_user_profiler(self._yield_to_user_profiler))
        self._window = TraceWindow(self._options)

    def start(self, exits: contextlib.ExitStack) -> None:
        """Start the profiler in the thread to be recorded."""
        if self._window is None:
            return
        exits.callback(self._discard_window)
        self._in_main_thread = threading.current_thread() is threading.main_thread()
        if self._in_main_thread:  # elsewhere nothing can stop it within a step
            exits.callback(self._events.stop)
            self._events.start()
            if self._window.can_pause:
                self.plan.limits = replace(self.plan.limits, max_deferred_events=MAX_DEFERRED_EVENTS)
        self._start_window(self._window)

    def begin(self, at_ns: int) -> None:
        """The recorded code begins now."""
        self._window_ns = at_ns
        self.plan.begin(at_ns)

    def boundary(self, known_steps: int | None) -> None:
        """A step begins; `known_steps`: length of the loader's epoch."""
        if self.plan.phase is ProfilerPhase.DONE and not self._is_overdue:
            return
        if is_in_backward():  # an optimizer that steps in a hook
            self._missed = (known_steps,)
            return
        if self._is_overdue:
            self._attend(at_boundary=True)
        self._follow_plan(known_steps)

    def tick(self) -> None:
        """Look for what is due; called several times a second in the sampler's thread, after `begin`."""
        if not self._in_main_thread:
            return
        if self.plan.may_be_postponed and is_importing():
            self.plan.postpone(time_ns())
        if self.plan.tick(time_ns()) is ProfilerAction.STOP:
            self._is_overdue = True
        if self._is_overdue or self._missed or self._can_store():
            self._attending.request()

    def stop(self) -> None:
        """Stop the profiler: the recorded code has ended."""
        self._attending.cancel()
        self.plan.stop_for_good(time_ns())
        self._call(self._stop_all)

    def read(self, name: str) -> list[Run]:
        """Return the events of each window as a run; what cannot be read is a gap."""
        if self.plan.is_cut:
            self._add_gap(
                f"{EVENTS} of more than a few steps",
                "a step has so many events that the loop would wait too long while the profiler stops",
                f"record whole steps, and accept the pause: --steps {FEW_STEPS}, "
                f"in scripts gpulab.profile(steps={FEW_STEPS})",
            )
        parts, gaps = self.windows.read(name)
        self.gaps += gaps
        return parts

    def cancel(self) -> None:
        """Drop what is due; the callbacks in `exits` do the rest."""
        self._attending.cancel()

    def close(self) -> None:
        """Free what is left; harmless if nothing is."""
        self.windows.close()

    @property
    def activities(self) -> tuple[str, ...]:
        """What the profiler recorded: cpu, cuda."""
        return self.windows.windows[0].activities if self.windows.windows else ()

    @property
    def open_window_ns(self) -> int | None:
        """When the window began that is being recorded, in UNIX ns."""
        return None if self._window is None else self._window_ns

    @property
    def spans_ns(self) -> tuple[tuple[int, int], ...]:
        """When the profiler recorded so far, in UNIX ns, without an open window."""
        deferred = self._deferred
        return (*self.windows.spans_ns, *(() if deferred is None else (deferred[1:],)))

    def _attend(self, *, at_boundary: bool = False) -> None:
        """Do one thing that is due, but not within a backward pass; the next tick asks again."""
        if self._is_busy or is_in_backward():
            return
        if self._is_overdue and not at_boundary and has_open_exchanges():
            self._pause_window()
        elif self._is_overdue:
            self._is_overdue = False
            self._hold(self._stop_window)
        elif self._missed:
            self._follow_plan(*self._missed)
        elif self._can_store():
            self._hold(self.windows.store_latest)

    def _can_store(self) -> bool:
        """Whether a window is to be written to disk, some time after it was stopped: the loop waits for each."""
        waited_ns = time_ns() - self.windows.stopped_ns
        return self._window is None and self.windows.is_latest_in_memory and waited_ns > STORE_DELAY_NS

    def _follow_plan(self, known_steps: int | None) -> None:
        """Start or stop the profiler as planned for this boundary."""
        self._missed = ()
        if not self.plan.boundaries and rank_facts():
            self.plan.limits = replace(
                self.plan.limits, aligned_steps=ALIGNED_STEPS, aligned_later_steps=ALIGNED_LATER_STEPS
            )
        actions = {ProfilerAction.STOP: self._stop_window, ProfilerAction.START: self._start_next_window}
        act = self.plan.boundary(time_ns(), known_steps, self._events.step_started())
        if act in actions:
            self._hold(actions[act])

    def _hold(self, function: Callable[[], None]) -> None:
        """Call this function while the loop waits, and record how long it did."""
        at_ns = time_ns()
        self._call(function)
        self.pauses.append((at_ns, time_ns()))

    def _call(self, function: Callable[[], None]) -> None:
        """Call this function under the guard; a failure ends the tracing."""

        def succeeds() -> bool:
            function()
            return True

        self._is_busy = True
        try:
            with DeferredSignals(again=True), untraced():
                if not self._guard.call(EVENTS, succeeds, False):
                    self.plan.stop_for_good(time_ns())
                    self._discard_window()
        finally:
            self._is_busy = False

    def _start_next_window(self) -> None:
        if is_profiler_running():
            return
        self.windows.store_latest()
        self._window = TraceWindow(self._options)
        self._start_window(self._window)
        self._window_ns = time_ns()

    def _start_window(self, window: TraceWindow) -> None:
        """Start the profiler and count its events."""
        window.start()
        self._is_full = False
        self._ranges.window = len(self.windows.windows) + 1
        self._events.profiler_started(self.plan.allowed_events, in_loop=self.plan.phase is ProfilerPhase.RECORDING)

    def _stop_window(self) -> None:
        """Stop the profiler, and start it again if it stopped early for events that do not exist."""
        if self._window is None:
            return
        window, self._window = self._window, None
        ended_ns, self._paused_ns = self._paused_ns or time_ns(), None
        if self._is_to_be_deferred(ended_ns):
            self._defer(window, ended_ns)
            return
        self._events.profiler_stops()
        is_ours = window.stop_quietly() if self.plan.is_interrupted else window.stop()
        self._ranges.window = 0
        if not is_ours:
            self.plan.stop_for_good(ended_ns)
        count = window.count_events() if self.plan.is_interrupted else None
        events = count.number if count else None
        if events is not None:
            self._events_per_ns = events / max(1, ended_ns - self._window_ns)
        resumes = self.plan.resume(events, may_restart=count is not None and not count.is_open)
        self._events.profiler_stopped(for_good=self.plan.phase is ProfilerPhase.DONE, events=events)
        if not is_ours:
            self._add_loss()
            return
        if not (resumes and events == 0):
            self.windows.add(window, self._window_ns, ended_ns)
        self.plan.held_ns = time_ns() - ended_ns
        if resumes:
            self._start_next_window()
        elif not self._in_main_thread:  # no pending call will store it
            self.windows.store_latest()

    def _pause_window(self) -> None:
        """Record no more until the next boundary of a step, where the profiler stops.

        PyTorch (2.13) corrupts memory if it stops while an exchange of gloo is open, and the program crashes.
        """
        if self._window is None or self._paused_ns is not None:
            return
        self._events.profiler_stops()
        if self._window.can_pause and self._in_main_thread:  # a pause concerns this thread only
            self._window.pause()
            self._paused_ns = time_ns()

    def _is_to_be_deferred(self, ended_ns: int) -> bool:
        """Whether the events of the window that ends are to be processed after the cell.

        A window that is full cannot be ended within a backward pass, so it may hold many more events than it should: as
        many as the rate in the window before says. The heap does not tell: it held tensors when the window began.
        """
        limits = self.plan.limits
        if self.plan.is_deferred or not limits.max_deferred_events or not self._is_full:
            return self.plan.is_deferred
        return self._events_per_ns * (ended_ns - self._window_ns) > _TOO_MANY_TIMES * limits.max_events

    def _defer(self, window: TraceWindow, ended_ns: int) -> None:
        """Pause the profiler; it processes the events after the cell."""
        self._events.profiler_stops()
        window.pause()
        self._ranges.window = 0
        self._deferred = window, self._window_ns, ended_ns
        self.plan.give_up(ended_ns)
        self._events.profiler_stopped(for_good=True)

    def _stop_deferred(self) -> None:
        """Let the profiler process the events of the deferred window."""
        if self._deferred is None:
            return
        (window, start_ns, end_ns), self._deferred = self._deferred, None
        if window.stop():
            self.windows.add(window, start_ns, end_ns)
        else:
            self._add_loss()

    def _stop_all(self) -> None:
        self._stop_window()
        self._stop_deferred()

    def _discard_window(self) -> None:
        window, self._window, self._ranges.window = self._window, None, 0
        self._paused_ns = None
        deferred, self._deferred = self._deferred, None
        self._events.profiler_stopped(for_good=True)
        if window is not None:
            window.abandon()
        if deferred is not None:
            deferred[0].abandon()

    def _too_many_events(self) -> None:
        """Called in a thread of its own: the profiler seems to hold as many events as it may."""
        if self.plan.exceed(time_ns()) is ProfilerAction.STOP:
            self._is_overdue = self._is_full = True
            self._attending.request()

    def _yield_to_user_profiler(self) -> None:
        """The cell starts its own profiler, which has precedence: stop ours."""
        self.plan.stop_for_good(time_ns())
        was_recording = self._window is not None
        if was_recording or self._deferred is not None:
            self._hold(self._stop_all)
        if not was_recording:
            return
        self._add_gap(
            f"{EVENTS} after the cell started its own profiler",
            "two PyTorch profilers cannot record at once, and the cell's own profiler has precedence",
            "remove the profiler from the cell",
        )

    def _add_loss(self) -> None:
        self._add_gap(
            f"{EVENTS} in part of the cell",
            "another PyTorch profiler, perhaps one in the cell, took over the recording",
            "remove the cell's own profiler and profile the cell again",
        )

    def _add_gap(self, subject: str, why: str, fix: str) -> None:
        self.gaps.append(Gap(what=subject, why=why, fix=fix))
