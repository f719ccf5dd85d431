"""A recording not finished: it starts, it watches, it stops, and it becomes a Run."""

from __future__ import annotations

import contextlib
import datetime
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace

from gpulab.capture.active_session import claim, release
from gpulab.capture.assembly import merged, missing_gpu_work, torch_facts
from gpulab.capture.gc_and_compilation import Stalls
from gpulab.capture.live.activity import Pulse
from gpulab.capture.live.snapshot import Live
from gpulab.capture.live.workers import WorkersNow
from gpulab.capture.main_thread import PendingCall
from gpulab.capture.marks import Marks
from gpulab.capture.memory.watch import MemoryWatch
from gpulab.capture.plan import Act, Limits, Phase, Plan
from gpulab.capture.profiler import Stretch, someone_profiles, stepping_aside
from gpulab.capture.run_registry import runs
from gpulab.errors import CaptureError
from gpulab.rows import Rows
from gpulab.run import Gap, Recording, Run, Source
from gpulab.sensors import Sensors, machine
from gpulab.sensors.readings import PERIOD_NS

LEVELS = {
    "sensors": (),
    "trace": (),
    "deep": ("with_stack", "record_shapes", "profile_memory"),
}


class Session:
    """Records from `start()` to `stop()`; `stop` gives the Run and keeps it in `gpulab.runs`.

    Start and stop in the thread whose work is to be recorded. Raises CaptureError where recording cannot start.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        level: str = "trace",
        steps: int | None = None,
        on_tick: Callable[[Live], None] | None = None,
        period_ns: int = PERIOD_NS,
    ) -> None:
        if level not in LEVELS:
            raise CaptureError(
                f"There is no level {level!r}.",
                why=f"the levels are {', '.join(LEVELS)}",
                fix="leave the level out for the usual one, trace",
            )
        if steps is not None and steps < 1:
            raise CaptureError(f"Cannot record {steps} steps.", why="at least one is needed", fix="leave steps out")
        self.name = name or runs.free_name()
        self.level = level
        self.run: Run | None = None
        self._plan = Plan(Limits(steps=steps))
        self._marks = Marks(self._boundary)
        self._stalls = Stalls()
        self._memory = MemoryWatch()
        self._sensors = Sensors(lambda: self._marks.worker_pids, self._tick, period_ns=period_ns)
        self._pulse, self._workers_now = Pulse(), WorkersNow()
        self._on_tick = on_tick
        self._stretches: list[Stretch] = []
        self._stretch: Stretch | None = None
        self._windows: list[tuple[int, int]] = []
        self._pauses: list[tuple[int, int]] = []
        self._left_out: list[Gap] = []
        self._recent: deque[tuple[int, int]] = deque(maxlen=64)
        self._late_stop = PendingCall(self._stop_late)
        self._exit = contextlib.ExitStack()
        self._began_ns = self._window_ns = 0
        self._processing = False
        self._facts: dict[str, str] = {}

    def start(self) -> None:
        """Begin: hooks, sensors, and the profiler unless the level is "sensors"."""
        claim(self)
        try:
            self._exit.callback(release)
            self._stalls.install()
            self._exit.callback(self._stalls.remove)
            self._prepare_torch()
            self._memory.begin()
            if self._stretch is not None:
                # Before it starts: a Ctrl-C may come in the midst of starting.
                self._exit.callback(self._drop_stretch)
                self._stretch.start()
            self._began_ns = self._window_ns = time.time_ns()
            self._plan.begin(self._began_ns)
            # Last, as every tick asks the plan: before it has begun there is nothing it could answer.
            self._sensors.start()
            self._exit.callback(self._sensors.stop)
        except BaseException:
            self._exit.close()
            raise

    def stop(self, error: BaseException | None = None) -> Run:
        """End, take every hook away, and give the Run; `error` is what ended the recorded code, if anything did."""
        ended_ns = time.time_ns()
        self._processing = True
        self._late_stop.cancel()
        try:
            self._stop_profiler()
        finally:
            self._exit.close()
        self.run = self._assembled(ended_ns, error)
        runs.add(self.run)
        return self.run

    def abandon(self) -> None:
        """End and take every hook away without making a run; harmless if it never started or has stopped."""
        self._late_stop.cancel()
        self._exit.close()

    def live(self) -> Live:
        """The state at this moment; any thread may ask."""
        now_ns = time.time_ns()
        marks, sensed = self._marks, self._sensors.now()
        beat = self._pulse.look(now_ns, marks, sensed.gpus)
        self._recent.append((now_ns, marks.steps))
        return Live(
            phase="processing" if self._processing else self._phase(),
            elapsed_s=(now_ns - self._began_ns) / 1e9,
            steps=marks.steps,
            steps_per_s=self._rate(),
            gpus=sensed.gpus,
            core_fracs=sensed.core_fracs,
            rss_bytes=sensed.rss_bytes,
            workers=sensed.workers or 0,
            frame=sensed.frame,
            workers_now=self._workers_now.look(now_ns, marks.worker_pids),
            **vars(beat),
        )

    def mark_step(self) -> None:
        """The user says that a step ended here."""
        self._marks.user_step()

    def _phase(self) -> str:
        return "sensors only" if self.level == "sensors" else self._plan.phase.value

    def _rate(self) -> float | None:
        newest_ns, steps = self._recent[-1]
        oldest = next(((at, n) for at, n in self._recent if newest_ns - at <= 2_000_000_000), None)
        if oldest is None or newest_ns == oldest[0] or steps < 2:
            return None
        return (steps - oldest[1]) / ((newest_ns - oldest[0]) / 1e9)

    def _prepare_torch(self) -> None:
        """Hook torch and make the profiler ready; without torch, or with another profiler on, sensors only."""
        try:
            import torch  # noqa: F401  (is it there?)
        except ImportError:
            self._leave_out("operators, kernels and steps", "PyTorch is not installed", "pip install torch")
            return
        self._marks.install()
        self._exit.callback(self._marks.remove)
        if self.level == "sensors":
            return
        if someone_profiles():
            self._plan.give_up(0)
            self._leave_out(
                "operators and kernels",
                "another PyTorch profiler was already running, and two cannot record at once",
                "stop it (profiler.stop(), or restart the kernel) and run the cell again",
            )
            return
        self._exit.enter_context(stepping_aside(self._step_aside))
        self._stretch = Stretch(LEVELS[self.level])

    def _boundary(self, known_steps: int | None) -> None:
        """A step begins, in the recorded thread. Nothing that fails here may reach the user's loop."""
        self._facts = self._facts or torch_facts()  # as they are in the loop: a function may set and restore them
        self._memory.boundary(self._marks.steps, sys._getframe())
        if self.level == "sensors" or self._plan.phase is Phase.DONE:
            return
        at_ns = time.time_ns()
        try:
            act = self._plan.boundary(at_ns, known_steps)
            if act is Act.STOP:
                self._stop_profiler()
                self._plan.events_per_step = self._events_per_step()
            elif act is Act.START and not someone_profiles():
                self._stretch = Stretch(LEVELS[self.level])
                self._stretch.start()
                self._window_ns = time.time_ns()
            if act is not Act.NONE:
                self._pauses.append((at_ns, time.time_ns()))
        except Exception as error:  # protects the user's training loop; the failure is reported as a gap
            self._failed(error)

    def _stop_profiler(self) -> None:
        if self._stretch is None:
            return
        stretch, self._stretch = self._stretch, None
        ended_ns = time.time_ns()
        if stretch.stop():
            self._stretches.append(stretch)
            self._windows.append((self._window_ns, ended_ns))
        else:
            self._plan.give_up(ended_ns)
            self._leave_out(
                "operators and kernels of part of the cell",
                "another PyTorch profiler, or one in the cell, took the recording over",
                "profile the cell without its own profiler",
            )

    def _step_aside(self) -> None:
        """The cell starts a profiler of its own: it has precedence."""
        if self._stretch is None:
            self._plan.give_up(time.time_ns())
            return
        at_ns = time.time_ns()
        self._plan.give_up(at_ns)
        self._stop_profiler()
        self._pauses.append((at_ns, time.time_ns()))
        self._leave_out(
            "operators and kernels after the cell started its own profiler",
            "two PyTorch profilers cannot record at once, and the cell's own has precedence",
            "take the profiler out of the cell",
        )

    def _events_per_step(self) -> float | None:
        if self._plan.phase is not Phase.WARMING or not self._stretches or self._marks.first_ns is None:
            return None
        return float(self._stretches[-1].events_since(self._marks.first_ns)) or None

    def _tick(self) -> None:
        """Several times a second, in the sampler's thread."""
        in_main = threading.main_thread().ident == self._marks.thread  # only there can a call be left pending
        if in_main and self._plan.tick(time.time_ns()) is Act.STOP:
            self._late_stop.request()
        if self._on_tick is not None:
            self._on_tick(self.live())

    def _stop_late(self) -> None:
        """No step came for long: stop recording here and now, in the main thread, between two bytecodes."""
        at_ns = time.time_ns()
        try:
            self._stop_profiler()
            self._pauses.append((at_ns, time.time_ns()))
        except Exception as error:  # protects the user's code, into the midst of which we were called
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._plan.give_up(time.time_ns())
        self._drop_stretch()
        self._leave_out("operators and kernels", f"recording failed: {error}", "please report this with the cell")

    def _drop_stretch(self) -> None:
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            stretch.abandon()

    def _leave_out(self, what: str, why: str, fix: str) -> None:
        self._left_out.append(Gap(what=what, why=why, fix=fix))

    def _assembled(self, ended_ns: int, error: BaseException | None) -> Run:
        where = machine()
        began_ns = self._began_ns
        failure, holder_rows = self._memory.ended_by(error)
        empty = Run(
            name=self.name,
            source=Source(how="measured", device=where.device, date=datetime.date.today().isoformat()),
            machine=where,
            span_ns=ended_ns - began_ns,
            began_ns=began_ns,
            outcome="ok" if error is None else type(error).__name__,
            failure=failure,
            holder_rows=holder_rows,
            allocator_rows=self._memory.allocator_rows(began_ns),
            loaders=tuple(self._marks.loaders),
            models=tuple(self._marks.models),
            optimizers=tuple(self._marks.optimizers),
            facts=self._facts or torch_facts(),
            mark_rows=self._marks.rows(began_ns),
            gpu_rows=_until(self._sensors.gpu_rows(began_ns, where.gpus), ended_ns - began_ns),
            host_rows=_until(self._sensors.host_rows(began_ns), ended_ns - began_ns),
            worker_rows=_until(self._sensors.worker_rows(began_ns), ended_ns - began_ns),
            stall_rows=self._stalls.rows(began_ns, ended_ns),
        )
        parts = []
        for stretch in self._stretches:
            try:
                parts.append(stretch.read(self.name))
            except CaptureError as problem:
                self._leave_out("operators and kernels", problem.why, problem.fix)
        activities = self._stretches[0].activities if self._stretches else ()
        run = merged(empty, parts)
        if (gap := missing_gpu_work(run, activities)) is not None:
            self._left_out.append(gap)
        # Without a GPU, why it cannot be asked is known of the machine already.
        sensor_gaps = (gap for gap in self._sensors.gaps if where.gpus or gap not in where.gaps)
        recording = Recording(
            level=self.level,
            windows_ns=tuple((start - began_ns, end - began_ns) for start, end in self._windows),
            pauses_ns=tuple((start - began_ns, end - began_ns) for start, end in self._pauses),
            activities=activities,
            options=LEVELS[self.level],
            left_out=(*self._left_out, *self._marks.gaps, *self._stalls.gaps, *self._memory.gaps, *sensor_gaps),
        )
        return replace(run, recording=recording)


def _until(samples: Rows, span_ns: int) -> Rows:
    """The samples of the run itself; the sampler takes one more when it stops."""
    return samples.where(samples["at_ns"] <= span_ns)


@contextlib.contextmanager
def profile(
    name: str | None = None,
    *,
    level: str = "trace",
    steps: int | None = None,
    on_tick: Callable[[Live], None] | None = None,
) -> Iterator[Session]:
    """Record a block: `with gpulab.profile("before") as session: ...`, then `session.run` or `gpulab.runs["before"]`.

    level: "sensors" (no profiler), "trace" (default) or "deep" (stacks, shapes, memory). steps: how many to record;
    by default as many as a verdict needs. An exception in the block goes on its way, and the run is kept.
    Raises CaptureError where recording cannot start.
    """
    session = Session(name, level=level, steps=steps, on_tick=on_tick)
    session.start()
    try:
        yield session
    except BaseException as error:
        session.stop(error)
        raise
    session.stop()
