"""Record a program on a virtual GPU: CUDA code runs unmodified without a GPU, and the recording becomes a Run."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import TracebackType

from gpulab.analysis.steps.detection import find_steps
from gpulab.capture.active_session import activate, deactivate
from gpulab.capture.hooks.loader_hooks import MarkClocks, StepMarks
from gpulab.capture.hooks.phase_recorder import PhaseRecorder
from gpulab.capture.live.snapshot import LiveSnapshot
from gpulab.capture.memory.memory_watch import MemoryWatch
from gpulab.capture.merge_traces import torch_settings
from gpulab.capture.run_registry import runs
from gpulab.deferred_signals import DeferredSignals
from gpulab.errors import CaptureError, RunError
from gpulab.hardware.lookup import resolve
from gpulab.replay.graph.dependencies import QUEUE_FACT
from gpulab.run import Gpu, Machine, Recording, Run, Source
from gpulab.sensors import describe_machine
from gpulab.virtual.clock import VirtualClock
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.uncertainty import step_ns, step_range_ns
from gpulab.virtual.device.counting_device import COUNTED_FACT, LIMITATIONS, NO_HOST, CountingDevice, fallback_warning
from gpulab.virtual.device.fake_device import FakeDevice
from gpulab.virtual.host.costs import HostCosts, calibrated_host
from gpulab.virtual.host.garbage import gc_between_steps, gc_frozen
from gpulab.virtual.live_state import VirtualLiveState
from gpulab.virtual.loading.arrivals import BatchArrivals
from gpulab.virtual.loading.hooks import log_batches
from gpulab.virtual.memory_fit.host_work import HostWork, sum_host_work
from gpulab.virtual.op_log.events import MAIN, THREADS
from gpulab.virtual.op_log.logged_memory import LoggedMemory
from gpulab.virtual.op_log.ops import ASSUMED_PREFIX, STEP_HIGH_FACT, STEP_LOW_FACT, Assumption, Record, StepEnd
from gpulab.virtual.self_test.run import selftest_result

LOGGED_STEPS = 3  # steps whose records stay in memory: the last two complete ones and the current one
TICK_S = 0.25
QUEUE_WARM_UP_STEPS = 3  # warm-up steps: the first ones find an empty launch queue


class VirtualGpu:
    """A recording on a virtual GPU, from `start()` to `stop()` or as a `with` block: see `virtual_gpu`."""

    def __init__(
        self,
        gpu: str,
        name: str | None = None,
        *,
        steps: int | None = None,
        add_to_runs: bool = True,
        host: HostCosts | None = None,
        on_tick: Callable[[LiveSnapshot], None] | None = None,
    ) -> None:
        self.spec = resolve(gpu)
        if steps is not None and steps < 1:
            raise CaptureError(
                f"Cannot record {steps} steps.",
                why="`steps` must be at least 1",
                fix="leave `steps` out to record all steps",
            )
        self._steps, self._shelved = steps, add_to_runs
        self.name = name or runs.free_name()
        self.run: Run | None = None
        self._host = host
        self._on_tick = on_tick
        self._exit = contextlib.ExitStack()
        self._op_log: deque[list[Record]] = deque([[]], maxlen=LOGGED_STEPS)
        self._marked = False  # `mark()` was called: the timed step starts there

    def __enter__(self) -> VirtualGpu:
        try:
            self.start()
            return self
        except BaseException:
            self.abandon()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop(error)
        except BaseException:  # an interrupt before `stop` began to restore torch
            self.abandon()
            raise

    def start(self) -> None:
        """Replace torch.cuda by the virtual GPU and start recording."""
        selftest = selftest_result()
        self._counted = "" if selftest.ok else selftest.why
        if self._counted:
            warnings.warn(fallback_warning(self._counted), stacklevel=3)
        self._host_used = NO_HOST if self._counted else self._host or calibrated_host()
        self._began_ns = time.time_ns()
        self._clock = self._timing(self._host_used, {})
        self._step_starts_ns: list[int] = []
        self.memory = LoggedMemory(self.spec, self._clock)
        self._watch = MemoryWatch(self.memory, lambda address: self._device.storages.has_memory(address))
        cpu = lambda: int(self._clock.cpu_ns)  # noqa: E731
        self._marks = StepMarks(self._start_step, MarkClocks(lambda: self._clock.now_ns, cpu, cpu))
        device = CountingDevice if self._counted else FakeDevice
        self._device: FakeDevice | CountingDevice = device(self.spec, self._take, self.memory, self._clock)
        with DeferredSignals() as signals:
            try:
                self._install()
                signals.deliver()
            except BaseException:
                self._exit.close()
                raise

    def _install(self) -> None:
        """Patch torch until `_exit` is closed."""
        activate(self)
        self._exit.callback(deactivate)
        self._collect = self._exit.enter_context(gc_between_steps())
        self._exit.enter_context(self._device)
        self._loading = self._exit.enter_context(
            log_batches(self._take_fetch, self._plain_torch, self._outside_program, self._marks.samplers)
        )
        self._marks.install()
        self._exit.callback(self._marks.remove)
        self._watch.begin()
        self._exit.enter_context(gc_frozen())
        if self._on_tick is not None:
            self._live = VirtualLiveState(self._machine().gpus[0], self._clock, self.memory, self._marks)
            self._exit.enter_context(_ticker(self._tick))

    def stop(self, error: BaseException | None = None) -> Run:
        """Restore torch and return the Run; unless `add_to_runs` is False, also add it to `gpulab.runs`."""
        try:
            failure, holders = self._watch.finish(error)
            range_fracs = self._range_fracs()
            facts = {
                **torch_settings(),
                QUEUE_FACT: str(self._clock.queue_length),
                "host": str(self._host_used),
                **({COUNTED_FACT: f"{self._counted}; {LIMITATIONS}"} if self._counted else {}),
                **{ASSUMED_PREFIX + each.subject: _assumption_text(each) for each in self.assumptions},
            }
        finally:
            self.abandon()
        run = self._build_run(error, facts)
        typical_ns = find_steps(run).step_ns
        if range_fracs is not None and typical_ns is not None:
            low, high = (str(round(frac * typical_ns)) for frac in range_fracs)
            run = replace(run, facts={**run.facts, STEP_LOW_FACT: low, STEP_HIGH_FACT: high})
        self.run = replace(run, failure=failure, holder_rows=holders)
        if self._shelved:
            runs.add(self.run)
        return self.run

    def abandon(self) -> None:
        """End without a run; does nothing if the recording never started or has stopped."""
        with DeferredSignals():
            self._exit.close()

    def mark_step(self) -> None:
        """End a step here, as gpulab.step() asks."""
        self._take(StepEnd(by_user=True))
        self._marks.user_step()

    @property
    def phases(self) -> PhaseRecorder:
        """The phases that the program names, in virtual time."""
        return self._marks.phases

    def mark(self) -> None:
        """Start the timed step here: `step_ns` then covers everything that follows."""
        self._marked = True
        self._device.recorder.take_python_ns()  # drop the Python time before the mark
        self._op_log.append([])

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Values that the program read and the virtual GPU cannot know, with the values assumed."""
        return (*self._device.assumptions, *self._loading.assumptions)

    @property
    def step_ns(self) -> float:
        """Predicted time of the step since `mark()`, or else of the last complete step.

        Raises RunError if no step is complete.
        """
        return step_ns(self._last_steps(), self._timing, self._host_used, {})

    @property
    def step_range_ns(self) -> tuple[float, float]:
        """Uncertainty of `step_ns`: its 10th and 90th percentiles."""
        return step_range_ns(self._last_steps(), self._timing, self._host_used)

    @property
    def host_work(self) -> HostWork:
        """How much of the timed step depends on this machine's CPU and host memory."""
        return sum_host_work(self._last_steps()[-1], self.spec)

    def _last_steps(self) -> list[list[Record]]:
        """Return the records of the timed step, and before them those of the previous step if there is one."""
        steps = [step for step in self._op_log if step]
        if not self._marked:
            steps = [step for step in steps if isinstance(step[-1], StepEnd)]
        if not steps:
            raise RunError(
                "The virtual GPU has recorded no complete step.",
                why="no optimizer ran step(), and gpulab.step() was not called",
                fix="run at least one step; without an optimizer, call gpulab.step() at the end of each step",
            )
        return steps[-2:]

    def _range_fracs(self) -> tuple[float, float] | None:
        """Return P10 and P90 of the step time as fractions of it, for the report; None if `mark()` is used."""
        if self._marked or not any(step and isinstance(step[-1], StepEnd) for step in self._op_log):
            return None  # callers that use mark() read step_range_ns themselves
        low, high = self.step_range_ns
        return low / self.step_ns, high / self.step_ns

    def _timing(self, host: HostCosts, scale: Mapping[OpClass, float]) -> VirtualClock:
        return VirtualClock(self.spec, host, self._loader_arrivals, scale)

    def _take(self, record: Record) -> None:
        self._clock.process(record)
        self._op_log[-1].append(record)
        if isinstance(record, StepEnd) and not self._marked:
            self._op_log.append([])

    def _take_fetch(self, record: Record) -> None:
        self._device.recorder.loops.progress()
        self._take(replace(record, python_ns=self._device.recorder.take_python_ns()))

    def _loader_arrivals(self, loader: int) -> BatchArrivals:
        facts = self._marks.loaders[loader] if loader < len(self._marks.loaders) else None
        host = _describe_machine()
        workers = facts.workers or 0 if facts else 0
        return BatchArrivals(workers, facts.prefetch_factor if facts else None, host.cores_allowed)

    def _start_step(self, known_steps: int | None) -> None:
        self._step_starts_ns.append(self._clock.now_ns)
        with self._outside_program():
            self._collect()
            self._watch.boundary(self._marks.steps, sys._getframe())

    @contextlib.contextmanager
    def _outside_program(self) -> Iterator[None]:
        """Do not count the time inside this block as the program's Python time."""
        self._device.recorder.entered()
        try:
            yield
        finally:
            self._device.recorder.left()

    @contextlib.contextmanager
    def _plain_torch(self) -> Iterator[None]:
        """Run the block with plain PyTorch: DataLoaders run for real."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with self._outside_program(), torch._C.DisableTorchFunction(), _disable_current_modes():
            yield

    def _tick(self) -> None:
        assert self._on_tick is not None
        self._on_tick(self._live.snapshot((time.time_ns() - self._began_ns) / 1e9))

    def _build_run(self, error: BaseException | None, facts: dict[str, str]) -> Run:
        span_ns = max(self._clock.now_ns, self._clock.device_done_ns)
        return Run(
            name=self.name,
            source=Source(how="virtual", device=self.spec.name),
            machine=self._machine(),
            span_ns=span_ns,
            began_ns=self._began_ns,
            outcome="ok" if error is None else type(error).__name__,
            loaders=tuple(self._marks.loaders),
            models=tuple(self._marks.models),
            optimizers=tuple(self._marks.optimizers),
            threads=THREADS,
            main_thread=MAIN,
            facts=facts,
            recording=Recording(
                windows_ns=(self._window_ns(span_ns),),
                activities=("cpu", "cuda"),
                options=("record_shapes", "profile_memory", "enable_cuda_sync_events"),
                left_out=tuple(self._marks.gaps) + tuple(self._watch.gaps),
            ),
            mark_rows=self._marks.rows(0),
            phase_rows=self.phases.rows(0, span_ns),
            allocator_rows=self._watch.allocator_rows(0),
            **self._clock.log.tables(0),
        )

    def _window_ns(self, span_ns: int) -> tuple[int, int]:
        """Return start and end of the recorded steps.

        Leaves out the first `QUEUE_WARM_UP_STEPS` steps if the run has at least twice as many: they find an empty
        launch queue, unlike steps of a long loop. If `steps` was given, that many are recorded, including the first
        ones if needed.
        """
        starts = self._step_starts_ns
        first = QUEUE_WARM_UP_STEPS if len(starts) >= 2 * QUEUE_WARM_UP_STEPS else 0
        if self._steps is not None and len(starts) > 1:
            first = max(0, min(first, len(starts) - 1 - self._steps))
            return starts[first], starts[min(first + self._steps, len(starts) - 1)]
        return starts[first] if first else 0, span_ns

    def _machine(self) -> Machine:
        gpu = Gpu(
            index=0,
            name=self.spec.driver_name,
            memory_bytes=self.spec.usable_bytes,
            multiprocessors=self.spec.multiprocessors,
            compute_capability=self.spec.compute_capability,
            power_limit_w=float(self.spec.power_limit_w),
            power_default_w=float(self.spec.power_limit_w),
            sm_clock_max_mhz=float(self.spec.sm_clock_mhz),
        )
        return replace(_describe_machine(), gpus=(gpu,), gaps=())


def _describe_machine() -> Machine:
    """Describe this machine; importlib.metadata would swallow an exception of a signal handler."""
    with DeferredSignals(again=True):
        return describe_machine()


def virtual_gpu(gpu: str, name: str | None = None, *, steps: int | None = None) -> VirtualGpu:
    """Run CUDA code without a GPU: `with gpulab.virtual_gpu("h100") as gpu: train()`.

    Inside the block torch.cuda is the virtual GPU. Ordinary CUDA code runs unmodified, on tensors with sizes but no
    values; its time, kernels and memory are estimated. DataLoaders run for real and are timed. After the block torch
    is restored, and the run is `gpu.run` and `gpulab.runs[name]`, ready for report, compare and whatif.
    `steps`: the number of steps to record after warm-up; by default all of them.
    Raises RunError if the GPU is unknown (gpulab.hardware.gpus lists them), and CaptureError if another recording is
    active or the virtual GPU does not work with the installed PyTorch.
    """
    return VirtualGpu(gpu, name, steps=steps)


def _assumption_text(assumption: Assumption) -> str:
    return f"{assumption.value}, {assumption.count} times" if assumption.count > 1 else assumption.value


@contextlib.contextmanager
def _ticker(tick: Callable[[], None]) -> Iterator[None]:
    """Call `tick` every `TICK_S` seconds in a background thread, and once more at the end."""
    stopped = threading.Event()

    def loop() -> None:
        while not stopped.wait(TICK_S):
            tick()
        tick()

    thread = threading.Thread(target=loop, name="gpulab virtual", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()
