"""A recording on a GPU that is not there: within it CUDA code runs unmodified, and it becomes a Run."""

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

from gpulab.analysis.steps.detection import steps
from gpulab.capture.active_session import claim, release
from gpulab.capture.assembly import torch_facts
from gpulab.capture.live.snapshot import Live
from gpulab.capture.marks import Marks, Timer
from gpulab.capture.memory.watch import MemoryWatch
from gpulab.capture.run_registry import runs
from gpulab.errors import CaptureError, RunError
from gpulab.replay.graph.dependencies import QUEUE_FACT
from gpulab.run import Gpu, Machine, Recording, Run, Source
from gpulab.sensors import machine
from gpulab.virtual.clock import Clock
from gpulab.virtual.cost_model.kernel import OpClass
from gpulab.virtual.cost_model.uncertainty import step_ns, step_range_ns
from gpulab.virtual.device.counting import FACT, LEFT_OUT, NO_HOST, CountingDevice, announcement
from gpulab.virtual.device.device import FakeDevice
from gpulab.virtual.host.costs import Host, calibrated
from gpulab.virtual.host.garbage import collected_between_steps, set_aside
from gpulab.virtual.loading.arrivals import Arrivals
from gpulab.virtual.loading.hooks import watched
from gpulab.virtual.memory_fit.cpu_share import FromHost, from_host
from gpulab.virtual.op_log.events import MAIN, THREADS
from gpulab.virtual.op_log.memory import LoggedMemory
from gpulab.virtual.op_log.ops import ASSUMED, STEP_HIGH, STEP_LOW, Assumption, Record, Stepped
from gpulab.virtual.selftest.run import playable
from gpulab.virtual.specs import spec

KEPT = 3  # steps whose records are kept: the last two whole ones, and what came since
TICK_S = 0.25
SETTLING = 3  # steps


