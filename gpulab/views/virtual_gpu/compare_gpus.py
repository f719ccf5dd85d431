"""Public functions on virtual GPUs: does a step fit, the largest batch, which GPU; and the view of several GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpulab.views.sheet.sheet import Answer, Bar, Block, Line, Row, Section, Segment, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.views.virtual_gpu.memory_fit import FitView, MaxBatchView, fit_view, max_batch_view
from gpulab.views.virtual_gpu.phrases import (
    estimate_line,
    estimate_source,
    host_work_notes,
    method_section,
    rebuild_notes,
    step_description,
    unit_of_work,
)
from gpulab.virtual.memory_fit import fitting
from gpulab.virtual.memory_fit.fitting import GpuCandidate, GpuComparison
from gpulab.virtual.memory_fit.step_estimate import TOO_LARGE, GpuFactory, Step, StepEstimate
from gpulab.virtual.session import VirtualGpu
from gpulab.wording import UNKNOWN, article, number, percent, ratio, scale, size

_CERTAIN, _UNCERTAIN = "matmul", "kernels"
UNKNOWN_PRICE = "unknown"


@dataclass(frozen=True, eq=False, repr=False)
class GpusView(View):
    """Several GPUs compared, as a view."""

    comparison: GpuComparison


def fits(
    step: Step, gpu: str, batch: int | None = None, *, name: str | None = None, runner: GpuFactory | None = None
) -> FitView:
    """Return whether a training step fits on a GPU that need not be installed, and what needs the memory.

    The verdict is "fits", "tight" or "does not fit". `step` is a function of the batch size, or without parameters,
    that runs one training step with ordinary CUDA code; or a function that builds model and optimizer and returns such
    a function, which is faster and excludes the building from the step time. `name`: the name of the run in
    `gpulab.runs`; without a name the run is not stored.
    """
    return fit_view(fitting.fits(step, gpu, batch, gpu_factory=runner or partial(_virtual_gpu, name=name)))


def max_batch(step: Step, gpu: str, start: int = 8, *, runner: GpuFactory | None = None) -> MaxBatchView:
    """Return the largest batch that fits on a GPU, tried at that size and at a larger one; `step` as for `fits`."""
    return max_batch_view(fitting.max_batch(step, gpu, start, gpu_factory=runner or _virtual_gpu))


def compare_gpus(
    step: Step,
    gpus: Sequence[str],
    batch: int | None = None,
    price: Mapping[str, float] | None = None,
    *,
    runner: GpuFactory | None = None,
) -> GpusView:
    """Compare the same step on several GPUs: step time, samples/s, cost and energy. `price`: per hour, by GPU name."""
    return gpus_view(fitting.compare_gpus(step, gpus, batch, price, gpu_factory=runner or _virtual_gpu))


def _virtual_gpu(gpu: str, name: str | None = None) -> VirtualGpu:
    return VirtualGpu(gpu, name or f"virtual {gpu}", add_to_runs=name is not None)


# Which GPU?


def gpus_view(compared: GpuComparison) -> GpusView:
    """Return the view of a comparison: fastest and cheapest GPU, a bar for each, and the tables."""
    estimates = [each.estimate for each in compared.candidates]
    running = [each for each in compared.candidates if each.estimate.verdict != TOO_LARGE]
    blocks: list[Block] = [_gpus_answer(compared, running), estimate_line(estimates)]
    unit = unit_of_work(estimates[0])
    if running:
        blocks.append(Section(f"{unit.capitalize()}s per second", tuple(_range_bars(running))))
    blocks.append(Section("Step time and memory", (_time_table(compared.candidates),)))
    blocks.append(Section(f"Cost of a million {unit}s", tuple(_cost(running, unit))))
    blocks.append(method_section(estimates, energy=True))
    names = ", ".join(each.spec.name for each in estimates)
    return GpusView(Sheet(f"gpulab: {names} compared as virtual GPUs", tuple(blocks)), compared)


def _gpus_answer(compared: GpuComparison, running: Sequence[GpuCandidate]) -> Answer:
    estimates = [each.estimate for each in compared.candidates]
    if not running:
        smallest = min(estimates, key=lambda estimate: estimate.needed_bytes)
        claim = (
            f"It fits on none of these GPUs: {step_description(smallest)} needs {size(smallest.needed_bytes)} or more."
        )
        return Answer(claim=claim, leading=True)
    first, unit = running[0].estimate, unit_of_work(estimates[0])
    claim = f"The {first.spec.name} is the fastest: {number(first.per_s)} {unit}s/s."
    evidence = []
    if len(running) > 1:
        second = running[1].estimate
        overlap = "" if _separate(first, second) else "; their ranges overlap"
        evidence.append(f"This is {ratio(first.per_s / second.per_s)} the rate of the {second.spec.name}{overlap}.")
    priced = [(each.cost, each) for each in running if each.cost is not None]
    if priced:
        cost, cheapest = min(priced, key=lambda pair: pair[0])
        scope = "" if len(priced) == len(running) else " of the GPUs with a price"
        evidence.append(
            f"The {cheapest.estimate.spec.name} is the cheapest{scope}: {number(1000 * cost)} per million {unit}s "
            f"({number(cheapest.price)} per hour)."
        )
    for estimate in estimates:
        if estimate.verdict == TOO_LARGE:
            memory = f"it needs {size(estimate.needed_bytes)} of {size(estimate.usable_bytes)}"
            evidence.append(f"It does not fit on {article(estimate.spec.name)}: {memory}.")
    notes, fix = rebuild_notes(first)
    return Answer(claim=claim, leading=True, evidence=(*evidence, *host_work_notes(first), *notes), fix=fix)


def _separate(faster: StepEstimate, slower: StepEstimate) -> bool:
    """Whether the ranges of two rates do not overlap."""
    if faster.per_s_range is None or slower.per_s_range is None:
        return False
    return faster.per_s_range[0] > slower.per_s_range[1]


def _range_bars(running: Sequence[GpuCandidate]) -> Iterator[Block]:
    """Draw a bar for each GPU: solid up to the lowest rate, pale up to the highest."""
    ranges = [each.estimate.per_s_range or (each.estimate.per_s,) * 2 for each in running]
    longest = max(high for _, high in ranges)
    for candidate, (low, high) in zip(running, ranges, strict=True):
        estimate = candidate.estimate
        rate = f"{number(estimate.per_s)} {unit_of_work(estimate)}s/s ({number(low)}-{number(high)})"
        name = f"{estimate.spec.name}: {rate}"
        labels = ("at least", "uncertain") if candidate is running[0] else ("", "")  # only the first bar is labelled
        parts = (Segment(_CERTAIN, labels[0], low / high), Segment(_UNCERTAIN, labels[1], 1 - low / high))
        yield Line(name)
        yield Bar(title=name, segments=parts, length=high / longest)


def _time_table(candidates: Sequence[GpuCandidate]) -> TableBlock:
    estimates = [each.estimate for each in candidates]
    unit = scale(max(each.step_ns for each in estimates))
    rows = []
    for estimate in estimates:
        name, memory = estimate.spec.name, f"{estimate.verdict}, {percent(estimate.used_frac)}"
        if estimate.verdict == TOO_LARGE:
            rows.append(Row((name, memory, "", "", "", "", "")))
            continue
        span = unit.range(*estimate.step_range_ns) if estimate.step_range_ns else ""
        times = (unit.number(estimate.step_ns), span, number(estimate.per_s))
        rows.append(Row((name, memory, estimate.bottleneck or UNKNOWN, percent(estimate.busy_frac), *times)))
    work = unit_of_work(estimates[0])
    header = ("GPU", "memory", "limited by", "GPU busy", f"step, {unit.unit}", "range", f"{work}s/s")
    return TableBlock(header=header, rows=tuple(rows), text_columns=3, caption=estimate_source(estimates))


def _cost(running: Sequence[GpuCandidate], work: str) -> Iterator[Block]:
    if not running:
        yield Line("The step fits on no GPU, so there is no cost.")
        return
    priced = any(each.cost is not None for each in running)
    if priced:
        rows = [
            Row((each.estimate.spec.name, number(each.price) if each.price is not None else UNKNOWN_PRICE, _money(each),
                 _span(each.cost_range), _energy(each)))
            for each in running
        ]  # fmt: skip
    else:
        yield Line('Prices are unknown. Pass the price per hour: price={"h100": 2.5, ...}', soft=True)
        rows = [Row((each.estimate.spec.name, _energy(each))) for each in running]
    header = ("GPU", *(("price per hour", "cost", "range") if priced else ()), "energy, kJ")
    yield TableBlock(header=header, rows=tuple(rows), caption=estimate_source([each.estimate for each in running]))


def _money(candidate: GpuCandidate) -> str:
    return "" if candidate.cost is None else number(1000 * candidate.cost)


def _span(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{number(1000 * pair[0])}-{number(1000 * pair[1])}"


def _energy(candidate: GpuCandidate) -> str:
    joules = candidate.joules_range
    return UNKNOWN if joules is None else f"{number(joules[0])}-{number(joules[1])}"  # J per thousand: kJ per million
