"""Does a training step fit on a GPU, how large may its batch be, and which GPU is worth its price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gpulab.errors import RunError
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.gpus import SPECS
from gpulab.hardware.lookup import resolve
from gpulab.virtual.host.garbage import collected_between_steps, set_aside
from gpulab.virtual.memory_fit.batch_search import ceiling_of, edges, look_for_edge
from gpulab.virtual.memory_fit.cpu_share import refuse_beyond_memory
from gpulab.virtual.memory_fit.measuring import (
    FITS,
    ROOM_FRAC,
    TOO_LARGE,
    Measured,
    Runner,
    Step,
    begun,
    measure,
    noted,
    playing,
    stretch,
    takes_one,
    tried,
    whole,
)
from gpulab.virtual.memory_fit.request_script import Script
from gpulab.virtual.op_log.ops import Role

MOST_SIZES = 6  # of batches that are tried first
NEAR_FRAC = 0.1  # of a batch: another that near has the same rate
GAINING_FRAC = 0.9  # of the best rate: a batch that reaches it need not be larger for speed
WORTH_FRAC = 0.075  # of the peak: what frees less is not worth the trouble


@dataclass(frozen=True, slots=True)
class Remedy:
    """A way to need less memory, and how much it frees at most; None where that cannot be told."""

    key: str
    frees_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class Fit:
    """Whether a step fits on a GPU."""

    measured: Measured
    remedies: tuple[Remedy, ...]  # most first; none where it fits
    larger: GpuSpec | None  # the smallest other GPU with room for it

    @property
    def verdict(self) -> str:
        """One of "fits", "tight" and "does not fit"."""
        return self.measured.verdict


@dataclass(frozen=True, kw_only=True)
class MaxBatch:
    """The largest batch that a GPU has room for."""

    spec: GpuSpec
    batch: int | None  # the largest that was tried and fits; None: not even one sample does
    refused: int | None  # the smallest that was tried and does not; None where the search ended before
    roomy: int | None  # the largest that leaves a tenth of the memory free, by a straight line between those tried
    fixed_bytes: float  # in use whatever the batch, at the peak
    sample_bytes: float  # in use for each sample, at the peak
    tried: tuple[Measured, ...]  # by batch

    @property
    def even(self) -> tuple[int, ...]:
        """Choices that suit the GPU below the largest: a multiple of 8, and a power of two."""
        if not self.batch:
            return ()
        found = {self.batch // 8 * 8, 2 ** (self.batch.bit_length() - 1)}
        return tuple(sorted((each for each in found if 0 < each <= self.batch), reverse=True))

    @property
    def knee(self) -> Measured | None:
        """The smallest batch tried with nearly the best rate."""
        fitting = [each for each in self.tried if each.verdict != TOO_LARGE]
        best = max((each.per_s for each in fitting), default=0.0)
        return next((each for each in fitting if each.per_s >= GAINING_FRAC * best), None)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One GPU for a step; None where no price was given, or nothing is known to reckon with."""

    measured: Measured
    price: float | None  # of an hour
    cost: float | None  # of 1000 samples, or steps
    cost_range: tuple[float, float] | None
    joules_range: tuple[float, float] | None  # of 1000 samples, or steps


@dataclass(frozen=True, kw_only=True)
class GpuComparison:
    """The same step on several GPUs: those it fits on by speed, then the others."""

    batch: int | None
    candidates: tuple[Candidate, ...]


def fits(step: Step, gpu: str, batch: int | None = None, *, runner: Runner) -> Fit:
    """Whether a step has room on a GPU, and what would help where it has not."""
    measured = measure(step, gpu, batch, runner=runner)
    if measured.verdict == FITS:
        return Fit(measured=measured, remedies=(), larger=None)
    roomy = [each for each in SPECS if measured.needed_bytes <= ROOM_FRAC * each.usable_bytes]
    smallest = min(roomy, key=lambda each: each.usable_bytes, default=None)
    return Fit(measured=measured, remedies=tuple(_remedies(measured)), larger=smallest)


def max_batch(step: Step, gpu: str, start: int = 8, *, runner: Runner) -> MaxBatch:
    """The largest batch that a GPU has room for: small ones tell what a sample needs, and large ones try what it says.

    Raises RunError for a step that takes no batch size, and for one whose memory does not grow with it.
    """
    wanted = resolve(gpu)
    if start < 1:
        raise RunError(f"A batch of {start} is none.", why="the search begins with it", fix="give start=1 or more")
    with collected_between_steps():
        known, script = _first_sizes(step, wanted, start, runner)
        with set_aside():  # what there is by now is searched once, not again for each GPU
            look_for_edge(known, script, lambda batch: _tried(step, wanted, batch, known, runner))
    return _largest(wanted, [known[batch] for batch in sorted(known)])


def _tried(
    step: Step, wanted: GpuSpec, batch: int, known: Mapping[int, Measured], runner: Runner
) -> tuple[Measured, Script]:
    """The next size, where this machine has room for what the step makes on the CPU."""
    _refuse_beyond_memory(known, batch)
    return tried(step, wanted, batch, runner=runner)


def _refuse_beyond_memory(known: Mapping[int, Measured], batch: int) -> None:
    last = known[max(known)]
    refuse_beyond_memory(last.from_host, last.work, batch)


