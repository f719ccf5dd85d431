"""Phases of a run, from the marks of all its steps: training, evaluation, and the rest.

A pass over a DataLoader in which an optimizer steps is training; one without is evaluation: the validation after an
epoch or every N steps, or the sanity check before training. Evaluations without a DataLoader are known by their code
(`gpulab.analysis.steps.evaluations`). A run whose optimizers never step has no training.
Phases that the program names with gpulab.phase(), or its framework's callback, take precedence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import compress

import numpy as np

from gpulab.analysis.data.training_loader import RARE_UPDATES_FRAC
from gpulab.analysis.events.named_phases import evaluation_spans, named_ranges, phase_spans, times_of_phase
from gpulab.analysis.events.per_run import cached_by_run
from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.steps.evaluations.evaluating_code import CodeEvaluations, find_code_evaluations
from gpulab.intervals import Ints, Spans, covered_ns, gaps, intersect, no_spans, subtract, union, union_of
from gpulab.phase_names import means_evaluation, means_training
from gpulab.rows import Rows
from gpulab.run import Loader, Run
from gpulab.tables import MarkKind

_MIN_BATCHES = 2  # a single batch, taken to look at it, is no pass
_MANY_UPDATES_FRAC = 0.1  # of all updates: so many outside the DataLoaders are a training loop of their own
_MOST_LOADERS = 8  # of evaluations; a program that makes more has one for each client, fold or file
_MIN_GAPS = 2  # between epochs: what comes once is no habit
_MIN_GAP_FRAC = 0.1  # of the longest gap: shorter ones are the code around an evaluation
_AS_LONG = 2  # times the median gap


class PhaseKind(Enum):
    """Kind of phase; the value is its label."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PASSES = "passes over a DataLoader"  # in a run without updates, where they may be anything
    PART = "part of the program"  # any other phase that the program named
    OTHER = "other code"
    PROFILER = "paused by the profiler"


@dataclass(frozen=True, kw_only=True, eq=False)
class RunPhase:
    """All time of one kind; the phases of a run partition it exactly."""

    kind: PhaseKind
    spans: Spans
    name: str = ""  # as the program named it
    times: int = 0  # how often it began, if it was named
    loader: int = -1  # index into run.loaders of an evaluation; -1 otherwise
    passes: int = 0  # over DataLoaders
    batches: int = 0
    updates: int = 0  # of optimizers
    waiting_ns: int = 0  # inside next() of a DataLoader iterator
    waiting_cpu_ns: int = 0  # CPU time of the main thread in there
    code: CodeEvaluations | None = None  # of evaluations without a DataLoader

    @property
    def occurrences(self) -> int:
        """How often the phase ran: passes over DataLoaders, without any the times that it began."""
        return self.passes or self.times

    @property
    def total_ns(self) -> int:
        """Time of the phase."""
        return self.spans.total_ns

    @property
    def waiting_frac(self) -> float:
        """Share of the phase inside next() of a DataLoader iterator."""
        return self.waiting_ns / max(1, self.total_ns)


@dataclass(frozen=True)
class _Pass:
    """One pass over a DataLoader."""

    loader: int
    start_ns: int
    last_ns: int  # the end of its last call
    end_ns: int
    batches: int
    is_training: bool


@dataclass(frozen=True, kw_only=True)
class _Claim:
    """A phase that claims time, of which earlier ones may have taken some."""

    kind: PhaseKind
    spans: Spans
    name: str = ""
    times: int = 0
    loader: int = -1
    passes: list[_Pass] = field(default_factory=list)
    batches: int = 0
    updates: int = 0
    code: CodeEvaluations | None = None


@cached_by_run
def find_phases(run: Run) -> tuple[RunPhase, ...]:
    """Find the phases of a run, longest first; () if it has no passes over a DataLoader, updates or named phases.

    Phases that the program named have these names. Marks that gpulab did not keep, in a very long run, count as other
    code.
    """
    names = [name for name in phase_spans(run) if not means_evaluation(name)]
    training = [name for name in names if means_training(name)]
    return _partition(run, names if len(training) > 1 else [name for name in names if not means_training(name)])


@cached_by_run
def loop_phases(run: Run) -> tuple[RunPhase, ...]:
    """Find training, evaluations and other code, longest first: as `find_phases`, but without parts of the training."""
    return _partition(run, ())


