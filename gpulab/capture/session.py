"""A recording in progress: it starts, watches, stops, and becomes a Run."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from time import time_ns  # bound here: the program may replace the functions of the module

from gpulab.capture.active_session import activate, deactivate
from gpulab.capture.hooks.gc_and_compilation import StallRecorder
from gpulab.capture.hooks.loader_hooks import StepMarks
from gpulab.capture.live.loop_activity import ActivityTracker
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.live.step_rate import StepRate
from gpulab.capture.live.workers import WorkerStates
from gpulab.capture.memory.memory_watch import MemoryWatch
from gpulab.capture.merge_traces import merge_traces, missing_gpu_work, torch_settings
from gpulab.capture.plan import FEW_STEPS, ProfilerAction, ProfilerPhase, RecordingLimits, RecordingPlan
from gpulab.capture.profiler import TraceWindow, is_profiler_running, yield_to_user_profiler
from gpulab.capture.protection.deferred_signals import DeferredSignals
from gpulab.capture.protection.event_budget import EventWatch
from gpulab.capture.protection.guard import Guard
from gpulab.capture.protection.main_thread import PendingCall
from gpulab.capture.run_registry import runs
from gpulab.capture.spool.content import STILL_OPEN, RecordingState
from gpulab.capture.spool.spool import Spool
from gpulab.capture.trace_windows import EVENTS, TraceWindows
from gpulab.errors import CaptureError
from gpulab.run import Gap, Machine, Recording, Run, Source
from gpulab.sensors import Sensors, describe_machine
from gpulab.sensors.readings import PERIOD_NS, samples_until

# In one window: the loop waits while the profiler stops, for 3 to 6 us per event (trace) or 9 to 15 us (deep), and
# again while the events are written to disk, for 3 us per event. Until then each needs 1.3 kB.
MAX_EVENTS = {"sensors": 0, "trace": 27_000, "deep": 11_000}
STORE_DELAY_NS = 300_000_000  # between these two waits
LEVELS = {
    "sensors": (),
    "trace": (),
    "deep": ("with_stack", "record_shapes", "profile_memory"),
}


class Session:
    """Records from `start()` to `stop()`; `stop` returns the Run and adds it to `gpulab.runs`.

    Start and stop in the thread to be recorded. Raises CaptureError if recording cannot start.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        level: str = "trace",
        steps: int | None = None,
        on_tick: Callable[[LiveSnapshot], None] | None = None,
        period_ns: int = PERIOD_NS,
    ) -> None:
        if level not in LEVELS:
            raise CaptureError(
                f"{level!r} is not a recording level.",
                why=f"the levels are {', '.join(LEVELS)}",
                fix="omit the level to get the default, trace",
            )
        if steps is not None and steps < 1:
            raise CaptureError(
                f"Cannot record {steps} steps.", why="the minimum is 1", fix="omit steps for the default"
            )
        self.name = name or runs.free_name()
        self.level = level
        self.run: Run | None = None
        self._plan = RecordingPlan(RecordingLimits(steps=steps, max_events=MAX_EVENTS[level]))
        self._guard = Guard()
        self._marks = StepMarks(self._boundary, guard=self._guard)
        self._stalls = StallRecorder()
        self._memory = MemoryWatch(guard=self._guard)
        with DeferredSignals(again=True):  # a missing file is an OSError there, and so is a handler's TimeoutError
            self._sensors = Sensors(lambda: self._marks.worker_pids, self._tick, period_ns=period_ns)
        self._pulse, self._rate, self._workers_now = ActivityTracker(), StepRate(), WorkerStates()
        self._on_tick = on_tick
        self._window: TraceWindow | None = None
        self._events = EventWatch(self._too_many_events)
        self._spool = Spool(self.name, level)
        # Steps that the user asked for may need gigabytes of disk.
        self._traces = TraceWindows(self._spool.window_path, in_memory=steps is not None)
        self._pauses: list[tuple[int, int]] = []
        self._gaps: list[Gap] = []
        self._overdue_stop, self._late_store = PendingCall(self._stop_overdue), PendingCall(self._store_window)
        self._exit = contextlib.ExitStack()
        self._began_ns = self._window_ns = 0
        self._processing = False
        self._facts: dict[str, str] = {}

    def start(self) -> None:
        """Start recording: install the hooks, start the sensors and, unless the level is "sensors", the profiler."""
        try:
            with DeferredSignals(again=True):
                self._start()
        except BaseException:
            self.abandon()
            raise

    def _start(self) -> None:
        activate(self)
        self._exit.callback(deactivate)
        self._stalls.install()
        self._exit.callback(self._stalls.remove)
        self._prepare_torch()
        self._memory.begin()
        if self._window is not None:
            self._exit.callback(self._discard_window)
            if threading.current_thread() is threading.main_thread():  # elsewhere nothing can stop it within a step
                self._exit.callback(self._events.stop)
                self._events.start()
            self._start_profiler(self._window)
        self._began_ns = self._window_ns = time_ns()
        self._plan.begin(self._began_ns)
        self._begin_spool()
        # Last, because every tick asks the plan, which must have begun.
        self._exit.callback(self._sensors.stop)
        self._guard.call("sensors", self._sensors.start, None)  # fails where no thread can start

    def stop(self, error: BaseException | None = None) -> Run:
        """Stop, remove every hook, and return the Run; `error`: the exception that ended the recorded code, if any."""
        ended_ns = time_ns()
        self._processing = True
        try:
            with DeferredSignals(again=True):
                self._cancel_pending_calls()
                self._use_profiler(self._stop_profiler)
                self._exit.close()
            self.run = self._assemble(ended_ns, error)
        finally:  # the spool not before: the process may be killed while it reads what was recorded
            try:
                self.abandon()
            finally:  # a second call does nothing, unless a signal handler raised before the first one began
                self.abandon()
        runs.add(self.run)
        return self.run

    def abandon(self) -> None:
        """Stop, and remove every hook and file, without creating a run; harmless if it has stopped."""
        with DeferredSignals(again=True):
            self._cancel_pending_calls()
            self._exit.close()
            self._spool.discard()
            self._traces.close()

    def _cancel_pending_calls(self) -> None:
        self._overdue_stop.cancel()
        self._late_store.cancel()

    def live(self) -> LiveSnapshot:
        """The current state; callable from any thread."""
        now_ns = time_ns()
        marks, sensed = self._marks, self._sensors.latest()
        beat = self._pulse.update(now_ns, marks, sensed.gpus)
        return LiveSnapshot(
            phase="processing" if self._processing else self._phase(),
            elapsed_s=(now_ns - self._began_ns) / 1e9,
            steps=marks.steps,
            steps_per_s=self._rate.update(now_ns, marks.steps),
            gpus=sensed.gpus,
            core_fracs=sensed.core_fracs,
            rss_bytes=sensed.rss_bytes,
            workers=sensed.workers or 0,
            frame=sensed.frame,
            worker_states=self._workers_now.read(now_ns, marks.worker_pids),
            **vars(beat),
        )

    def mark_step(self) -> None:
        """Mark the end of a step, as requested by the user's code."""
        self._marks.user_step()

    def _phase(self) -> str:
        return "sensors only" if self.level == "sensors" else self._plan.phase.value

    def _prepare_torch(self) -> None:
        """Hook torch and prepare the profiler; without torch, or beside another profiler, record sensors only."""
        try:
            import torch  # noqa: F401  (is it installed?)
        except ImportError:
            self._add_gap("operators, kernels and steps", "PyTorch is not installed", "pip install torch")
            return
        self._marks.install()
        self._exit.callback(self._marks.remove)
        if self.level == "sensors":
            return
        if is_profiler_running():
            self._plan.stop_for_good(0)
            self._add_gap(
                "operators and kernels",
                "another PyTorch profiler is already running, and two cannot record at once",
                "stop it (profiler.stop(), or restart the kernel) and run the cell again",
            )
            return
        self._exit.enter_context(yield_to_user_profiler(self._yield_to_user_profiler))
        self._window = TraceWindow(LEVELS[self.level])

    def _boundary(self, known_steps: int | None) -> None:
        """A step begins in the recorded thread; the caller's guard keeps failures from the user's loop."""
        self._facts = self._facts or torch_settings()  # as they are in the loop: a function may set and restore them
        self._memory.boundary(self._marks.steps, sys._getframe())
        if self.level != "sensors" and self._plan.phase is not ProfilerPhase.DONE:
            self._use_profiler(lambda: self._follow_plan(known_steps))

    def _follow_plan(self, known_steps: int | None) -> None:
        """Start or stop the profiler as planned for this boundary."""
        at_ns = time_ns()
        act = self._plan.boundary(at_ns, known_steps, self._events.step_started())
        if act is ProfilerAction.NONE:
            return
        with DeferredSignals(again=True):
            if act is ProfilerAction.STOP:
                self._stop_profiler()
                if not self._is_in_main_thread():
                    self._traces.store_latest()
            elif not is_profiler_running():
                self._traces.store_latest()
                self._window = TraceWindow(LEVELS[self.level])
                self._start_profiler(self._window)
                self._window_ns = time_ns()
        self._pauses.append((at_ns, time_ns()))

    def _use_profiler(self, function: Callable[[], None]) -> None:
        """Call this function under the guard; after a failure, the profiler stays off."""

        def succeeds() -> bool:
            function()
            return True

        if not self._guard.call(EVENTS, succeeds, False):
            self._plan.stop_for_good(time_ns())
            self._discard_window()

    def _start_profiler(self, window: TraceWindow) -> None:
        """Start the profiler and watch the number of its events."""
        window.start()
        self._events.profiler_started(self._plan.allowed_events)

    def _too_many_events(self) -> None:
        """Called in a thread of its own: the profiler holds as many events as it may."""
        if self._plan.exceed(time_ns()) is ProfilerAction.STOP:
            self._overdue_stop.request()

    def _stop_profiler(self) -> None:
        if self._window is None:
            return
        window, self._window = self._window, None
        ended_ns = time_ns()
        is_ours = window.stop()
        self._events.profiler_stopped(for_good=self._plan.phase is ProfilerPhase.DONE)
        if is_ours:
            self._traces.add(window, self._window_ns, ended_ns)
        else:
            self._plan.stop_for_good(ended_ns)
            self._add_gap(
                "operators and kernels in part of the cell",
                "another PyTorch profiler, perhaps one in the cell, took over the recording",
                "remove the cell's own profiler and profile the cell again",
            )

    def _yield_to_user_profiler(self) -> None:
        """The cell starts its own profiler, which has precedence: stop ours."""
        if self._window is None:
            self._plan.stop_for_good(time_ns())
            return
        at_ns = time_ns()
        self._plan.stop_for_good(at_ns)
        self._stop_profiler()
        self._pauses.append((at_ns, time_ns()))
        self._add_gap(
            "operators and kernels after the cell started its own profiler",
            "two PyTorch profilers cannot record at once, and the cell's own profiler has precedence",
            "remove the profiler from the cell",
        )

    def _tick(self) -> None:
        """Called several times a second in the sampler's thread."""
        if self._is_in_main_thread():
            if self._plan.tick(time_ns()) is ProfilerAction.STOP:
                self._overdue_stop.request()
            elif self._traces.is_latest_in_memory and time_ns() - self._traces.stopped_ns > STORE_DELAY_NS:
                self._late_store.request()
        self._spool.write()
        if self._on_tick is not None:
            self._on_tick(self.live())

    def _stop_overdue(self) -> None:
        """Stop the profiler between two boundaries; runs in the main thread, between two bytecodes."""
        at_ns = time_ns()
        self._use_profiler(self._stop_profiler)
        self._pauses.append((at_ns, time_ns()))

    def _store_window(self) -> None:
        """Write the events of a window to disk in the main thread, some time after stopping: each is a hold."""
        at_ns = time_ns()
        if self._window is None:
            self._use_profiler(self._traces.store_latest)
            self._pauses.append((at_ns, time_ns()))

    def _is_in_main_thread(self) -> bool:
        """Whether the main thread is recorded: pending calls run there only."""
        return threading.main_thread().ident == self._marks.thread

    def _discard_window(self) -> None:
        window, self._window = self._window, None
        self._events.profiler_stopped(for_good=True)
        if window is not None:
            window.abandon()

    def _add_gap(self, subject: str, why: str, fix: str) -> None:
        self._gaps.append(Gap(what=subject, why=why, fix=fix))

    def _assemble(self, ended_ns: int, error: BaseException | None) -> Run:
        # A file that is missing is an OSError there, and so is the TimeoutError of a signal handler.
        with DeferredSignals(again=True):
            this_machine = self._guard.call("the machine", describe_machine, Machine())
        began_ns = self._began_ns
        failure, holder_rows = self._memory.finish(error)
        empty = Run(
            name=self.name,
            source=Source(how="measured", device=this_machine.device, date=datetime.date.today().isoformat()),
            machine=this_machine,
            span_ns=ended_ns - began_ns,
            began_ns=began_ns,
            outcome="ok" if error is None else type(error).__name__,
            failure=failure,
            holder_rows=holder_rows,
            allocator_rows=self._memory.allocator_rows(began_ns),
            loaders=tuple(self._marks.loaders),
            models=tuple(self._marks.models),
            optimizers=tuple(self._marks.optimizers),
            facts=self._facts or torch_settings(),
            mark_rows=self._marks.rows(began_ns),
            gpu_rows=samples_until(self._sensors.gpu_rows(began_ns, this_machine.gpus), ended_ns - began_ns),
            host_rows=samples_until(self._sensors.host_rows(began_ns), ended_ns - began_ns),
            worker_rows=samples_until(self._sensors.worker_rows(began_ns), ended_ns - began_ns),
            stall_rows=self._stalls.rows(began_ns, ended_ns),
        )
        parts = self._read_windows()
        activities = self._traces.windows[0].activities if self._traces.windows else ()
        run = merge_traces(empty, parts)
        if (gap := missing_gpu_work(run, activities)) is not None:
            self._gaps.append(gap)
        # Without a GPU, the machine's own gaps already say why there are no GPU sensors.
        sensor_gaps = (gap for gap in self._sensors.gaps if this_machine.gpus or gap not in this_machine.gaps)
        own_gaps = (*self._marks.gaps, *self._stalls.gaps, *self._memory.own_gaps, *self._spool.gaps)
        recording = Recording(
            level=self.level,
            windows_ns=tuple((start - began_ns, end - began_ns) for start, end in self._traces.spans_ns),
            pauses_ns=tuple((start - began_ns, end - began_ns) for start, end in self._all_pauses()),
            activities=activities,
            options=LEVELS[self.level],
            left_out=(*self._gaps, *own_gaps, *sensor_gaps),
        )
        return replace(run, recording=recording)

    def _read_windows(self) -> list[Run]:
        if self._plan.is_cut:
            self._add_gap(
                "operators and kernels of more than a few steps",
                "a step has so many events that the loop would wait too long while the profiler stops",
                f"record whole steps, and accept the pause: --steps {FEW_STEPS}",
            )
        parts, gaps = self._traces.read(self.name)
        self._gaps += gaps
        return parts

    def _begin_spool(self) -> None:
        tables = (self._marks.new_rows, self._sensors.new_rows, self._stalls.new_rows)
        self._spool.begin(self._began_ns, tables, self._recording_state)

    def _recording_state(self) -> RecordingState:
        """What the spool keeps beside the tables; called in the sampler's thread."""
        open_windows = ((self._window_ns, STILL_OPEN),) if self._window is not None else ()
        return RecordingState(
            phase=self._phase(),
            windows_ns=(*self._traces.spans_ns, *open_windows),
            pauses_ns=tuple(self._pauses),
            gaps=(*self._gaps, *self._marks.gaps),
            loaders=tuple(self._marks.loaders),
            models=tuple(self._marks.models),
            optimizers=tuple(self._marks.optimizers),
            facts=self._facts,
        )

    def _all_pauses(self) -> list[tuple[int, int]]:
        """When gpulab blocked the main thread, and the time whose step marks are missing: no step contains either."""
        missing = self._marks.buffer.missing_span_ns
        return sorted(self._pauses + ([missing] if missing is not None else []))