def _first_sizes(step: Step, wanted: GpuSpec, start: int, runner: Runner) -> tuple[dict[int, Measured], Script]:
    """Small batches on one GPU, where the model need not be built for each: what a sample needs, and their rates."""
    known: dict[int, Measured] = {}
    with playing(runner, wanted, keep=False) as played:
        script = noted(played)
        body = begun(step, start)
        script.end_part()
        if takes_one(body) is None:
            raise RunError(
                "The largest batch cannot be looked for.",
                why="the step takes no batch size",
                fix="write it as a function of the batch size: def step(batch): ...",
            )
        following: int | None = start
        while following is not None:
            if known:
                _refuse_beyond_memory(known, following)
                played.memory.empty_cache()
            collect = not known or any(told.rebuilt for told in known.values())  # it takes a while
            told = stretch(played, wanted, body, following, collect=collect, ranged=False)
            known[following] = told if known else whole(played, told)
            script.end_part()
            following = _growing(known)
    return known, script


def _growing(known: Mapping[int, Measured]) -> int | None:
    """The next of the first sizes, always a larger one: a smaller would wait for a GPU that is busy with the last."""
    last = max(known)
    if len(known) == 1:
        return 2 * last
    ceiling = ceiling_of(known)
    if ceiling is None:
        return 4 * last if len(known) < MOST_SIZES else None
    wanted = [each // 8 * 8 if each >= 16 else each for each in (ceiling // 4, ceiling // 2)]
    return next((each for each in wanted if each > last * (1 + NEAR_FRAC)), None)


def compare_gpus(
    step: Step, gpus: Sequence[str], batch: int | None = None, price: Mapping[str, float] | None = None, *,
    runner: Runner,
) -> GpuComparison:  # fmt: skip
    """The same step on several GPUs. `price`: of an hour, by GPU. Raises RunError for a GPU that is not listed."""
    wanted = {each.name: each for each in map(resolve, gpus)}
    prices = {resolve(gpu).name: value for gpu, value in (price or {}).items()}
    if not wanted or not prices.keys() <= wanted.keys():
        other = next((name for name in prices if name not in wanted), "")
        raise RunError(
            "The GPUs cannot be compared.",
            why=f"a price was given for {other}, which is not among them" if other else "none was named",
            fix=f"add it: compare_gpus(step, [..., {other!r}])" if other else 'name some: ["h100", "a100", "t4"]',
        )
    told = [_candidate(measure(step, name, batch, runner=runner), prices.get(name)) for name in wanted]
    told.sort(key=lambda each: (each.measured.verdict == TOO_LARGE, -each.measured.per_s))
    return GpuComparison(batch=batch, candidates=tuple(told))


def _needed(told: Measured) -> float:
    return told.needed_bytes


def _in_use(told: Measured) -> float:
    return told.peak.bytes


def _slope(one: Measured, other: Measured, of: Callable[[Measured], float]) -> float:
    """Bytes a sample; 0 where more of them need no more."""
    return max(0.0, (of(other) - of(one)) / (other.work - one.work))


def _largest(wanted: GpuSpec, told: Sequence[Measured]) -> MaxBatch:
    low, high = edges({each.work: each for each in told})
    fitting = [each for each in told if each.work <= low] or list(told)
    first, last = fitting[0], fitting[-1]
    sample = fixed = 0.0
    if len(told) > 1:
        other = last if last is not first else told[1]
        sample = _slope(first, other, _in_use)
        fixed = first.peak.bytes - sample * first.work
    if high is None and not sample:
        raise RunError(
            "The largest batch cannot be looked for.",
            why=f"a batch of {last.work} needs no more memory than one of {first.work}",
            fix="let the step make its batch in the size that it is called with",
        )
    return MaxBatch(
        spec=wanted,
        batch=low or None,
        refused=high,
        roomy=_roomy(fitting) if low else None,
        fixed_bytes=fixed,
        sample_bytes=sample,
        tried=tuple(told),
    )


def _roomy(fitting: Sequence[Measured]) -> int | None:
    """The largest batch that leaves a tenth of the memory free: between the two tried on either side of that."""
    before = [each for each in fitting if each.verdict == FITS]
    after = [each for each in fitting if each.verdict != FITS]
    if not before or not after:
        return before[-1].work if before else None
    one, other = before[-1], after[0]
    slope = _slope(one, other, _needed)
    room = ROOM_FRAC * one.usable_bytes - one.needed_bytes
    return one.work if not slope else min(other.work - 1, one.work + int(room // slope))


def _candidate(measured: Measured, price: float | None) -> Candidate:
    thousand = 1000 / measured.work
    hour = None if price is None else price * thousand / 3.6e12  # for each ns of a step
    joules = measured.joules_range
    return Candidate(
        measured=measured,
        price=price,
        cost=None if hour is None else hour * measured.step_ns,
        cost_range=None if hour is None else _each(measured.range_ns, hour),
        joules_range=_each(joules, thousand),
    )


def _each(pair: tuple[float, float] | None, times: float) -> tuple[float, float] | None:
    return None if pair is None else (pair[0] * times, pair[1] * times)


def _remedies(measured: Measured) -> list[Remedy]:
    """Ways to need less, by what most is used for."""
    held, total = measured.peak.by_role, measured.peak.bytes
    kept = held.get(Role.ACTIVATION, 0)
    by_batch = kept + held.get(Role.TEMPORARY, 0)
    cached = measured.reserved_bytes - total
    found = [
        Remedy("checkpoint", kept),
        Remedy("batch", by_batch // 2),
        Remedy("autocast", kept // 2),
        Remedy("optimizer", held.get(Role.OPTIMIZER, 0) // 2),
        Remedy("parameters", (held.get(Role.PARAMETER, 0) + held.get(Role.GRADIENT, 0)) // 2),
        Remedy("segments", cached),
    ]
    worth = [each for each in found if (each.frees_bytes or 0) >= WORTH_FRAC * total]
    if measured.squeezed and found[-1] not in worth:
        worth.append(Remedy("segments", None))
    return sorted(worth, key=lambda each: -(each.frees_bytes or 0))