def _partition(run: Run, parts: Sequence[str]) -> tuple[RunPhase, ...]:
    """Partition a run; `parts` are the names of phases that are neither the training nor an evaluation."""
    names, updates = phase_spans(run), _update_ends_ns(run)
    passes = _passes(run, updates, least=1)
    if not names and not len(updates) and all(each.batches < _MIN_BATCHES for each in passes):
        return ()
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    run_spans = union([0], [run.span_ns])
    paused = intersect(pauses_of(run), run_spans)
    left = subtract(run_spans, paused)
    phases = [RunPhase(kind=PhaseKind.PROFILER, spans=paused)]
    for claim in _claims(run, passes, updates, parts):
        spans = intersect(claim.spans, left)
        phases.append(_phase(claim, calls, spans))
        left = subtract(left, spans)
    phases.append(RunPhase(kind=PhaseKind.OTHER, spans=left))
    return tuple(sorted((phase for phase in phases if phase.total_ns), key=lambda phase: -phase.total_ns))


def _claims(run: Run, passes: list[_Pass], updates: Ints, parts: Sequence[str]) -> list[_Claim]:
    """Return the phases that claim time, the first of them first: named parts, evaluations, training."""
    names, calls = phase_spans(run), run.mark_rows.of_kind(MarkKind.NEXT)
    claims = [
        _Claim(
            kind=PhaseKind.PART,
            name=name,
            spans=names[name],
            times=times_of_phase(run, name),
            batches=int((covered_ns(names[name], calls["start_ns"], calls["end_ns"]) > 0)[calls["yielded"]].sum()),
            updates=int((covered_ns(names[name], updates - 1, updates) > 0).sum()),
        )
        for name in parts
    ]
    trained = [each for each in passes if each.is_training and each.batches >= _MIN_BATCHES]
    batches = sum(each.batches for each in trained) - sum(claim.batches for claim in claims)
    elsewhere = sum(claim.updates for claim in claims)
    claims += _evaluations(run, [each for each in passes if not each.is_training], bool(len(updates)))
    if (code := code_evaluations(run)) is not None:
        count = len(code.spans.start_ns)
        claims.append(_Claim(kind=PhaseKind.EVALUATION, spans=code.spans, times=count, code=code))
    detected = union_of(_spans(trained), _updating(updates, _spans(trained)))
    training = [name for name in names if means_training(name) and name not in parts]
    claims.append(
        _Claim(
            kind=PhaseKind.TRAINING,
            name=training[0] if len(training) == 1 else "",
            spans=union_of(detected, *(names[name] for name in training)),
            passes=trained,
            batches=max(0, batches),
            updates=len(updates) - elsewhere,
        )
    )
    return claims


def _evaluations(run: Run, passes: list[_Pass], has_updates: bool) -> list[_Claim]:
    """Return the evaluations: those that the program named, then those of each DataLoader that is left.

    An evaluation within an epoch is not training; of two evaluations at a time, the one with fewer batches counts.
    """
    names = phase_spans(run)
    ranges = {name: named_ranges(run, name) for name in names if means_evaluation(name)}
    by_name, rest = [], passes
    for name in sorted(ranges, key=lambda name: ranges[name].total_ns):  # the inner one of two first
        is_inside = [_is_mostly_in(ranges[name], each.start_ns, each.last_ns) for each in rest]
        inside = list(compress(rest, is_inside))
        rest = list(compress(rest, (not value for value in is_inside)))
        # The program may name an evaluation only after its first batch.
        spans = union_of(names[name], union([each.start_ns for each in inside], [each.last_ns for each in inside]))
        by_name.append(_evaluation(PhaseKind.EVALUATION, inside, spans, name, times_of_phase(run, name)))
    kind = PhaseKind.EVALUATION if has_updates else PhaseKind.PASSES
    by_loader: defaultdict[str | int, list[_Pass]] = defaultdict(list)
    many = len({one.loader for one in rest}) > _MOST_LOADERS
    for one in rest:
        if one.batches >= _MIN_BATCHES:
            by_loader[_loader_name(run, one.loader) if many else one.loader].append(one)
    unnamed = [_evaluation(kind, evaluated, _spans(evaluated)) for evaluated in by_loader.values()]
    return [*by_name, *sorted(unnamed, key=lambda claim: (claim.batches, claim.loader))]


