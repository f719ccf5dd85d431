"""Rules about steps that are much longer than the others: periodic stalls, epoch starts, and the first steps."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.host.gc_and_compilation import stall_spans
from gpulab.analysis.steps.detection import MIN_STEPS
from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.analysis.steps.pauses import PassStarts, Pauses, find_pauses, pass_start_cost
from gpulab.intervals import Spans, clip
from gpulab.replay.rewrites.steps.async_checkpoint import SAVE_CALLS
from gpulab.rules.data.loader_code import change_loader
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.rules.engine.phrases import sentences
from gpulab.rules.host.garbage_collection import mean_step_gain
from gpulab.run import Loader
from gpulab.tables import StallKind
from gpulab.wording import count, duration, percent, plural

_MIN_STALL_FRAC = 0.05  # of the time
_SLOW_FIRST_STEP = 3.0  # a first step this many times as long as the median is a warm-up
_MIN_WARM_UP_FRAC = 0.10  # of the whole run; shorter warm-ups are not reported
_MOST_OF_RUN_FRAC = 0.5  # a warm-up that takes most of the run is the verdict
_LESS_OFTEN = 10  # times, in the fix
_PHASE_FRAC = 0.3  # of the time: other code that takes so much may be a part of the training, such as a rollout
_ADVICE = {
    "saving": "Call save_in_background instead of torch.save: training goes on while a thread writes a copy. A "
    "checkpoint every 10 to 30 minutes is often enough.",
    "logging": "Collect the values on the device and log them every few hundred steps.",
}
_ACTIVATION_CHECKPOINTING = "torch.utils.checkpoint"
_LOGGING = (
    "torch.utils.tensorboard",
    "wandb",
    "mlflow",
    "logging.",
    "matplotlib",
    "tqdm",
    "tensorboard",
    "csv.",
    "json.",
)


def periodic_stalls(evidence: Evidence) -> Finding | None:
    """Some steps, often every n-th, are much longer: the loop writes a checkpoint, a log entry or a picture.

    Proof: the durations of all steps, traced or not. A step counts if it is half as long again as the median and stands
    out from the spread, after subtracting waits for batches, garbage collection and compilation. Samples of the main
    thread show which line ran.

    Confused with: an evaluation (batches of another DataLoader: work, not a stall); other parts of the training that
    come every N steps, such as the rollouts of reinforcement learning; the start of an epoch with new workers, which is
    reported as such; the first steps (`slow_first_step`); ordinary variation.

    What to do: do it less often, or in a background thread. If it is a part of the training, record it on its own to
    see what limits it.
    """
    stalls, epoch_starts = find_pauses(evidence.run, evidence.steps), pass_start_cost(evidence.run, evidence.steps)
    if stalls is not None and stalls.frac >= _MIN_STALL_FRAC and _is_proven(stalls):
        return _stall_finding(evidence, stalls)
    if (
        epoch_starts is not None
        and epoch_starts.frac >= _MIN_STALL_FRAC
        and (loader := _restarts(evidence)) is not None
    ):
        return _restart_finding(evidence, epoch_starts, loader)
    return None


def _is_proven(stalls: Pauses) -> bool:
    """Whether the code that ran is known, or the stalls are regular; every second step may be ordinary work."""
    return bool(_kind(stalls.library_call)) or (stalls.period_steps or 0) > 2


def slow_first_step(evidence: Evidence) -> Finding | None:
    """The first steps take much longer than the others, once.

    Proof: the step marks: the first or second step takes more than three times the median of the steps after warm-up.

    Confused with: recompilation, which happens again (`recompilation`); stalls every n-th step (`periodic_stalls`).

    What to do: usually nothing; exclude these steps from measurements. If jobs are short and start often, cache
    compiled code.
    """
    steps = evidence.steps
    warm = steps.dur_ns[steps.unprofiled | steps.interior]
    if len(warm) < MIN_STEPS:
        return None
    # Where batches arrive in groups, most steps do not wait, so the median is not typical.
    median_ns = float(steps.step_ns if steps.burst > 1 and steps.step_ns is not None else np.median(warm))
    is_early = np.arange(len(steps)) < WARM_UP_STEPS + 1
    is_slow = is_early & (steps.dur_ns > _SLOW_FIRST_STEP * median_ns)
    extra_ns = int((steps.dur_ns[is_slow] - median_ns).sum())
    total_ns = int(steps.dur_ns.sum())
    if not is_slow.any() or extra_ns < _MIN_WARM_UP_FRAC * total_ns:
        return None
    share = extra_ns / total_ns
    spans = Spans(steps.start_ns[is_slow], steps.end_ns[is_slow])
    count, workers_restart = int(is_slow.sum()), _may_restart(training_loader(evidence.run))
    subject, typical = "The first step takes", "a typical step"
    if count > 1:
        subject, typical = f"Together, the first {count} steps take", f"{count} typical steps"
    return Finding(
        claim=f"{subject} {duration(extra_ns)} longer than {typical}{'' if workers_restart else ', once'}: "
        f"{_warm_up_cause(evidence, spans, extra_ns)}.",
        evidence=(
            f"The median of all warm steps is {duration(median_ns)}; the warm-up is {percent(share)} of the "
            f"{duration(total_ns)} that all {len(steps):,} steps took.",
        ),
        numbers=known_numbers(extra_ns=extra_ns, typical_ns=median_ns, frac=share),
        advice="Exclude the first steps when you time a loop. "
        + (
            "Workers start again in every epoch unless persistent_workers=True; the rest happens once per run."
            if workers_restart
            else "It happens once per run; in a long training run it does not matter."
        ),
        confidence=CERTAIN,
        from_steps=False,
        spans=spans,
        informs_only=share < _MOST_OF_RUN_FRAC,
    )


def _stall_finding(evidence: Evidence, stalls: Pauses) -> Finding:
    kind = _kind(stalls.library_call)
    occurrence = (
        f"Every {stalls.period_steps} steps"
        if stalls.period_steps
        else f"{count(stalls.count, 'time')} in {stalls.steps} steps"
    )
    is_phase = not kind and stalls.frac >= _PHASE_FRAC
    return Finding(
        claim=_stall_claim(stalls, kind, occurrence, is_phase=is_phase),
        evidence=(
            f"{stalls.count} of {stalls.steps} steps {plural(stalls.count, 'takes', 'take')} "
            f"{duration(stalls.typical_cost_ns)} more than the usual {duration(stalls.step_median_ns)}, not counting "
            f"waits for data; averaged over all steps, that is {duration(stalls.total_ns / stalls.steps)} per step.",
            *_sample_evidence(stalls),
        ),
        numbers=known_numbers(
            frac=stalls.frac, each_ns=stalls.typical_cost_ns, count=stalls.count, every=stalls.period_steps or None
        ),
        fix=_SAVE_IN_BACKGROUND if kind == "saving" else "",
        advice=_stall_advice(stalls, kind, is_phase=is_phase),
        # A part of the training cannot be removed.
        gain=None if is_phase else _gain_without_stalls(stalls),
        confidence=LIKELY if kind else SUSPECT,
        confidence_reason="" if kind else "the code that ran in these steps is uncertain",
        from_steps=False,
        spans=stalls.spans,
    )


def _gain_without_stalls(stalls: Pauses) -> Gain | None:
    return mean_step_gain(
        stalls.step_mean_ns,
        round(stalls.total_ns / stalls.steps),
        "removing 70 to 100 % of the stalls",
        "a loop without these stalls",
        (0.7, 1.0),
    )


def _stall_claim(stalls: Pauses, kind: str, occurrence: str, *, is_phase: bool) -> str:
    location = f" ({stalls.frame})" if stalls.frame else ""
    cost, share = duration(stalls.typical_cost_ns), f"{percent(stalls.frac)} of the time"
    if is_phase:
        return f"{occurrence} other code of the loop runs for {cost}{location}: {share}."
    action = {"saving": "a checkpoint is written", "logging": "values are logged"}.get(kind, "other code runs")
    return f"{occurrence} the loop stalls for {cost} while {action}{location}: {share}."


def _stall_advice(stalls: Pauses, kind: str, *, is_phase: bool) -> str:
    less_often = f"do it less often, for example every {_less_often(stalls):,} steps, or in a thread."
    if is_phase:
        return (
            "If it is a part of the training, such as a rollout or an evaluation, record it on its own to see what "
            f"limits it. Otherwise, {less_often}"
        )
    return _ADVICE.get(kind, f"{less_often[0].upper()}{less_often[1:]}")


def _restart_finding(evidence: Evidence, starts: PassStarts, loader: Loader) -> Finding:
    workers = loader.workers or 0
    change = change_loader(evidence, loader, {"num_workers": workers, "persistent_workers": True})
    warm = evidence.steps.dur_ns[evidence.steps.unprofiled | evidence.steps.interior]
    step_ns = int(warm.mean()) if len(warm) else 0
    return Finding(
        claim=f"Each epoch starts with a wait of {duration(starts.each_ns)} while "
        f"{count(workers, 'DataLoader worker')} {plural(workers, 'restarts', 'restart')}: "
        f"{percent(starts.frac)} of the time.",
        evidence=(
            f"In {count(starts.count, 'epoch')} after the first, the first batch took {duration(starts.each_ns)} "
            "longer than other batches.",
            "persistent_workers is off, so the workers exit after every epoch.",
        ),
        numbers=known_numbers(frac=starts.frac, each_ns=starts.each_ns, count=starts.count),
        fix=change.code,
        loader_settings=change.settings,
        function=change.function,
        advice=sentences(
            change.advice,
            "Workers then also keep their state (open files, tables). If epochs are very short, let one epoch go over "
            "the data several times.",
        ),
        gain=mean_step_gain(
            step_ns,
            round(starts.frac * step_ns),
            "removing 50 to 100 % of the restarts",
            "no restart of workers",
            (0.5, 1.0),
        ),
        confidence=LIKELY,
        from_steps=False,
        spans=starts.spans,
    )


def _restarts(evidence: Evidence) -> Loader | None:
    """Return the loader whose workers exit after every epoch; None if there is none."""
    loader = training_loader(evidence.run)
    return loader if loader is not None and loader.persistent_workers is False and _may_restart(loader) else None


def _may_restart(loader: Loader | None) -> bool:
    """Whether there are workers, and they are not known to stay alive between epochs."""
    return loader is not None and bool(loader.workers) and not loader.persistent_workers


def _kind(function: str | None) -> str:
    if function is None:
        return ""
    is_save = any(word in function.lower() for word in ("save", "checkpoint"))  # "__main__.save_checkpoint"
    if function.startswith(SAVE_CALLS) or (is_save and not function.startswith(_ACTIVATION_CHECKPOINTING)):
        return "saving"
    return "logging" if function.startswith(_LOGGING) else ""


def _sample_evidence(stalls: Pauses) -> tuple[str, ...]:
    if not stalls.frame:
        return ()
    call = f", calling {stalls.library_call}" if stalls.library_call else ""
    return (f"{stalls.samples} samples of the main thread in these steps are at {stalls.frame}{call}.",)


def _warm_up_cause(evidence: Evidence, spans: Spans, extra_ns: int) -> str:
    """Return what took that long, as far as recorded."""
    compilations = stall_spans(evidence.run, StallKind.COMPILE)
    compile_ns = sum(clip(compilations, start, end).total_ns for start, end in zip(*spans, strict=True))
    if compile_ns >= extra_ns / 2:
        return "torch.compile compiles the model"
    if any(loader.workers for loader in evidence.run.loaders):
        return "workers start, libraries load, memory is allocated"
    return "libraries load, memory is allocated, and libraries search for the fastest kernels"


def _less_often(stalls: Pauses) -> int:
    """Return ten times the present number of steps between two stalls."""
    return _LESS_OFTEN * (stalls.period_steps or max(1, stalls.steps // stalls.count))


_SAVE_IN_BACKGROUND = """import copy
import threading
import torch

def on_the_host(state):  # a copy that training does not change
    if torch.is_tensor(state):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        result = copy.copy(state)
        result.update((key, on_the_host(value)) for key, value in state.items())
        return result
    if type(state) in (list, tuple):
        return type(state)(map(on_the_host, state))
    return copy.deepcopy(state)

writers = []

def save_in_background(state, path):  # call it instead of torch.save(state, path), with state_dict()s
    while writers:
        writers.pop().join()  # one checkpoint at a time, in order
    writers.append(threading.Thread(target=torch.save, args=(on_the_host(state), path)))
    writers[-1].start()"""
