"""Estimate one training step on a virtual GPU: its time, its memory, and its bottleneck.

A step is ordinary CUDA code that trains once. It is a function of the batch size or a function without parameters. It
may also only build the model and return the function that trains. It runs on a virtual GPU with unlimited memory, so
that its memory need is known even if it does not fit. The first step creates the optimizer state; the estimate is of
the second step.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from gc import collect as collect_garbage  # the original: a virtual GPU patches gc.collect to time it
from typing import Protocol

import numpy as np

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import resolve
from gpulab.run import Run
from gpulab.virtual.memory_fit.allocation_trace import AllocationTrace
from gpulab.virtual.memory_fit.host_work import HostWork
from gpulab.virtual.memory_fit.memory_peaks import MemoryUse, SimulatedMemory, non_torch_memory
from gpulab.virtual.op_log.ops import Assumption, Role

Step = Callable[..., object]
FITS, TIGHT, TOO_LARGE = "fits", "tight", "does not fit"
FITS_BELOW_FRAC = 0.9  # of a GPU's memory; above it a step fits only if the estimate misses nothing, so it is "tight"
POWER_FRACS = (0.5, 1.0)  # a working GPU draws 50 to 100 % of the range from idle power to its limit, by kind of work

# Ledger parts by what limits the step.
BOTTLENECKS: Mapping[str, tuple[str, ...]] = {
    "arithmetic": ("matmul",),
    "memory bandwidth": ("kernels",),
    "copies": ("copies", "communication"),
    "data": ("loader",),
    "host": ("alloc", "sync", "copy_call", "launch", "runtime", "dispatch", "glue", "python"),
}

GPU_BOTTLENECKS = ("arithmetic", "memory bandwidth", "copies")


class VirtualGpuLike(Protocol):
    """A virtual GPU that can run and time a step."""

    @property
    def memory(self) -> SimulatedMemory:
        """The simulated GPU memory."""

    def mark(self) -> None:
        """Start timing here."""

    @property
    def step_ns(self) -> float:
        """Time from the last mark until all work requested since then is done."""

    @property
    def step_range_ns(self) -> tuple[float, float]:
        """Uncertainty range of `step_ns`: low, high."""

    @property
    def host_work(self) -> HostWork:
        """Copies from this machine's memory and work on this machine's CPU."""

    @property
    def assumptions(self) -> tuple[Assumption, ...]:
        """Values assumed in place of unknown ones."""

    @property
    def run(self) -> Run | None:
        """The recorded run; None until the GPU is stopped."""

    def start(self) -> None:
        """Make torch.cuda this GPU."""

    def stop(self) -> object:
        """Restore torch and build the run."""

    def abandon(self) -> None:
        """Restore torch without building a run, which is faster."""


GpuFactory = Callable[[str], VirtualGpuLike]


@dataclass(frozen=True, kw_only=True)
class StepEstimate:
    """Estimate of one step on one virtual GPU."""

    spec: GpuSpec
    batch: int | None  # batch size; None if unknown, and then rates count steps
    step_ns: float
    step_range_ns: tuple[float, float] | None  # uncertainty range of step_ns; None if not computed
    peak: MemoryUse  # memory in use at the peak
    phases: tuple[MemoryUse, ...]  # memory in use at the peak of each phase
    reserved_bytes: int  # peak reserved by PyTorch's allocator
    non_torch_bytes: int  # allowances for memory that is not tensors
    usable_bytes: int
    rebuilds_model: bool = False  # the step builds its model every time; its time includes that
    added_state_bytes: int = (
        0  # optimizer state added to the peak, because a rebuilt model does not have it at the peak
    )
    retries: int = 0  # times the allocator had to release its whole cache to fit an allocation
    oom_count: int = 0  # allocations that did not fit even then; they were served all the same
    shares: Mapping[str, float] = field(default_factory=dict)  # of the step time, by LIMITS; empty if unknown
    assumptions: tuple[Assumption, ...] = ()
    host_work: HostWork = field(default_factory=HostWork)

    @property
    def needed_bytes(self) -> int:
        """Reserved memory plus the allowances."""
        return self.reserved_bytes + self.non_torch_bytes

    @property
    def used_frac(self) -> float:
        """Needed memory as a fraction of the GPU's memory; above 1 if the GPU is too small."""
        return self.needed_bytes / self.usable_bytes

    @property
    def fits_only_with_retries(self) -> bool:
        """Whether the step fits only because the allocator releases its cache again and again."""
        return self.retries > 0 and self.verdict != TOO_LARGE

    @property
    def verdict(self) -> str:
        """FITS, TIGHT or TOO_LARGE; a word, because the estimate is not exact to the last percent."""
        if self.oom_count or self.used_frac > 1:
            return TOO_LARGE
        return TIGHT if self.retries or self.used_frac > FITS_BELOW_FRAC else FITS

    @property
    def per_s(self) -> float:
        """Samples per second; steps per second if the batch size is unknown."""
        return self.samples / self.step_ns * 1e9

    @property
    def per_s_range(self) -> tuple[float, float] | None:
        """Uncertainty range of `per_s`: slowest, fastest."""
        return (
            None
            if self.step_range_ns is None
            else (self.samples / self.step_range_ns[1] * 1e9, self.samples / self.step_range_ns[0] * 1e9)
        )

    @property
    def samples(self) -> int:
        """Samples per step; 1 if the batch size is unknown."""
        return self.batch or 1

    @property
    def busy_frac(self) -> float | None:
        """Fraction of the step time in which the GPU works; None if unknown."""
        return sum(self.shares[each] for each in GPU_BOTTLENECKS) if self.shares else None

    @property
    def bottleneck(self) -> str | None:
        """The bottleneck, one of LIMITS; None if unknown.

        The largest share of the GPU's work if the GPU is busy at least half of the time, else the largest cause of
        waiting.
        """
        if self.busy_frac is None:
            return None
        busy = self.busy_frac >= 0.5
        return max(
            (each for each in BOTTLENECKS if (each in GPU_BOTTLENECKS) == busy), key=lambda each: self.shares[each]
        )

    @property
    def joules_range(self) -> tuple[float, float] | None:
        """Energy per step in joules, low and high; None if unknown.

        Assumes idle power while the GPU waits, and POWER_FRACS of the range up to its limit while it works.
        """
        if self.busy_frac is None or self.step_range_ns is None:
            return None
        above_w = (self.spec.power_limit_w - self.spec.idle_w) * self.busy_frac
        watts = [self.spec.idle_w + frac * above_w for frac in POWER_FRACS]
        return watts[0] * self.step_range_ns[0] / 1e9, watts[1] * self.step_range_ns[1] / 1e9


