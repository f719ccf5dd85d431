"""A recording in progress: it starts, watches, stops, and becomes a Run."""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from time import time_ns  # bound here: the program may replace the functions of the module
from types import FrameType

from gpulab.capture.active_session import activate, deactivate
from gpulab.capture.hooks.child_ranks import ChildRanks
from gpulab.capture.hooks.gc_and_compilation import StallRecorder
from gpulab.capture.hooks.gloo_threads import GlooThreads
from gpulab.capture.hooks.loader_hooks import StepMarks
from gpulab.capture.hooks.phase_recorder import PhaseRecorder
from gpulab.capture.job_rank import rank_from_facts
from gpulab.capture.live.loop_activity import ActivityTracker
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.live.step_rate import StepRate
from gpulab.capture.live.workers import WorkerStates
from gpulab.capture.memory.memory_watch import MemoryWatch
from gpulab.capture.merge_traces import merge_traces, missing_gpu_work, torch_settings
from gpulab.capture.protection.cuda_check import is_missing_cuda
from gpulab.capture.protection.guard import Guard
from gpulab.capture.run_registry import runs
from gpulab.capture.spool.content import STILL_OPEN, RecordingState
from gpulab.capture.spool.spool import Spool
from gpulab.capture.timing.step_timing import TimedParts, time_step
from gpulab.capture.tracing import Tracing
from gpulab.deferred_signals import DeferredSignals
from gpulab.errors import CaptureError
from gpulab.run import TRACED_WORK, Gap, Machine, Recording, Run, Source
from gpulab.run_facts import NO_CUDA
from gpulab.sensors import Sensors, describe_machine
from gpulab.sensors.host.blas_threads import BlasThreads
from gpulab.sensors.parallel_operator import parallel_operator_times
from gpulab.sensors.readings import PERIOD_NS, samples_until
from gpulab.wording import did_you_mean

LEVELS = {
    "sensors": (),
    "trace": (),
    "deep": ("with_stack", "record_shapes", "profile_memory"),
}
# How long layers may be timed after the code: 2 % of its duration, within these limits.