class VirtualGpu:
    """A recording on a GPU that is not there, from `start()` to `stop()`, or as a `with` block: see `virtual_gpu`."""

    def __init__(
        self,
        gpu: str,
        name: str | None = None,
        *,
        steps: int | None = None,
        shelved: bool = True,
        host: Host | None = None,
        on_tick: Callable[[Live], None] | None = None,
    ) -> None:
        self.spec = spec(gpu)
        if steps is not None and steps < 1:
            raise CaptureError(f"Cannot record {steps} steps.", why="at least one is needed", fix="leave steps out")
        self._steps, self._shelved = steps, shelved
        self.name = name or runs.free_name()
        self.run: Run | None = None
        self._host = host
        self._on_tick = on_tick
        self._exit = contextlib.ExitStack()
        self._tape: deque[list[Record]] = deque([[]], maxlen=KEPT)
        self._marked = False  # the program says itself what is to be timed

    def __enter__(self) -> VirtualGpu:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error)

    def start(self) -> None:
        """From here on torch.cuda is this GPU."""
        told = playable()
        self._counted = "" if told.ok else told.why
        if self._counted:
            warnings.warn(announcement(self._counted), stacklevel=3)
        self._host_used = NO_HOST if self._counted else self._host or calibrated()
        self._began_ns = time.time_ns()
        self._clock = self._timing(self._host_used, {})
        self._begins_ns: list[int] = []  # of steps
        self.memory = LoggedMemory(self.spec, self._clock)
        self._watch = MemoryWatch(self.memory, lambda address: self._device.storages.counts(address))
        cpu = lambda: int(self._clock.cpu_ns)  # noqa: E731
        self._marks = Marks(self._boundary, Timer(lambda: self._clock.now_ns, cpu, cpu))
        device = CountingDevice if self._counted else FakeDevice
        self._device: FakeDevice | CountingDevice = device(self.spec, self._take, self.memory, self._clock)
        claim(self)
        try:
            self._exit.callback(release)
            self._collect = self._exit.enter_context(collected_between_steps())
            self._exit.enter_context(self._device)
            self._loading = self._exit.enter_context(watched(self._fetched, self._off, self._not_the_programs))
            self._marks.install()
            self._exit.callback(self._marks.remove)
            self._watch.begin()
            self._exit.enter_context(set_aside())
            if self._on_tick is not None:
                self._exit.enter_context(_ticking(self._tick))
        except BaseException:
            self._exit.close()
            raise

    def stop(self, error: BaseException | None = None) -> Run:
        """Torch is as it was before; gives the Run, and keeps it in `gpulab.runs` unless it is not to be shelved."""
        try:
            failure, holders = self._watch.ended_by(error)
            range_fracs = self._range()
            facts = {
                **torch_facts(),
                QUEUE_FACT: str(self._clock.queue),
                "host": str(self._host_used),
                **({FACT: f"{self._counted}; {LEFT_OUT}"} if self._counted else {}),
                **{ASSUMED + each.what: _told(each) for each in self.assumptions},
            }
        finally:
            self._exit.close()
        run = self._assembled(error, facts)
        typical_ns = steps(run).step_ns
        if range_fracs is not None and typical_ns is not None:
            low, high = (str(round(frac * typical_ns)) for frac in range_fracs)
            run = replace(run, facts={**run.facts, STEP_LOW: low, STEP_HIGH: high})
        self.run = replace(run, failure=failure, holder_rows=holders)
        if self._shelved:
            runs.add(self.run)
        return self.run

    def abandon(self) -> None:
        """End without making a run; harmless if it never started or has stopped."""
        self._exit.close()

    def mark_step(self) -> None:
        """The user says that a step ended here."""
        self._take(Stepped(said=True))
        self._marks.user_step()

    def mark(self) -> None:
        """What is to be timed begins here: the step told of is all that comes from now on."""
        self._marked = True
        self._device.recorder.own_ns()  # what the program did by itself before this is no part of it
        self._tape.append([])

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """What the program's way depends on and this GPU cannot tell, and what was taken for it."""
        return (*self._device.assumptions, *self._loading.assumptions)

    @property
    def step_ns(self) -> float:
        """What a step takes: the one since `mark()`, else the last whole one. Raises RunError before there is one."""
        return step_ns(self._last_steps(), self._timing, self._host_used, {})

    @property
    def step_range_ns(self) -> tuple[float, float]:
        """Between what that lies: P10 and P90."""
        return step_range_ns(self._last_steps(), self._timing, self._host_used)

    @property
    def from_host(self) -> FromHost:
        """What is timed takes from this machine's CPU."""
        return from_host(self._last_steps()[-1], self.spec)

    def _last_steps(self) -> list[list[Record]]:
        """What is timed, and what went before it."""
        steps = [step for step in self._tape if step]
        if not self._marked:
            steps = [step for step in steps if isinstance(step[-1], Stepped)]
        if not steps:
            raise RunError(
                "The virtual GPU has seen no whole step.",
                why="no optimizer stepped in it, and gpulab.step() was not called",
                fix="run at least one step; call gpulab.step() at its end where there is no optimizer",
            )
        return steps[-2:]

    def _range(self) -> tuple[float, float] | None:
        """Between what shares of it the last step lies, and with it any other, for whoever shows the run."""
        if self._marked or not any(step and isinstance(step[-1], Stepped) for step in self._tape):
            return None  # who marked what is to be timed asks for it
        low, high = self.step_range_ns
        return low / self.step_ns, high / self.step_ns

    def _timing(self, host: Host, scale: Mapping[OpClass, float]) -> Clock:
        return Clock(self.spec, host, self._feeding, scale)

    def _take(self, record: Record) -> None:
        self._clock.take(record)
        self._tape[-1].append(record)
        if isinstance(record, Stepped) and not self._marked:
            self._tape.append([])

    def _fetched(self, record: Record) -> None:
        self._take(replace(record, python_ns=self._device.recorder.own_ns()))

    def _feeding(self, loader: int) -> Arrivals:
        known = self._marks.loaders[loader] if loader < len(self._marks.loaders) else None
        where = machine()
        workers = known.workers or 0 if known else 0
        return Arrivals(workers, known.prefetch_factor if known else None, where.cores_allowed)

    def _boundary(self, known_steps: int | None) -> None:
        self._begins_ns.append(self._clock.now_ns)
        with self._not_the_programs():
            self._collect()
            self._watch.boundary(self._marks.steps, sys._getframe())

    @contextlib.contextmanager
    def _not_the_programs(self) -> Iterator[None]:
        """What passes inside is no time of the program's own."""
        self._device.recorder.entered()
        try:
            yield
        finally:
            self._device.recorder.left()

    @contextlib.contextmanager
    def _off(self) -> Iterator[None]:
        """For as long as a DataLoader works for real: PyTorch as it is."""
        import torch
        from torch.utils._python_dispatch import _disable_current_modes

        with self._not_the_programs(), torch._C.DisableTorchFunction(), _disable_current_modes():
            yield

    def _tick(self) -> None:
        assert self._on_tick is not None
        elapsed_s = (time.time_ns() - self._began_ns) / 1e9
        steps = self._marks.steps
        self._on_tick(
            Live(
                phase=f"virtual {self.spec.name}",
                elapsed_s=elapsed_s,
                steps=steps,
                steps_per_s=steps / elapsed_s if steps > 1 else None,
                waiting_frac=None,
                gpus=(),
                core_fracs=(),
                rss_bytes=None,
                workers=len(self._marks.worker_pids),
                frame=None,
            )
        )

    def _assembled(self, error: BaseException | None, facts: dict[str, str]) -> Run:
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
            allocator_rows=self._watch.allocator_rows(0),
            **self._clock.log.tables(0),
        )

    def _window_ns(self, span_ns: int) -> tuple[int, int]:
        """The steps that count: those as in a long loop, as the first ones find the GPU without a queue of work.

        Where a number of them was asked for, so many; of a short loop, its first ones among them.
        """
        begins = self._begins_ns
        first = SETTLING if len(begins) >= 2 * SETTLING else 0
        if self._steps is not None and len(begins) > 1:
            first = max(0, min(first, len(begins) - 1 - self._steps))
            return begins[first], begins[min(first + self._steps, len(begins) - 1)]
        return begins[first] if first else 0, span_ns

    def _machine(self) -> Machine:
        peaks, (major, minor) = self.spec.peaks, self.spec.compute_capability
        gpu = Gpu(
            index=0,
            name=self.spec.driver_name,
            memory_bytes=self.spec.usable_bytes,
            multiprocessors=self.spec.multiprocessors,
            compute_capability=f"{major}.{minor}",
            power_limit_w=float(peaks.power_w),
            power_default_w=float(peaks.power_w),
            sm_clock_max_mhz=float(self.spec.sm_clock_mhz),
        )
        return replace(machine(), gpus=(gpu,), gaps=())