def estimate_step(step: Step, gpu: str, batch: int | None = None, *, gpu_factory: GpuFactory) -> StepEstimate:
    """Estimate a step once the optimizer has its state.

    Raises whatever the step raises, and RunError if the GPU is not known.
    """
    spec = resolve(gpu)
    with unlimited_gpu(gpu_factory, spec, build_run=True) as virtual_gpu:
        estimate = count_first_step_failures(
            virtual_gpu, estimate_next_step(virtual_gpu, spec, run_first_step(step, batch), batch)
        )
    return replace(estimate, shares=bottleneck_shares(virtual_gpu.run))


def estimate_memory(
    step: Step, spec: GpuSpec, batch: int, *, gpu_factory: GpuFactory
) -> tuple[StepEstimate, AllocationTrace]:
    """Estimate a step without its range and its shares, which is faster; also return its allocations."""
    with unlimited_gpu(gpu_factory, spec, build_run=False) as virtual_gpu:
        script = trace_allocations(virtual_gpu)
        body = run_first_step(step, batch)
        script.end_part()
        estimate = count_first_step_failures(
            virtual_gpu, estimate_next_step(virtual_gpu, spec, body, batch, with_range=False)
        )
        script.end_part()
    return estimate, script


def trace_allocations(virtual_gpu: VirtualGpuLike) -> AllocationTrace:
    """Record the allocations of a virtual GPU from now on."""
    virtual_gpu.memory.allocation_trace = AllocationTrace()
    return virtual_gpu.memory.allocation_trace


def count_first_step_failures(virtual_gpu: VirtualGpuLike, estimate: StepEstimate) -> StepEstimate:
    """Count the retries and failed allocations of the first step too: if it does not fit, the step does not fit."""
    return replace(estimate, retries=virtual_gpu.memory.retries, oom_count=virtual_gpu.memory.oom_count)


