"""Does it fit, how large a batch, which GPU: asked of virtual GPUs, with answers that show themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpulab.views.sheet.sheet import Answer, Bar, Block, Line, Row, Section, Segment, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.views.virtual_gpu.memory_fit import FitView, MaxBatchView, shown_batch, shown_fit
from gpulab.views.virtual_gpu.phrases import (
    copied,
    method,
    origin_words,
    rebuilt,
    unit_of_work,
    watermark,
    what_runs,
)
from gpulab.virtual.memory_fit import fitting
from gpulab.virtual.memory_fit.fitting import Candidate, GpuComparison
from gpulab.virtual.memory_fit.measuring import TOO_LARGE, Measured, Runner, Step
from gpulab.virtual.session import VirtualGpu
from gpulab.wording import UNKNOWN, article, number, percent, ratio, scale, size

_SURE, _PERHAPS = "matmul", "kernels"
UNPRICED = "not given"


@dataclass(frozen=True, eq=False, repr=False)
class GpusView(View):
    """Several GPUs side by side."""

    compared: GpuComparison


def fits(
    step: Step, gpu: str, batch: int | None = None, *, name: str | None = None, runner: Runner | None = None
) -> FitView:
    """Whether a training step fits on a GPU that need not be here: "fits", "tight" or "does not fit", and for what.

    `step` is a function of the batch size, or of nothing, that trains once with ordinary CUDA code; or one that builds
    model and optimizer and returns that function, which is quicker and times the step alone. `name`: what the run is
    kept under, in `gpulab.runs`; without one it is not kept.
    """
    return shown_fit(fitting.fits(step, gpu, batch, runner=runner or partial(_play, name=name)))


def max_batch(step: Step, gpu: str, start: int = 8, *, runner: Runner | None = None) -> MaxBatchView:
    """The largest batch that a GPU has room for, tried at that size and above it; `step` as for `fits`."""
    return shown_batch(fitting.max_batch(step, gpu, start, runner=runner or _play))


def compare_gpus(
    step: Step,
    gpus: Sequence[str],
    batch: int | None = None,
    price: Mapping[str, float] | None = None,
    *,
    runner: Runner | None = None,
) -> GpusView:
    """The same step on several GPUs: time, samples a second, cost and energy. `price`: of an hour, by GPU."""
    return shown_gpus(fitting.compare_gpus(step, gpus, batch, price, runner=runner or _play))


def _play(gpu: str, name: str | None = None) -> VirtualGpu:
    return VirtualGpu(gpu, name or f"virtual {gpu}", shelved=name is not None)


# Which GPU?


def shown_gpus(compared: GpuComparison) -> GpusView:
    """The fastest and the cheapest, a bar each, and the tables."""
    told = [each.measured for each in compared.candidates]
    running = [each for each in compared.candidates if each.measured.verdict != TOO_LARGE]
    blocks: list[Block] = [_gpus_answer(compared, running), watermark(told)]
    work = unit_of_work(told[0])
    if running:
        blocks.append(Section(f"{work.capitalize()}s a second", tuple(_range_bars(running))))
    blocks.append(Section("Time and room", (_time_table(compared.candidates),)))
    blocks.append(Section(f"For 1000 {work}s", tuple(_cost(running, work))))
    blocks.append(method(told, energy=True))
    names = ", ".join(each.spec.name for each in told)
    return GpusView(Sheet(f"gpulab: {names} compared, virtual", tuple(blocks)), compared)


def _gpus_answer(compared: GpuComparison, running: Sequence[Candidate]) -> Answer:
    told = [each.measured for each in compared.candidates]
    if not running:
        least = min(told, key=lambda each: each.needed_bytes)
        claim = f"It fits on none of them: {what_runs(least)} needs {size(least.needed_bytes)} or more."
        return Answer(claim=claim, leading=True)
    first, work = running[0].measured, unit_of_work(told[0])
    claim = f"The {first.spec.name} is the fastest: {number(first.per_s)} {work}s/s."
    evidence = []
    if len(running) > 1:
        second = running[1].measured
        word = "" if _apart(first, second) else "; their ranges overlap"
        evidence.append(f"That is {ratio(first.per_s / second.per_s)} the {second.spec.name}{word}.")
    priced = [(each.cost, each) for each in running if each.cost is not None]
    if priced:
        cost, cheapest = min(priced, key=lambda each: each[0])
        alone = "" if len(priced) == len(running) else ", of those with a price"
        evidence.append(
            f"The {cheapest.measured.spec.name} is the cheapest{alone}: {number(cost)} for 1000 {work}s, "
            f"at {cheapest.price:g} an hour."
        )
    for each in told:
        if each.verdict == TOO_LARGE:
            needs = f"{size(each.needed_bytes)} needed, {size(each.usable_bytes)} there"
            evidence.append(f"It does not fit on {article(each.spec.name)}: {needs}.")
    notes, fix = rebuilt(first)
    return Answer(claim=claim, leading=True, evidence=(*evidence, *copied(first), *notes), fix=fix)


def _apart(one: Measured, other: Measured) -> bool:
    """The faster at its slowest is faster than the slower at its fastest."""
    if one.per_s_range is None or other.per_s_range is None:
        return False
    return one.per_s_range[0] > other.per_s_range[1]


def _range_bars(running: Sequence[Candidate]) -> Iterator[Block]:
    """Solid to the least a GPU gives, pale to the most."""
    ranges = [each.measured.per_s_range or (each.measured.per_s,) * 2 for each in running]
    longest = max(high for _, high in ranges)
    for each, (low, high) in zip(running, ranges, strict=True):
        told = each.measured
        name = f"{told.spec.name}: {number(told.per_s)} {unit_of_work(told)}s/s ({number(low)}-{number(high)})"
        labels = ("at least", "perhaps") if each is running[0] else ("", "")  # said once: the next bars are shorter
        parts = (Segment(_SURE, labels[0], low / high), Segment(_PERHAPS, labels[1], 1 - low / high))
        yield Line(name)
        yield Bar(title=name, segments=parts, length=high / longest)


def _time_table(candidates: Sequence[Candidate]) -> Table:
    told = [each.measured for each in candidates]
    unit = scale(max(each.step_ns for each in told))
    rows = []
    for each in told:
        memory = f"{each.verdict}, {percent(each.used_frac)}"
        if each.verdict == TOO_LARGE:
            rows.append(Row((each.spec.name, memory, "", "", "", "", "")))
            continue
        span = unit.range(*each.range_ns) if each.range_ns else ""
        figures = (unit.number(each.step_ns), span, number(each.per_s))
        rows.append(Row((each.spec.name, memory, each.limit or UNKNOWN, percent(each.busy_frac), *figures)))
    work = unit_of_work(told[0])
    header = ("GPU", "memory", "limited by", "GPU busy", f"step, {unit.unit}", "range", f"{work}s/s")
    return Table(header=header, rows=tuple(rows), left=3, caption=origin_words(told))


def _cost(running: Sequence[Candidate], work: str) -> Iterator[Block]:
    if not running:
        yield Line(f"None of them trains, so 1000 {work}s have no cost.")
        return
    priced = any(each.cost is not None for each in running)
    if priced:
        rows = [
            Row((each.measured.spec.name, f"{each.price:g}" if each.price is not None else UNPRICED, _money(each),
                 _span(each.cost_range), _energy(each)))
            for each in running
        ]  # fmt: skip
    else:
        yield Line('What they cost is not known. Say what an hour does: price={"h100": 2.5, ...}', soft=True)
        rows = [Row((each.measured.spec.name, _energy(each))) for each in running]
    header = ("GPU", *(("price an hour", "cost", "range") if priced else ()), "energy, kJ")
    yield Table(header=header, rows=tuple(rows), caption=origin_words([each.measured for each in running]))


def _money(each: Candidate) -> str:
    return "" if each.cost is None else number(each.cost)


def _span(pair: tuple[float, float] | None) -> str:
    return "" if pair is None else f"{number(pair[0])}-{number(pair[1])}"


def _energy(each: Candidate) -> str:
    joules = each.joules_range
    return UNKNOWN if joules is None else f"{number(joules[0] / 1000)}-{number(joules[1] / 1000)}"
