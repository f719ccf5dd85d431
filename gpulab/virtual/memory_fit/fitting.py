"""Whether a training step fits on a GPU, its largest batch, and a comparison of GPUs by speed and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.virtual.host.garbage import gc_between_steps, gc_frozen
from gpulab.virtual.memory_fit.allocation_trace import AllocationTrace
from gpulab.virtual.memory_fit.batch_search import (
    largest_fitting_and_smallest_failing,
    memory_limited_batch,
    search_max_batch,
)
from gpulab.virtual.memory_fit.host_work import check_host_memory
from gpulab.virtual.memory_fit.step_estimate import (
    FITS,
    FITS_BELOW_FRAC,
    TOO_LARGE,
    GpuFactory,
    Step,
    StepEstimate,
    batch_parameter,
    count_first_step_failures,
    estimate_memory,
    estimate_next_step,
    estimate_step,
    run_first_step,
    trace_allocations,
    unlimited_gpu,
)
from gpulab.virtual.op_log.ops import Role

MAX_SMALL_SIZES = 6  # small batch sizes that are run first, on one GPU
SAME_BATCH_FRAC = 0.1  # of a batch size: sizes closer than this have the same throughput
BEST_THROUGHPUT_FRAC = 0.9  # of the best throughput: a batch that reaches it need not be larger for speed
MIN_SAVING_FRAC = 0.075  # of the peak: a change that frees less is not suggested


@dataclass(frozen=True, slots=True)
class MemorySaving:
    """A way to need less memory, and the most it can free; None if unknown."""

    key: str
    freed_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a step fits on a GPU."""

    estimate: StepEstimate
    savings: tuple[MemorySaving, ...]  # the one that frees most first; empty if the step fits
    larger_gpu: GpuSpec | None  # the smallest GPU that fits it

    @property
    def verdict(self) -> str:
        """One of "fits", "tight" and "does not fit"."""
        return self.estimate.verdict