class Session:
    """Records from `start()` to `stop()`; `stop` returns the Run and adds it to `gpulab.runs`.

    Start and stop in the thread to be recorded. `spool_folder`: where the copy of the recording is kept from which a
    killed process can be recovered; by default the user's cache. Raises CaptureError if recording cannot start.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        level: str = "trace",
        steps: int | None = None,
        on_tick: Callable[[LiveSnapshot], None] | None = None,
        period_ns: int = PERIOD_NS,
        spool_folder: Path | None = None,
    ) -> None:
        if level not in LEVELS:
            raise CaptureError(
                f"{level!r} is not a recording level.",
                why=f"the levels are {', '.join(LEVELS)}",
                fix=did_you_mean(level, LEVELS) or "omit the level to get the default, trace",
            )
        if steps is not None and steps < 1:
            raise CaptureError(
                f"Cannot record {steps} steps.", why="the minimum is 1", fix="omit steps for the default"
            )
        self.name = name or runs.free_name()
        self.level = level
        self.run: Run | None = None
        self._guard = Guard()
        self._marks = StepMarks(self._boundary, guard=self._guard)
        self._stalls = StallRecorder()
        self._memory = MemoryWatch(guard=self._guard)
        self._children = ChildRanks(Session, self.name, level, steps)
        self._gloo = GlooThreads()
        self.child_runs: tuple[Run, ...] = ()  # of the ranks that the recorded code started
        self._spool = Spool(self.name, level, folder=spool_folder)
        self._tracing = Tracing(level, LEVELS[level], steps, self._guard, self._spool.window_path)
        with DeferredSignals(again=True):  # a missing file is an OSError there, and so is a handler's TimeoutError
            self._sensors = Sensors(
                lambda: self._marks.worker_pids,
                self._tick,
                period_ns=period_ns,
                evaluation=self._evaluation,
            )
        self._pulse, self._rate, self._workers_now = ActivityTracker(), StepRate(), WorkerStates()
        self._on_tick = on_tick
        self._gaps: list[Gap] = []
        self._pauses: list[tuple[int, int]] = []  # of the whole recording, in UNIX ns
        self._exit = contextlib.ExitStack()
        self._began_ns = 0
        self._processing = False
        self._facts: dict[str, str] = {}
        self._added_facts: dict[str, str] = {}
        self._timed_parts, self._blas = TimedParts(), BlasThreads()
        self._machine = Machine()

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
        self._describe_machine()
        self._stalls.install()
        self._exit.callback(self._stalls.remove)
        self._prepare_torch()
        self._memory.begin()
        self._tracing.start(self._exit)
        self._began_ns = time_ns()
        self._tracing.begin(self._began_ns)
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
                self._tracing.stop()
                self._measure_competition()
                self._exit.close()
                self._time_layers(ended_ns)
            self.run = self._assemble(ended_ns, error)
            self.child_runs = self._guard.call("the runs of child processes", self._children.collect, ())
        finally:  # the spool not before: the process may be killed while it reads what was recorded
            try:
                self.abandon()
            finally:  # a second call does nothing, unless a signal handler raised before the first one began
                self.abandon()
        runs.add(self.run)
        if self.child_runs:
            runs.add_ranks(self.name, self.child_runs)
        return self.run

    def _measure_competition(self) -> None:
        """If the loop had to wait for cores, measure what a parallel operator takes while other programs still run.

        Find out which threads of this process are those of NumPy, if more were busy than PyTorch has.
        """
        nothing: dict[str, str] = {}
        self._added_facts |= self._guard.call(
            "operator times", lambda: parallel_operator_times(self._sensors.host_rows(self._began_ns)), nothing
        )
        self._added_facts |= self._guard.call("threads of BLAS", self._blas.facts, nothing)

    def _time_layers(self, ended_ns: int) -> None:
        """Time what the watched step computed in other number and matrix formats; nothing if only sensors recorded."""
        if self.level != "sensors":
            has_bfloat16 = self._facts.get("cpu_bfloat16", "none") != "none"
            self._timed_parts = time_step(self._marks.modules, ended_ns - self._began_ns, has_bfloat16, self._guard)

    def abandon(self) -> None:
        """Stop, and remove every hook and file, without creating a run; harmless if it has stopped."""
        with DeferredSignals(again=True):
            self._tracing.cancel()
            self._exit.close()
            self._children.discard()
            self._spool.discard()
            self._tracing.close()

    def live(self) -> LiveSnapshot:
        """The current state; callable from any thread."""
        now_ns = time_ns()
        marks, sensed = self._marks, self._sensors.latest()
        beat = self._pulse.update(now_ns, marks, sensed.gpus)
        return LiveSnapshot(
            phase="processing" if self._processing else self._phase(),
            elapsed_s=(now_ns - self._began_ns) / 1e9,
            steps=marks.current_step,
            steps_per_s=self._rate.update(now_ns, marks.current_step),
            gpus=sensed.gpus,
            core_fracs=sensed.core_fracs,
            rss_bytes=sensed.rss_bytes,
            workers=sensed.workers or 0,
            frame=sensed.frame,
            loader_pass=marks.loader_pass,
            worker_states=self._workers_now.read(now_ns, marks.worker_pids),
            **vars(beat),
        )

    def add_fact(self, name: str, text: str) -> None:
        """Add a fact to the run, such as the alerts of a monitor."""
        self._added_facts[name] = text

    def mark_step(self) -> None:
        """Mark the end of a step, as requested by the user's code."""
        self._marks.user_step()

    @property
    def phases(self) -> PhaseRecorder:
        """The phases that the program names: gpulab.phase("validation")."""
        return self._marks.phases

    def _phase(self) -> str:
        return "sensors only" if self.level == "sensors" else self._tracing.plan.phase.value

    def _prepare_torch(self) -> None:
        """Hook torch and prepare the profiler; without torch, or beside another profiler, record sensors only."""
        try:
            import torch  # noqa: F401  (is it installed?)
        except ImportError:
            self._add_gap(f"{TRACED_WORK} and steps", "PyTorch is not installed", "pip install torch")
            return
        self._marks.install()
        self._exit.callback(self._marks.remove)
        for hook in (self._children, self._gloo):
            hook.install()
            self._exit.callback(hook.remove)
        if self.level != "sensors":
            self._tracing.prepare(self._exit)

    def _boundary(self, known_steps: int | None) -> None:
        """A step begins in the recorded thread; the caller's guard keeps failures from the user's loop."""
        self._facts = self._facts or torch_settings()  # as they are in the loop: a function may set and restore them
        self._memory.boundary(self._marks.steps, sys._getframe())
        self._blas.boundary()
        if self.level != "sensors":
            self._tracing.boundary(known_steps)

    def _evaluation(self, innermost: FrameType | None) -> str | None:
        """Return what shows that the recorded thread evaluates now; called in the sampler's thread."""
        watch = self._marks.evaluations
        label = watch.evaluation(innermost)
        others = watch.samples_of_inference(innermost) if label is None else 0
        self._marks.modules.sampled(label is not None, others)
        return label

    def _tick(self) -> None:
        """Called several times a second in the sampler's thread."""
        self._tracing.tick()
        self._spool.write()
        if self._on_tick is not None:
            self._on_tick(self.live())

    def _add_gap(self, subject: str, why: str, fix: str) -> None:
        self._gaps.append(Gap(what=subject, why=why, fix=fix))

    def _assemble(self, ended_ns: int, error: BaseException | None) -> Run:
        began_ns, this_machine = self._began_ns, self._machine
        failure, holder_rows = self._memory.finish(error)
        facts = {**(self._facts or torch_settings()), **self._marks.buckets.facts, **self._added_facts}
        if is_missing_cuda(error):
            facts[NO_CUDA] = "yes"
        empty = Run(
            name=self.name,
            source=Source(how="measured", device=this_machine.device, date=datetime.date.today().isoformat()),
            machine=this_machine,
            span_ns=ended_ns - began_ns,
            began_ns=began_ns,
            outcome="ok" if error is None else type(error).__name__,
            rank=rank_from_facts(facts),
            failure=failure,
            holder_rows=holder_rows,
            allocator_rows=self._memory.allocator_rows(began_ns),
            loaders=self._marks.fetches.added_to(self._marks.loaders),
            models=tuple(self._marks.models),
            optimizers=tuple(self._marks.optimizers),
            frozen_models=self._marks.frozen.models,
            **vars(self._marks.modules.results),
            discarded_gradients=self._marks.gradients.discarded,
            **vars(self._timed_parts),
            facts=facts,
            mark_rows=self._marks.rows(began_ns),
            gpu_rows=samples_until(self._sensors.gpu_rows(began_ns, this_machine.gpus), ended_ns - began_ns),
            host_rows=samples_until(self._sensors.host_rows(began_ns), ended_ns - began_ns),
            worker_rows=samples_until(self._sensors.worker_rows(began_ns), ended_ns - began_ns),
            stall_rows=self._stalls.rows(began_ns, ended_ns),
            phase_rows=self.phases.rows(began_ns, ended_ns),
        )
        parts = self._tracing.read(self.name)
        activities = self._tracing.activities
        run = merge_traces(empty, parts)
        if (gap := missing_gpu_work(run, activities)) is not None:
            self._gaps.append(gap)
        # Without a GPU, the machine's own gaps already say why there are no GPU sensors.
        sensor_gaps = (gap for gap in self._sensors.gaps if this_machine.gpus or gap not in this_machine.gaps)
        own_gaps = (*self._marks.gaps, *self._stalls.gaps, *self._memory.own_gaps, *self._spool.gaps)
        recording = Recording(
            level=self.level,
            windows_ns=tuple((start - began_ns, end - began_ns) for start, end in self._tracing.windows.spans_ns),
            pauses_ns=tuple((start - began_ns, end - began_ns) for start, end in self._all_pauses()),
            activities=activities,
            options=LEVELS[self.level],
            left_out=(*self._gaps, *self._tracing.gaps, *own_gaps, *sensor_gaps),
        )
        return replace(run, recording=recording)

    def _describe_machine(self) -> None:
        """Describe the machine before the recorded code runs: it takes milliseconds."""
        self._machine = self._guard.call("the machine", describe_machine, Machine())

    def _begin_spool(self) -> None:
        tables = (self._marks.new_rows, self._sensors.new_rows, self._stalls.new_rows, self.phases.new_rows)
        self._spool.begin(self._began_ns, tables, self._recording_state, self._machine)

    def _recording_state(self) -> RecordingState:
        """What the spool keeps beside the tables; called in the sampler's thread."""
        open_ns = self._tracing.open_window_ns
        open_windows = () if open_ns is None else ((open_ns, STILL_OPEN),)
        return RecordingState(
            phase=self._phase(),
            windows_ns=(*self._tracing.spans_ns, *open_windows),
            pauses_ns=(*self._pauses, *self._tracing.pauses),
            gaps=(*self._gaps, *self._tracing.gaps, *self._marks.gaps),
            loaders=tuple(self._marks.loaders),
            models=tuple(self._marks.models),
            optimizers=tuple(self._marks.optimizers),
            frozen_models=self._marks.frozen.models,
            **vars(self._marks.modules.results),
            discarded_gradients=self._marks.gradients.discarded,
            facts=self._facts,
            open_phases=self.phases.open_phases,
        )

    def _all_pauses(self) -> list[tuple[int, int]]:
        """When gpulab blocked the main thread, and the time whose step marks are missing: no step contains either."""
        missing = self._marks.buffer.missing_span_ns
        return sorted(self._pauses + self._tracing.pauses + ([missing] if missing is not None else []))