@cached_by_run
def code_evaluations(run: Run) -> CodeEvaluations | None:
    """Find the evaluations that the program does not name and that iterate over no DataLoader; None without any."""
    updates = _update_ends_ns(run)
    passes = [each for each in _passes(run, updates, least=1) if not each.is_training]
    elsewhere = union_of(*(claim.spans for claim in _evaluations(run, passes, bool(len(updates)))))
    return find_code_evaluations(run, elsewhere=elsewhere, paused=pauses_of(run))


def _loader_name(run: Run, index: int) -> str:
    return (run.loaders[index].name if 0 <= index < len(run.loaders) else None) or ""


def _is_mostly_in(spans: Spans, start_ns: int, end_ns: int) -> bool:
    return bool(2 * covered_ns(spans, [start_ns], [end_ns])[0] > end_ns - start_ns)


def _evaluation(kind: PhaseKind, passes: list[_Pass], spans: Spans, name: str = "", times: int = 0) -> _Claim:
    most = max(passes, key=lambda each: (each.batches, -each.loader), default=None)
    return _Claim(
        kind=kind,
        name=name,
        spans=spans,
        loader=-1 if most is None else most.loader,
        passes=passes,
        batches=sum(each.batches for each in passes),
        times=times,
    )


def gaps_between_epochs(run: Run) -> Spans | None:
    """Return the time between epochs over the same DataLoader, without evaluations, if there is some at least twice.

    Code before a new DataLoader may make its data, as a rollout does, or a fold of a cross-validation. Code after the
    last epoch counts if it takes about as long as that after the others, as do samples that are drawn after each epoch.
    """
    updates = _update_ends_ns(run)
    passes = _passes(run, updates)
    trained = sorted((each for each in passes if each.is_training), key=lambda each: each.start_ns)
    if not trained:
        return None
    code = code_evaluations(run)
    worked = union_of(_spans(passes), evaluation_spans(run), no_spans() if code is None else code.spans)
    between = _without_updates(gaps(worked, trained[0].start_ns, run.span_ns), updates)
    length_ns = between.end_ns - between.start_ns - covered_ns(pauses_of(run), *between)
    following = np.searchsorted([each.start_ns for each in trained], between.end_ns)
    loaders = np.array([*(each.loader for each in trained), -1])
    has_time = length_ns > 0
    inside = np.flatnonzero(has_time & (loaders[following] == loaders[following - 1]))
    inside = inside[length_ns[inside] >= _MIN_GAP_FRAC * length_ns[inside].max(initial=0)]
    after = np.flatnonzero(has_time & (following == len(trained)))[:1]
    if len(inside):
        after = after[length_ns[after] <= _AS_LONG * np.median(length_ns[inside])]
    chosen = np.append(inside, after)
    return Spans(between.start_ns[chosen], between.end_ns[chosen]) if len(chosen) >= _MIN_GAPS else None


def _without_updates(between: Spans, updates: Ints) -> Spans:
    """Return the gaps in which nothing is trained; one with a single update begins after it.

    A DataLoader that fetches a batch ahead, as Accelerate's does, ends a pass before the step of the last batch.
    """
    first, last = (np.searchsorted(updates, at_ns) for at_ns in between)
    ends_ns = np.append(updates, 0)[last - 1]
    start_ns = np.where(last - first == 1, ends_ns, between.start_ns)
    is_gap = (last - first <= 1) & (start_ns < between.end_ns)
    return Spans(start_ns[is_gap], between.end_ns[is_gap])


def training_and_evaluations(run: Run) -> tuple[RunPhase, list[RunPhase]] | None:
    """Return the training and the evaluations of a run, longest first; None if it has not both."""
    phases = loop_phases(run)
    training = next((phase for phase in phases if phase.kind is PhaseKind.TRAINING and phase.updates), None)
    evaluations = [phase for phase in phases if phase.kind is PhaseKind.EVALUATION]
    return None if training is None or not evaluations else (training, evaluations)


def training_share(run: Run) -> float:
    """Return the share of the training in the time of training and evaluations, 0-1; 1 without evaluations."""
    phases = training_and_evaluations(run)
    if phases is None:
        return 1.0
    training_ns = phases[0].total_ns
    return training_ns / max(1, training_ns + sum(phase.total_ns for phase in phases[1]))