@dataclass(frozen=True, kw_only=True)
class MaxBatch:
    """The largest batch that fits on a GPU."""

    spec: GpuSpec
    batch: int | None  # the largest size that was run and fits; None if not even one sample fits
    smallest_failing: (
        int | None
    )  # the smallest size above it that was run and does not fit; None if the search ended before
    with_headroom: (
        int | None
    )  # the largest that leaves a tenth of the memory free, interpolated between sizes that were run
    fixed_bytes: float  # in use at the peak, independent of the batch
    sample_bytes: float  # in use at the peak, per sample
    estimates: tuple[StepEstimate, ...]  # one per size that was run, by batch size

    @property
    def aligned_sizes(self) -> tuple[int, ...]:
        """Sizes up to the largest that suit the GPU: a multiple of 8 and a power of two, largest first."""
        if not self.batch:
            return ()
        sizes = {self.batch // 8 * 8, 2 ** (self.batch.bit_length() - 1)}
        return tuple(sorted((size for size in sizes if 0 < size <= self.batch), reverse=True))

    @property
    def smallest_at_full_throughput(self) -> StepEstimate | None:
        """The smallest batch that was run and reaches GAINING_FRAC of the best throughput."""
        fitting = [each for each in self.estimates if each.verdict != TOO_LARGE]
        best = max((each.per_s for each in fitting), default=0.0)
        return next((each for each in fitting if each.per_s >= BEST_THROUGHPUT_FRAC * best), None)


@dataclass(frozen=True, kw_only=True)
class GpuCandidate:
    """One GPU of a comparison; fields are None if no price was given or the inputs are unknown."""

    estimate: StepEstimate
    price: float | None  # per hour
    cost: float | None  # per 1000 samples, or per 1000 steps if the batch size is unknown
    cost_range: tuple[float, float] | None
    joules_range: tuple[float, float] | None  # per 1000 samples or steps


@dataclass(frozen=True, kw_only=True)
class GpuComparison:
    """The same step on several GPUs: first the GPUs it fits on, fastest first, then the others."""

    batch: int | None
    candidates: tuple[GpuCandidate, ...]


def fits(step: Step, gpu: str, batch: int | None = None, *, gpu_factory: GpuFactory) -> Fit:
    """Estimate whether a step fits on a GPU, and what would reduce its memory if it does not."""
    estimate = estimate_step(step, gpu, batch, gpu_factory=gpu_factory)
    if estimate.verdict == FITS:
        return Fit(estimate=estimate, savings=(), larger_gpu=None)
    large_enough = [spec for spec in SPECS if estimate.needed_bytes <= FITS_BELOW_FRAC * spec.usable_bytes]
    smallest = min(large_enough, key=lambda spec: spec.usable_bytes, default=None)
    return Fit(estimate=estimate, savings=tuple(_remedies(estimate)), larger_gpu=smallest)


def max_batch(step: Step, gpu: str, start: int = 8, *, gpu_factory: GpuFactory) -> MaxBatch:
    """Find the largest batch that fits on a GPU.

    Small batches show the memory per sample; large ones are then run to find the limit.
    Raises RunError for a step without a batch size, and for one whose memory does not grow with it.
    """
    spec = resolve(gpu)
    if start < 1:
        raise RunError(
            f"start={start} is not a batch size.",
            why="the search begins with a batch of `start` samples",
            fix="pass start=1 or more",
        )
    with gc_between_steps():
        estimates, script = _first_sizes(step, spec, start, gpu_factory)
        with gc_frozen():  # the garbage collector scans existing objects once, not again for every GPU
            search_max_batch(estimates, script, lambda batch: _run_size(step, spec, batch, estimates, gpu_factory))
    return _max_batch(spec, [estimates[batch] for batch in sorted(estimates)])


def _run_size(
    step: Step, spec: GpuSpec, batch: int, estimates: Mapping[int, StepEstimate], runner: GpuFactory
) -> tuple[StepEstimate, AllocationTrace]:
    """Run another batch size, if this machine has enough memory for the tensors that the step makes on the CPU."""
    _check_host_memory(estimates, batch)
    return estimate_memory(step, spec, batch, gpu_factory=runner)


def _check_host_memory(estimates: Mapping[int, StepEstimate], batch: int) -> None:
    last = estimates[max(estimates)]
    check_host_memory(last.host_work, last.samples, batch)


def _first_sizes(
    step: Step, spec: GpuSpec, start: int, runner: GpuFactory
) -> tuple[dict[int, StepEstimate], AllocationTrace]:
    """Estimate small batches, by size. They share one GPU, so that the model is built once."""
    estimates: dict[int, StepEstimate] = {}
    with unlimited_gpu(runner, spec, build_run=False) as virtual_gpu:
        script = trace_allocations(virtual_gpu)
        body = run_first_step(step, start)
        script.end_part()
        if batch_parameter(body) is None:
            raise RunError(
                "The largest batch cannot be searched for.",
                why="the step function has no batch size parameter",
                fix="make the batch size its first parameter: def step(batch): ...",
            )
        batch: int | None = start
        while batch is not None:
            if estimates:
                _check_host_memory(estimates, batch)
                virtual_gpu.memory.empty_cache()
            # Collecting takes long; only models that the step rebuilds leave garbage.
            collect = not estimates or any(each.rebuilds_model for each in estimates.values())
            estimate = estimate_next_step(virtual_gpu, spec, body, batch, collect_first=collect, with_range=False)
            estimates[batch] = estimate if estimates else count_first_step_failures(virtual_gpu, estimate)
            script.end_part()
            batch = _next_size(estimates)
    return estimates, script


def _next_size(estimates: Mapping[int, StepEstimate]) -> int | None:
    """Return the next small size; None when there are enough.

    Sizes only grow: a smaller batch would wait for a GPU that is still busy with the last one.
    """
    last = max(estimates)
    if len(estimates) == 1:
        return 2 * last
    ceiling = memory_limited_batch(estimates)
    if ceiling is None:
        return 4 * last if len(estimates) < MAX_SMALL_SIZES else None
    sizes = [size // 8 * 8 if size >= 16 else size for size in (ceiling // 4, ceiling // 2)]
    return next((size for size in sizes if size > last * (1 + SAME_BATCH_FRAC)), None)


def compare_gpus(
    step: Step, gpus: Sequence[str], batch: int | None = None, price: Mapping[str, float] | None = None, *,
    gpu_factory: GpuFactory,
) -> GpuComparison:  # fmt: skip
    """Estimate the same step on several GPUs. `price`: per hour, by GPU.

    Raises RunError for an unknown GPU, for no GPUs, and for a price of a GPU that is not compared.
    """
    names = list(dict.fromkeys(resolve(gpu).name for gpu in gpus))
    prices = {resolve(gpu).name: value for gpu, value in (price or {}).items()}
    extra = next((name for name in prices if name not in names), None)
    if not names or extra is not None:
        raise RunError(
            "The GPUs cannot be compared.",
            why="the list of GPUs is empty"
            if extra is None
            else f"there is a price for {extra}, which is not compared",
            fix='name some GPUs: ["h100", "a100", "t4"]' if extra is None else f"add it to the list: [..., {extra!r}]",
        )
    candidates = [
        _candidate(estimate_step(step, name, batch, gpu_factory=gpu_factory), prices.get(name)) for name in names
    ]
    candidates.sort(key=lambda candidate: (candidate.estimate.verdict == TOO_LARGE, -candidate.estimate.per_s))
    return GpuComparison(batch=batch, candidates=tuple(candidates))


def _needed_bytes(estimate: StepEstimate) -> float:
    return estimate.needed_bytes


def _peak_bytes(estimate: StepEstimate) -> float:
    return estimate.peak.bytes


def _slope(smaller: StepEstimate, larger: StepEstimate, memory: Callable[[StepEstimate], float]) -> float:
    """Return the bytes per sample; 0 if a larger batch needs no more memory."""
    return max(0.0, (memory(larger) - memory(smaller)) / (larger.samples - smaller.samples))


def _max_batch(spec: GpuSpec, estimates: Sequence[StepEstimate]) -> MaxBatch:
    low, high = largest_fitting_and_smallest_failing({each.samples: each for each in estimates})
    fitting = [each for each in estimates if each.samples <= low] or list(estimates)
    first, last = fitting[0], fitting[-1]
    sample = fixed = 0.0
    if len(estimates) > 1:
        other = last if last is not first else estimates[1]
        sample = _slope(first, other, _peak_bytes)
        fixed = first.peak.bytes - sample * first.samples
    if high is None and not sample:
        raise RunError(
            "The largest batch cannot be searched for.",
            why=f"a batch of {last.samples} needs no more memory than a batch of {first.samples}",
            fix="make the step build its batch with the size that it is called with",
        )
    return MaxBatch(
        spec=spec,
        batch=low or None,
        smallest_failing=high,
        with_headroom=_batch_with_headroom(fitting) if low else None,
        fixed_bytes=fixed,
        sample_bytes=sample,
        estimates=tuple(estimates),
    )


def _batch_with_headroom(fitting: Sequence[StepEstimate]) -> int | None:
    """Return the largest batch that leaves a tenth of the memory free, interpolated between the nearest sizes run."""
    with_headroom = [each for each in fitting if each.verdict == FITS]
    tight = [each for each in fitting if each.verdict != FITS]
    if not with_headroom or not tight:
        return with_headroom[-1].samples if with_headroom else None
    below, above = with_headroom[-1], tight[0]
    slope = _slope(below, above, _needed_bytes)
    headroom_bytes = FITS_BELOW_FRAC * below.usable_bytes - below.needed_bytes
    return below.samples if not slope else min(above.samples - 1, below.samples + int(headroom_bytes // slope))


def _candidate(estimate: StepEstimate, price: float | None) -> GpuCandidate:
    steps_per_1000 = 1000 / estimate.samples
    cost_per_ns = None if price is None else price * steps_per_1000 / 3.6e12  # of step time, for 1000 samples
    return GpuCandidate(
        estimate=estimate,
        price=price,
        cost=None if cost_per_ns is None else cost_per_ns * estimate.step_ns,
        cost_range=None if cost_per_ns is None else _scaled(estimate.step_range_ns, cost_per_ns),
        joules_range=_scaled(estimate.joules_range, steps_per_1000),
    )


def _scaled(pair: tuple[float, float] | None, factor: float) -> tuple[float, float] | None:
    return None if pair is None else (pair[0] * factor, pair[1] * factor)


def _remedies(estimate: StepEstimate) -> list[MemorySaving]:
    """Return ways to need less memory, by the roles that use it at the peak."""
    by_role, total = estimate.peak.by_role, estimate.peak.bytes
    activations = by_role.get(Role.ACTIVATION, 0)
    by_batch = activations + by_role.get(Role.TEMPORARY, 0)
    cached = estimate.reserved_bytes - total
    remedies = [
        MemorySaving("checkpoint", activations),
        MemorySaving("batch", by_batch // 2),
        MemorySaving("autocast", activations // 2),
        MemorySaving("optimizer", by_role.get(Role.OPTIMIZER, 0) // 2),
        MemorySaving("parameters", (by_role.get(Role.PARAMETER, 0) + by_role.get(Role.GRADIENT, 0)) // 2),
        MemorySaving("segments", cached),
    ]
    useful = [each for each in remedies if (each.freed_bytes or 0) >= MIN_SAVING_FRAC * total]
    if estimate.fits_only_with_retries and remedies[-1] not in useful:
        useful.append(MemorySaving("segments", None))
    return sorted(useful, key=lambda remedy: -(remedy.freed_bytes or 0))
