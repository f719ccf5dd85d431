"""A rule about evaluations that wait for data, which no step of the training shows."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.steps.phases import RunPhase, evaluated_loader, training_and_evaluations, training_steps
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import sentences
from gpulab.rules.host.garbage_collection import mean_step_gain
from gpulab.run import Loader
from gpulab.tables import MarkKind
from gpulab.wording import count, duration, percent

_MIN_WAITING_FRAC = 0.05  # of training and evaluation together
_MIN_WAITING_OF_PHASE = 0.3  # with less, the model is the larger part of an evaluation
_COMPUTING_FRAC = 0.5  # a fetch with more CPU time than this computes
_MOST_WORKERS = 4  # without a training loader to compare with
_STARTS_FRAC = 0.6  # of the waiting: so much in the first batches shows that workers start for every pass
# Removed share of the waiting. Workers that compute share the cores with each other, and on a CPU with the model.
_WAITING, _COMPUTING, _COMPUTING_ON_CPU, _STARTS = (0.5, 1.0), (0.3, 1.0), (0.0, 0.6), (0.5, 1.0)


def slow_evaluation(evidence: Evidence) -> Finding | None:
    """Evaluations wait for data: the DataLoader of the validation has no workers, or starts them for every pass.

    Proof: the loop iterates over a DataLoader, and no optimizer steps meanwhile. The time inside its iterator's
    next() is a good part of the run.

    Confused with: an evaluation whose model takes the time; slow batches of the training (`no_workers`,
    `too_few_workers`); other code that runs every N steps (`periodic_stalls`).

    What to do: give the DataLoader of the evaluation workers, too, and keep them between evaluations
    (persistent_workers=True). Evaluate less often, or on fewer samples.
    """
    phases = training_and_evaluations(evidence.run)
    if phases is None:
        return None
    training, evaluations = phases
    worst = max(evaluations, key=lambda phase: phase.waiting_ns)
    total_ns = training.total_ns + sum(phase.total_ns for phase in evaluations)
    share, loader = worst.waiting_ns / total_ns, evaluated_loader(evidence.run, worst)
    if loader is None or share < _MIN_WAITING_FRAC or worst.waiting_frac < _MIN_WAITING_OF_PHASE:
        return None
    restarts = bool(loader.workers) and not loader.persistent_workers and _waits_for_first_batches(evidence, worst)
    if loader.workers and not restarts:
        return None  # whether more workers help depends on the cores that training and evaluation share
    workers = loader.workers or _workers(evidence)
    settings = {"num_workers": workers, "persistent_workers": True}
    change = change_loader(evidence, loader, settings, evaluates=True)
    return Finding(
        claim=_claim(evidence, worst, loader, share),
        evidence=(
            f"{count(worst.batches, 'batch')} in {count(worst.passes, 'pass')} took {duration(worst.total_ns)}, "
            f"{duration(worst.waiting_ns)} of it in next() of the DataLoader iterator.",
            f"{percent(worst.waiting_cpu_ns / max(1, worst.waiting_ns))} of that time is CPU time of the main thread.",
        ),
        numbers=known_numbers(
            frac=share, waiting_ns=worst.waiting_ns, evaluation_ns=worst.total_ns, workers=loader.workers
        ),
        fix=change.code,
        loader_settings=change.settings,
        function=change.function,
        advice=sentences(change.advice, "Evaluating less often, or on fewer samples, saves the same time."),
        gain=_gain(evidence, worst, total_ns, training_steps(evidence.run, training), bool(restarts)),
        confidence=LIKELY,
        from_steps=False,
        spans=worst.spans,
    )


def _claim(evidence: Evidence, phase: RunPhase, loader: Loader, share: float) -> str:
    name = f" with {loader.name}" if loader.name else ""
    cause = (
        f"its {count(loader.workers, 'worker')} start again for every pass"
        if loader.workers
        else "num_workers=0 loads batches in the main process"
    )
    return (
        f"Evaluation{name} takes {percent(phase.total_ns / evidence.run.span_ns)} of the run and waits for data for "
        f"{percent(phase.waiting_frac)} of that time: {cause}."
    )


def _waits_for_first_batches(evidence: Evidence, phase: RunPhase) -> bool:
    """Whether most of the waiting is for the first batch of each pass."""
    calls = evidence.run.mark_rows.of_kind(MarkKind.NEXT)
    calls = calls.select(calls["loader"] == phase.loader)
    first = np.append(True, np.diff(calls["epoch"]) != 0)
    waited_ns = calls["end_ns"] - calls["start_ns"]
    return bool(waited_ns[first].sum() > _STARTS_FRAC * waited_ns.sum()) and phase.passes > 1


def _workers(evidence: Evidence) -> int:
    """Return the number of workers to propose: that of the training, if it has some."""
    trained = [loader.workers for loader in evidence.run.loaders if loader.workers]
    cores = evidence.run.machine.cores_allowed or _MOST_WORKERS
    return max(trained, default=max(1, min(_MOST_WORKERS, int(cores))))


def _gain(evidence: Evidence, phase: RunPhase, total_ns: int, steps: int, restarts: bool) -> Gain | None:
    """Return the gain for the mean step, which includes its share of the evaluations."""
    computes = phase.waiting_cpu_ns > _COMPUTING_FRAC * phase.waiting_ns
    removed = _COMPUTING_ON_CPU if computes and not evidence.on_gpu else _COMPUTING if computes else _WAITING
    low, high = (percent(value).removesuffix(" %") for value in (_STARTS if restarts else removed))
    return mean_step_gain(
        round(total_ns / steps),
        round(phase.waiting_ns / steps),
        f"removing {low} to {high} % of the waiting in evaluations",
        "evaluations that do not wait for data",
        _STARTS if restarts else removed,
    )