@contextmanager
def unlimited_gpu(gpu_factory: GpuFactory, spec: GpuSpec, *, build_run: bool) -> Iterator[VirtualGpuLike]:
    """Run the block on a virtual GPU with unlimited memory. `build_run`: build a run from it."""
    virtual_gpu = gpu_factory(spec.name)
    virtual_gpu.start()
    try:
        virtual_gpu.memory.enforce_limit = False
        yield virtual_gpu
    except BaseException:
        virtual_gpu.abandon()
        raise
    if build_run:
        virtual_gpu.stop()
    else:
        virtual_gpu.abandon()


def bottleneck_shares(run: Run | None) -> dict[str, float]:
    """Return the shares of the last step's time, by LIMITS; empty if nothing was recorded on a GPU."""
    if run is None:
        return {}
    run_steps = find_steps(run)
    is_last = np.arange(len(run_steps)) == len(run_steps) - 1
    step_ledger = build_ledger(run, replace(run_steps, interior=is_last))
    if step_ledger is None or step_ledger.device != "gpu":
        return {}
    return {limit: step_ledger.total_frac(*parts) for limit, parts in BOTTLENECKS.items()}


def run_first_step(step: Step, batch: int | None) -> Step:
    """Run the first step. Return the function for the next ones: a step that only builds the model returns it."""
    result = _call(step, batch)
    if not (inspect.isroutine(result) or isinstance(result, functools.partial)):
        return step
    _call(result, batch)
    return result


def _call(step: Step, batch: int | None) -> object:
    parameter = batch_parameter(step)
    if parameter is None or (batch is None and parameter.default is not inspect.Parameter.empty):
        return step()
    if batch is None:
        raise RunError(
            "The step needs a batch size.",
            why=f"its parameter `{parameter.name}` has no default, and no batch was given",
            fix="pass one: batch=32",
        )
    return step(batch)


def batch_parameter(step: Step) -> inspect.Parameter | None:
    """Return the parameter of a step that is its batch size; None if it has none."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return next((each for each in inspect.signature(step).parameters.values() if each.kind in kinds), None)


def estimate_next_step(
    virtual_gpu: VirtualGpuLike,
    spec: GpuSpec,
    body: Step,
    batch: int | None,
    *,
    collect_first: bool = True,
    with_range: bool = True,
) -> StepEstimate:
    """Run and time one step and measure its peak memory. `with_range`: also compute its range, which takes longer."""
    if collect_first:  # a model that the previous step built and dropped may still be alive in a reference cycle
        collect_garbage()
    memory = virtual_gpu.memory
    memory.reset_peak()
    before, retries, refused = memory.in_use(), memory.retries, memory.oom_count
    _settle()
    virtual_gpu.mark()
    _call(body, batch)
    peak = memory.peak()
    phases = tuple(memory.peak(phase) for phase in memory.phases)
    rebuilt = Role.PARAMETER in peak.by_role and Role.PARAMETER not in before.by_role
    peak, state = _with_state(phases) if rebuilt else (peak, 0)
    return StepEstimate(
        spec=spec,
        batch=batch,
        step_ns=virtual_gpu.step_ns,
        step_range_ns=virtual_gpu.step_range_ns if with_range else None,
        peak=peak,
        phases=phases,
        reserved_bytes=memory.max_reserved_bytes + state,
        non_torch_bytes=sum(each.bytes for each in non_torch_memory(spec)),
        usable_bytes=memory.capacity_bytes,
        rebuilds_model=rebuilt,
        added_state_bytes=state,
        retries=memory.retries - retries,
        oom_count=memory.oom_count - refused,
        assumptions=virtual_gpu.assumptions,
        host_work=virtual_gpu.host_work,
    )


def _settle() -> None:
    """Call PyTorch once. Python time before a call is charged to the call; this keeps ours out of the step."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.empty(0, device="cuda")


def _with_state(phases: Sequence[MemoryUse]) -> tuple[MemoryUse, int]:
    """Return the peak of a step as if the optimizer state existed from its start, and how much that adds to it."""
    state = max(use.by_role.get(Role.OPTIMIZER, 0) for use in phases)
    missing_state = {use.phase: state - use.by_role.get(Role.OPTIMIZER, 0) for use in phases}
    peak = max(phases, key=lambda use: use.bytes + missing_state[use.phase])
    by_role = {**peak.by_role, **({Role.OPTIMIZER: state} if state else {})}
    peak_bytes = peak.bytes + missing_state[peak.phase]
    return MemoryUse(peak_bytes, peak.phase, by_role), peak_bytes - max(use.bytes for use in phases)