def training_steps(run: Run, training: RunPhase) -> int:
    """Return the number of training steps: optimizers that take turns, as in a GAN, step once in each."""
    updates = run.mark_rows.of_kind(MarkKind.OPTIMIZER)
    numbers = updates["optimizer"][np.argsort(updates["end_ns"], kind="stable")]
    steps, in_this_step = 0, set[int]()
    for number in numbers.tolist():
        if not in_this_step or number in in_this_step:
            steps, in_this_step = steps + 1, set()
        in_this_step.add(number)
    return max(1, round(steps * training.updates / max(1, len(numbers))))


def evaluated_by(run: Run, phase: RunPhase) -> str:
    """Return the function or the DataLoader of an evaluation; "" if it has no name."""
    if phase.code is not None:
        return phase.code.function
    loader = evaluated_loader(run, phase)
    return (loader.name if loader is not None else None) or ""


def evaluated_loader(run: Run, phase: RunPhase) -> Loader | None:
    """Return the settings of the DataLoader of an evaluation."""
    return run.loaders[phase.loader] if 0 <= phase.loader < len(run.loaders) else None


def _phase(claim: _Claim, calls: Rows, spans: Spans) -> RunPhase:
    inside_ns = covered_ns(spans, calls["start_ns"], calls["end_ns"])
    is_own = inside_ns > 0
    if claim.kind is not PhaseKind.PART:
        is_own &= np.isin(calls["loader"], [each.loader for each in claim.passes])
    return RunPhase(
        kind=claim.kind,
        name=claim.name,
        spans=spans,
        loader=claim.loader,
        passes=len(claim.passes),
        batches=claim.batches,
        updates=claim.updates,
        times=claim.times,
        code=claim.code,
        waiting_ns=int(inside_ns[is_own].sum()),
        waiting_cpu_ns=int(calls["thread_cpu_ns"][is_own].sum()),
    )


def _update_ends_ns(run: Run) -> Ints:
    return np.sort(run.mark_rows.of_kind(MarkKind.OPTIMIZER)["end_ns"])


def _passes(run: Run, updates: Ints, least: int = _MIN_BATCHES) -> list[_Pass]:
    """Return the passes over DataLoaders with at least so many batches."""
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    if not len(calls):
        return []
    order = np.lexsort((calls["start_ns"], calls["epoch"], calls["loader"]))
    loader, epoch = calls["loader"][order], calls["epoch"][order]
    begins = np.flatnonzero(np.append(True, (np.diff(loader) != 0) | (np.diff(epoch) != 0)))
    passes = []
    for rows in np.split(order, begins[1:]):
        batches = int(calls["yielded"][rows].sum())
        if batches < least:
            continue
        start_ns, end_ns = int(calls["start_ns"][rows[0]]), _end_ns(calls.select(rows))
        last_ns = int(calls["end_ns"][rows[-1]])
        if _is_mostly_in(evaluation_spans(run), start_ns, last_ns):
            end_ns = last_ns  # a training may follow at once
        inside = int(np.searchsorted(updates, end_ns) - np.searchsorted(updates, start_ns))
        is_training = inside > RARE_UPDATES_FRAC * batches
        loader_index = int(calls["loader"][rows[0]])
        passes.append(_Pass(loader_index, start_ns, last_ns, end_ns, batches, is_training))
    return passes


def _end_ns(calls: Rows) -> int:
    """Return when a pass ended: with the call that yielded nothing, else about when its last batch was done."""
    end_ns = int(calls["end_ns"].max())
    if not calls["yielded"].all() or len(calls) == 1:
        return end_ns
    return end_ns + int(np.median(calls["start_ns"][1:] - calls["end_ns"][:-1]))


def _spans(passes: list[_Pass]) -> Spans:
    return union([each.start_ns for each in passes], [each.end_ns for each in passes]) if passes else no_spans()


def _updating(updates: Ints, trained: Spans) -> Spans:
    """Return the time from the first to the last update outside the passes that are trained on, if there are many.

    In a loop without a DataLoader, these are all updates.
    """
    outside = updates[covered_ns(trained, updates - 1, updates) == 0]
    if len(outside) < max(_MIN_BATCHES, _MANY_UPDATES_FRAC * len(updates)):
        return no_spans()
    step_ns = int(np.median(np.diff(outside)))  # of the step before the first update
    return union([max(0, int(outside[0]) - step_ns)], [int(outside[-1])])
