"""Views of a memory fit and of the largest batch on a virtual GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpulab.views.sheet.sheet import Answer, Bar, Block, Line, Row, Section, Segment, Sheet, TableBlock
from gpulab.views.sheet.view import View
from gpulab.views.virtual_gpu.phrases import (
    estimate_line,
    estimate_source,
    host_work_notes,
    method_section,
    rebuild_notes,
    step_description,
)
from gpulab.virtual.memory_fit.fitting import SAME_BATCH_FRAC, Fit, MaxBatch, MemorySaving
from gpulab.virtual.memory_fit.memory_peaks import non_torch_memory
from gpulab.virtual.memory_fit.step_estimate import FITS, TIGHT, TOO_LARGE, StepEstimate
from gpulab.virtual.op_log.ops import Role
from gpulab.wording import article, number, percent, scale, sentence, size

# A colour of the ledger for each role, chosen to be easy to distinguish.
_KEYS = {
    Role.PARAMETER: "matmul",
    Role.GRADIENT: "kernels",
    Role.OPTIMIZER: "communication",
    Role.ACTIVATION: "copies",
    Role.TEMPORARY: "dispatch",
}
_CACHED, _OUTSIDE, _CAPACITY = "latency", "alloc", "rest"
_RATE = "matmul"
MIN_LABELLED_FRAC = 0.4  # of the longest bar

_REMEDIES: Mapping[str, tuple[str, str]] = {  # description, code
    "checkpoint": (
        "Checkpoint activations: recompute them in backward, for about a third more arithmetic",
        "from torch.utils.checkpoint import checkpoint\nx = checkpoint(block, x, use_reentrant=False)",
    ),
    "batch": (
        "Accumulate gradients over two half batches: the gradients are the same, except with BatchNorm",
        "(loss / 2).backward()\nif (i + 1) % 2 == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
    ),
    "autocast": (
        "Use autocast, so that activations that are float32 now are stored in half precision",
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = loss_fn(model(x), y)',
    ),
    "optimizer": (
        "Use an optimizer with less state: SGD with momentum has half the state of Adam, an 8-bit Adam a quarter",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    ),
    "parameters": (
        "Keep weights and gradients in bfloat16, if the training remains stable",
        "model = model.to(torch.bfloat16)",
    ),
    "segments": (
        "Use expandable segments, which reduce the reserved memory that the allocator cannot use (fragmentation)",
        '# before torch is imported\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
    ),
}


@dataclass(frozen=True, eq=False, repr=False)
class FitView(View):
    """Whether a step fits, and what needs the memory, as a view."""

    fit: Fit

    @property
    def verdict(self) -> str:
        """One of "fits", "tight" and "does not fit"."""
        return self.fit.verdict


@dataclass(frozen=True, eq=False, repr=False)
class MaxBatchView(View):
    """The largest batch and the results of each size, as a view."""

    max_batch: MaxBatch

    @property
    def batch(self) -> int | None:
        """The largest batch that fits; None if not even one sample fits."""
        return self.max_batch.batch


# Does it fit?


def fit_view(fit: Fit) -> FitView:
    """Return the view of a memory fit: verdict, memory as bars and tables, and ways to reduce it."""
    estimate = fit.estimate
    blocks: list[Block] = [_fit_answer(fit), estimate_line([estimate])]
    blocks.append(Section("Peak memory of a step", (*_memory_bars(estimate), _memory_table(estimate))))
    blocks.append(Section("Peak memory by phase", (_phase_table(estimate),)))
    if fit.savings:
        blocks.append(Section("Ways to reduce memory", tuple(_remedies(fit))))
    blocks.append(method_section([estimate]))
    return FitView(Sheet(f"gpulab: memory fit on a virtual {estimate.spec.name}", tuple(blocks)), fit)


def _fit_answer(fit: Fit) -> Answer:
    estimate = fit.estimate
    needed = f"{step_description(estimate)} needs {size(estimate.needed_bytes)}"
    usable = f"{size(estimate.usable_bytes)} ({percent(estimate.used_frac)})"
    if estimate.verdict == FITS:
        claim = f"Fits on {article(estimate.spec.name)}: {needed} of {usable}."
    elif estimate.fits_only_with_retries:
        uses = f"{step_description(estimate)} uses {size(estimate.peak.bytes)}"
        claim = (
            f"Tight on {article(estimate.spec.name)}: {uses}, but the allocator would reserve more than the GPU has."
        )
    elif estimate.verdict == TIGHT:
        claim = f"Tight on {article(estimate.spec.name)}: {needed} of {usable}."
    else:
        claim = (
            f"Does not fit on {article(estimate.spec.name)}: {needed}, and the GPU has {size(estimate.usable_bytes)}."
        )
    largest = max(estimate.peak.by_role, key=lambda role: estimate.peak.by_role[role], default=None)
    role = f", mostly {largest.value} ({size(estimate.peak.by_role[largest])})" if largest else ""
    evidence = [f"Memory peaks in {estimate.peak.phase.value}: {size(estimate.peak.bytes)}{role}."]
    if estimate.fits_only_with_retries:
        evidence.append(
            "It runs only because PyTorch releases its cached memory (`cudaFree`) and allocates again, which is slow."
        )
    elif estimate.verdict == TIGHT:
        evidence.append("Memory that is not counted, such as cuDNN workspaces, may exceed the rest.")
    if estimate.verdict != FITS:
        larger = (
            f"{fit.larger_gpu.name} ({size(fit.larger_gpu.usable_bytes)})"
            if fit.larger_gpu
            else "none in gpulab's list"
        )
        evidence.append(f"The smallest GPU with 10 % to spare: {larger}.")
    notes, fix = rebuild_notes(estimate)
    return Answer(claim=claim, leading=True, evidence=(*evidence, *notes), fix=fix)


def _parts(estimate: StepEstimate) -> list[tuple[str, str, int]]:
    """Return colour key, name and bytes of everything that needs memory; they sum to the memory needed."""
    roles = [(_KEYS[role], role.value, estimate.peak.by_role[role]) for role in Role if role in estimate.peak.by_role]
    cached = estimate.reserved_bytes - estimate.peak.bytes
    idle = [(_CACHED, "reserved by PyTorch, not in use", cached)] if cached > 0 else []
    outside = [(_OUTSIDE, each.name, each.bytes) for each in non_torch_memory(estimate.spec)]
    return [*roles, *idle, *outside]


def _memory_bars(estimate: StepEstimate) -> Iterator[Block]:
    longest = max(estimate.needed_bytes, estimate.usable_bytes)
    labelled = estimate.needed_bytes > MIN_LABELLED_FRAC * longest  # a short bar has no space for labels
    parts = tuple(
        Segment(key, name if labelled else "", count / estimate.needed_bytes) for key, name, count in _parts(estimate)
    )
    needed, usable = size(estimate.needed_bytes), size(estimate.usable_bytes)
    alt = ", ".join(f"{name} {size(count)}" for _, name, count in _parts(estimate))
    yield Line(f"The step needs {needed}")
    yield Bar(title=f"needed: {alt}", segments=parts, length=estimate.needed_bytes / longest)
    segments = (Segment(_CAPACITY, "", 1.0),)
    name = f"The {estimate.spec.name} has {usable}"
    yield Line(name)
    yield Bar(title=name, segments=segments, length=estimate.usable_bytes / longest)


def _memory_table(estimate: StepEstimate) -> TableBlock:
    rows = [
        Row((name, size(count), percent(count / estimate.usable_bytes, 1)), key=key)
        for key, name, count in _parts(estimate)
    ]
    rows.append(Row(("needed", size(estimate.needed_bytes), percent(estimate.used_frac, 1)), kind="total"))
    rows.append(Row((f"{estimate.spec.name} has", size(estimate.usable_bytes), "100.0 %")))
    return TableBlock(header=("", "memory", "of the GPU"), rows=tuple(rows), caption=estimate_source([estimate]))


def _phase_table(estimate: StepEstimate) -> TableBlock:
    roles = [role for role in Role if any(role in use.by_role for use in estimate.phases)]
    rows = []
    for use in estimate.phases:
        cells = (size(use.by_role[role]) if role in use.by_role else "" for role in roles)
        rows.append(Row((use.phase.value, *cells, size(use.bytes))))
    header = ("phase", *(role.value for role in roles), "total")
    return TableBlock(header=header, rows=tuple(rows), caption=estimate_source([estimate]))


def _remedies(fit: Fit) -> Iterator[Block]:
    for remedy in fit.savings:
        description, code = _REMEDIES[remedy.key]
        yield Answer(claim=sentence(description), leading=False, fix=code, evidence=_savings(remedy))


def _savings(remedy: MemorySaving) -> tuple[str, ...]:
    return () if remedy.freed_bytes is None else (f"Frees at most {size(remedy.freed_bytes)}.",)


# How large a batch?


def max_batch_view(result: MaxBatch) -> MaxBatchView:
    """Return the view of the largest batch: the batch, other choices, and the results of each size."""
    sizes_that_fit = [each for each in result.estimates if each.verdict != TOO_LARGE]
    blocks: list[Block] = [_batch_answer(result), estimate_line(result.estimates)]
    if sizes_that_fit:
        blocks.append(Section("Samples per second by batch size", tuple(_rate_bars(sizes_that_fit))))
    blocks.append(Section("Batch sizes tried", (_tried_table(result),)))
    blocks.append(method_section(result.estimates))
    return MaxBatchView(Sheet(f"gpulab: the largest batch on a virtual {result.spec.name}", tuple(blocks)), result)


def _batch_answer(result: MaxBatch) -> Answer:
    name = result.spec.name
    if result.batch is None:
        first = result.estimates[0]
        memory = f"it needs {size(first.needed_bytes)}, and the GPU has {size(first.usable_bytes)}"
        claim = f"Not even a batch of {first.samples} fits on {article(name)}: {memory}."
        details = f"For details: gpulab.virtual.fits(step, {name!r}, {first.samples})."
        return Answer(claim=claim, leading=True, advice=details)
    beyond = f"; {result.smallest_failing:,} does not fit" if result.smallest_failing else "; no larger batch was tried"
    claim = f"The largest batch on {article(name)} is {result.batch:,}{beyond}."
    evidence = []
    if result.sample_bytes:
        per_sample = f"{size(result.sample_bytes)} per sample"
        evidence.append(f"Peak memory: {size(max(0.0, result.fixed_bytes))}, plus {per_sample}.")
    if result.with_headroom and result.with_headroom < result.batch:
        evidence.append(
            f"Up to a batch of {result.with_headroom:,}, 10 % of the memory stays free for memory that is not counted."
        )
    evidence += _choices(result)
    notes, fix = rebuild_notes(result.estimates[-1])
    largest = next(each for each in result.estimates if each.samples == result.batch)
    return Answer(claim=claim, leading=True, evidence=(*evidence, *host_work_notes(largest), *notes), fix=fix)


def _choices(result: MaxBatch) -> Iterator[str]:
    even = result.aligned_sizes
    if even and result.batch not in even:
        sizes = ", ".join(f"{each:,}" for each in even)
        yield f"Multiples of 8: {sizes}; matrix products are faster with them."
    knee = result.smallest_at_full_throughput
    if knee is not None and knee.samples < (result.batch or 0):
        rate = f"{number(knee.per_s)} samples/s"
        share = percent(knee.per_s / max(each.per_s for each in result.estimates if each.verdict != TOO_LARGE))
        yield f"A batch of {knee.samples:,} reaches {share} of the highest rate: {rate}."


def _rate_bars(estimates: Sequence[StepEstimate]) -> Iterator[Block]:
    """Draw a bar for each batch size, except sizes within NEAR_FRAC of the largest."""
    highest, largest = max(each.per_s for each in estimates), estimates[-1].samples
    for estimate in estimates:
        if largest * (1 - SAME_BATCH_FRAC) < estimate.samples < largest:
            continue
        name = f"{estimate.samples:,}: {number(estimate.per_s)} samples/s"
        yield Line(name)
        yield Bar(title=name, segments=(Segment(_RATE, "", 1.0),), length=estimate.per_s / highest)


def _tried_table(result: MaxBatch) -> TableBlock:
    unit = scale(max(each.step_ns for each in result.estimates))
    rows = [
        Row((f"{each.samples:,}", each.verdict, size(each.needed_bytes), percent(each.used_frac),
             unit.number(each.step_ns), number(each.per_s) if each.verdict != TOO_LARGE else ""))
        for each in result.estimates
    ]  # fmt: skip
    header = ("batch", "", "memory", "of the GPU", f"step, {unit.unit}", "samples/s")
    return TableBlock(header=header, rows=tuple(rows), text_columns=2, caption=estimate_source(result.estimates))
