"""Whether a training step has room on a GPU, and how large a batch has: the answers as they look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpulab.views.sheet.sheet import Answer, Bar, Block, Line, Row, Section, Segment, Sheet, Table
from gpulab.views.sheet.view import View
from gpulab.views.virtual_gpu.phrases import copied, method, origin_words, rebuilt, watermark, what_runs
from gpulab.virtual.memory_fit.fitting import GAINING_FRAC, NEAR_FRAC, Fit, MaxBatch, Remedy
from gpulab.virtual.memory_fit.measuring import FITS, TIGHT, TOO_LARGE, Measured
from gpulab.virtual.memory_fit.memory import allowances
from gpulab.virtual.op_log.ops import Role
from gpulab.wording import article, number, percent, scale, sentence, size

# A colour of the ledger for each role: the same hues, with room between them.
_KEYS = {
    Role.PARAMETER: "matmul",
    Role.GRADIENT: "kernels",
    Role.OPTIMIZER: "communication",
    Role.ACTIVATION: "copies",
    Role.TEMPORARY: "dispatch",
}
_CACHED, _OUTSIDE, _HAS = "latency", "alloc", "rest"
_RATE = "matmul"
LABELLED_FRAC = 0.4  # of the longest bar

_REMEDIES: Mapping[str, tuple[str, str]] = {  # what it is, and how
    "checkpoint": (
        "Keep fewer activations and compute them again in backward, for about a third more arithmetic",
        "from torch.utils.checkpoint import checkpoint\nx = checkpoint(block, x, use_reentrant=False)",
    ),
    "batch": (
        "Halve the batch and step every second time: the gradients are the same, but for BatchNorm",
        "(loss / 2).backward()\nif (i + 1) % 2 == 0:\n    optimizer.step()\n    optimizer.zero_grad()",
    ),
    "autocast": (
        "Let autocast keep activations in half precision, where they are float32 now",
        'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = loss_fn(model(x), y)',
    ),
    "optimizer": (
        "Use an optimizer with less state: SGD with momentum keeps half of what Adam keeps, an 8-bit Adam a quarter",
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
    ),
    "parameters": (
        "Keep weights and gradients in bfloat16, if the training bears it",
        "model = model.to(torch.bfloat16)",
    ),
    "segments": (
        "Let PyTorch's allocator grow its segments: what it holds and cannot use would go to what needs it",
        '# before torch is imported\nos.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"',
    ),
}


@dataclass(frozen=True, eq=False, repr=False)
class FitView(View):
    """Whether a step fits, and for what it needs its memory."""

    fit: Fit

    @property
    def verdict(self) -> str:
        """One of "fits", "tight" and "does not fit"."""
        return self.fit.verdict


@dataclass(frozen=True, eq=False, repr=False)
class MaxBatchView(View):
    """The largest batch, and what each size gives."""

    found: MaxBatch

    @property
    def batch(self) -> int | None:
        """The largest that fits; None: not even one sample does."""
        return self.found.batch


# Does it fit?


def shown_fit(fit: Fit) -> FitView:
    """The answer, the memory as a picture and as tables, and what would help."""
    told = fit.measured
    blocks: list[Block] = [_fit_answer(fit), watermark([told])]
    blocks.append(Section("What a step needs at most", (*_memory_bars(told), _memory_table(told))))
    blocks.append(Section("In use at most, by phase", (_phase_table(told),)))
    if fit.remedies:
        blocks.append(Section("What would help", tuple(_remedies(fit))))
    blocks.append(method([told]))
    return FitView(Sheet(f"gpulab: does it fit on a virtual {told.spec.name}?", tuple(blocks)), fit)


def _fit_answer(fit: Fit) -> Answer:
    told = fit.measured
    needs = f"{what_runs(told)} needs {size(told.needed_bytes)}"
    has = f"{size(told.usable_bytes)} ({percent(told.used_frac)})"
    if told.verdict == FITS:
        claim = f"Fits on {article(told.spec.name)}: {needs} of {has}."
    elif told.squeezed:
        uses = f"{what_runs(told)} uses {size(told.peak.bytes)}"
        claim = f"Tight on {article(told.spec.name)}: {uses}, but as PyTorch keeps it that takes up more than there is."
    elif told.verdict == TIGHT:
        claim = f"Tight on {article(told.spec.name)}: {needs} of {has}."
    else:
        claim = f"Does not fit on {article(told.spec.name)}: {needs}, and the GPU has {size(told.usable_bytes)}."
    largest = max(told.peak.by_role, key=lambda role: told.peak.by_role[role], default=None)
    held = f", most of it {largest.value} ({size(told.peak.by_role[largest])})" if largest else ""
    evidence = [f"Most is in use in {told.peak.phase.value}: {size(told.peak.bytes)}{held}."]
    if told.squeezed:
        evidence.append("It runs only as PyTorch gives back all that it has cached and asks again, which takes long.")
    elif told.verdict == TIGHT:
        evidence.append("What is not counted, such as cuDNN's workspaces, may be what does not fit.")
    if told.verdict != FITS:
        room = f"{fit.larger.name} ({size(fit.larger.usable_bytes)})" if fit.larger else "no GPU that is listed"
        evidence.append(f"The smallest GPU with a tenth to spare: {room}.")
    notes, fix = rebuilt(told)
    return Answer(claim=claim, leading=True, evidence=(*evidence, *notes), fix=fix)


def _parts(told: Measured) -> list[tuple[str, str, int]]:
    """What needs memory: key of its colour, name, bytes; they sum to what is needed."""
    held = [(_KEYS[role], role.value, told.peak.by_role[role]) for role in Role if role in told.peak.by_role]
    cached = told.reserved_bytes - told.peak.bytes
    idle = [(_CACHED, "held by PyTorch, not in use", cached)] if cached > 0 else []
    beside = [(_OUTSIDE, each.what, each.bytes) for each in allowances(told.spec)]
    return [*held, *idle, *beside]


def _memory_bars(told: Measured) -> Iterator[Block]:
    longest = max(told.needed_bytes, told.usable_bytes)
    labelled = told.needed_bytes > LABELLED_FRAC * longest  # a short bar has no room under it
    parts = tuple(
        Segment(key, name if labelled else "", count / told.needed_bytes) for key, name, count in _parts(told)
    )
    needs, has = size(told.needed_bytes), size(told.usable_bytes)
    spoken = ", ".join(f"{name} {size(count)}" for _, name, count in _parts(told))
    yield Line(f"The step needs {needs}")
    yield Bar(title=f"needed: {spoken}", segments=parts, length=told.needed_bytes / longest)
    whole = (Segment(_HAS, "", 1.0),)
    name = f"The {told.spec.name} has {has}"
    yield Line(name)
    yield Bar(title=name, segments=whole, length=told.usable_bytes / longest)


def _memory_table(told: Measured) -> Table:
    rows = [
        Row((name, size(count), percent(count / told.usable_bytes, 1)), key=key) for key, name, count in _parts(told)
    ]
    rows.append(Row(("needed", size(told.needed_bytes), percent(told.used_frac, 1)), kind="total"))
    rows.append(Row((f"{told.spec.name} has", size(told.usable_bytes), "100.0 %")))
    return Table(header=("", "memory", "of the GPU"), rows=tuple(rows), caption=origin_words([told]))


def _phase_table(told: Measured) -> Table:
    roles = [role for role in Role if any(role in use.by_role for use in told.phases)]
    rows = []
    for use in told.phases:
        cells = (size(use.by_role[role]) if role in use.by_role else "" for role in roles)
        rows.append(Row((use.phase.value, *cells, size(use.bytes))))
    header = ("phase", *(role.value for role in roles), "in all")
    return Table(header=header, rows=tuple(rows), caption=origin_words([told]))


def _remedies(fit: Fit) -> Iterator[Block]:
    for each in fit.remedies:
        what, code = _REMEDIES[each.key]
        yield Answer(claim=sentence(what), leading=False, fix=code, evidence=_frees(each))


def _frees(remedy: Remedy) -> tuple[str, ...]:
    return () if remedy.frees_bytes is None else (f"Frees {size(remedy.frees_bytes)} at most.",)


# How large a batch?


def shown_batch(found: MaxBatch) -> MaxBatchView:
    """The answer, the choices beside it, and what each size gives."""
    fitting_ones = [each for each in found.tried if each.verdict != TOO_LARGE]
    blocks: list[Block] = [_batch_answer(found), watermark(found.tried)]
    if fitting_ones:
        blocks.append(Section("Samples a second, by batch", tuple(_rate_bars(fitting_ones))))
    blocks.append(Section("What was tried", (_tried(found),)))
    blocks.append(method(found.tried))
    return MaxBatchView(Sheet(f"gpulab: the largest batch on a virtual {found.spec.name}", tuple(blocks)), found)


def _batch_answer(found: MaxBatch) -> Answer:
    name = found.spec.name
    if found.batch is None:
        one = found.tried[0]
        needs = f"it needs {size(one.needed_bytes)}, and the GPU has {size(one.usable_bytes)}"
        claim = f"Not even a batch of {one.work} fits on {article(name)}: {needs}."
        return Answer(claim=claim, leading=True, closing=f"gpulab.virtual.fits(step, {name!r}, {one.work}) tells why.")
    beyond = f"; {found.refused:,} does not fit" if found.refused else "; no larger one was tried"
    claim = f"The largest batch on {article(name)} is {found.batch:,}{beyond}."
    evidence = []
    if found.sample_bytes:
        each = f"{size(found.sample_bytes)} for each sample"
        evidence.append(f"At most in use: {size(max(0.0, found.fixed_bytes))}, and {each}.")
    if found.roomy and found.roomy < found.batch:
        evidence.append(f"Up to {found.roomy:,} a tenth of the memory stays free, for what is not counted.")
    evidence += _choices(found)
    notes, fix = rebuilt(found.tried[-1])
    largest = next(each for each in found.tried if each.work == found.batch)
    return Answer(claim=claim, leading=True, evidence=(*evidence, *copied(largest), *notes), fix=fix)


def _choices(found: MaxBatch) -> Iterator[str]:
    even = [each for each in found.even if each != found.batch]
    if even:
        yield f"Round choices: {' or '.join(f'{each:,}' for each in even)}; matrix products like multiples of 8."
    knee = found.knee
    if knee is not None and knee.work < (found.batch or 0):
        rate = f"{number(knee.per_s)} samples/s"
        yield f"A batch of {knee.work:,} already reaches {percent(GAINING_FRAC)} of the best rate: {rate}."


def _rate_bars(told: Sequence[Measured]) -> Iterator[Block]:
    """One for each size, but for those that are all but the largest."""
    best, largest = max(each.per_s for each in told), told[-1].work
    for each in told:
        if largest * (1 - NEAR_FRAC) < each.work < largest:
            continue
        name = f"{each.work:,}: {number(each.per_s)} samples/s"
        yield Line(name)
        yield Bar(title=name, segments=(Segment(_RATE, "", 1.0),), length=each.per_s / best)


def _tried(found: MaxBatch) -> Table:
    unit = scale(max(each.step_ns for each in found.tried))
    rows = [
        Row((f"{each.work:,}", each.verdict, size(each.needed_bytes), percent(each.used_frac),
             unit.number(each.step_ns), number(each.per_s) if each.verdict != TOO_LARGE else ""))
        for each in found.tried
    ]  # fmt: skip
    header = ("batch", "", "needs", "of the GPU", f"step, {unit.unit}", "samples/s")
    return Table(header=header, rows=tuple(rows), left=2, caption=origin_words(found.tried))