def virtual_gpu(gpu: str, name: str | None = None, *, steps: int | None = None) -> VirtualGpu:
    """A GPU to run CUDA code on where there is none: `with gpulab.virtual_gpu("h100") as gpu: train()`.

    Within the block torch.cuda is this GPU; ordinary CUDA code runs unmodified, on tensors without numbers, and the
    time, the kernels and the memory that it would take are estimated. DataLoaders run for real, and are measured.
    Afterwards torch is as it was, and the run is `gpu.run`, and `gpulab.runs[name]`: for report, compare, whatif.
    `steps`: how many steps count as recorded, once the loop has settled; all of these if left out.
    Raises RunError for a GPU that is not known (gpulab.virtual.specs lists them), CaptureError where another recording
    is on or this version of PyTorch cannot be played to.
    """
    return VirtualGpu(gpu, name, steps=steps)


def _told(assumption: Assumption) -> str:
    return f"{assumption.taken}, {assumption.times} times" if assumption.times > 1 else assumption.taken


@contextlib.contextmanager
def _ticking(tick: Callable[[], None]) -> Iterator[None]:
    """Call this several times a second, in a thread of its own."""
    over = threading.Event()

    def loop() -> None:
        while not over.wait(TICK_S):
            tick()

    thread = threading.Thread(target=loop, name="gpulab virtual", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
