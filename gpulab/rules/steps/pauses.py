"""Rules about steps that take far longer than the others: now and then, at the beginning of a pass, or once."""

from __future__ import annotations

import numpy as np

from gpulab.analysis.data.loader import leading_loader
from gpulab.analysis.host.gc_and_compilation import stalled
from gpulab.analysis.steps.detection import FEW, WARM_UP
from gpulab.analysis.steps.pauses import Passes, Pauses, passes, pauses
from gpulab.intervals import Spans, clip
from gpulab.replay.rewrites.steps.async_checkpoint import SAVING
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Finding, figures
from gpulab.rules.host.garbage_collection import averaged
from gpulab.run import Loader
from gpulab.tables import StallKind
from gpulab.wording import count, duration, percent

PAUSE_WORTH_FRAC = 0.05  # as elsewhere: a twentieth of the time
FIRST_TIMES = 3.0  # the spec of this field: a first step this much longer than the median is a warm-up
FIRST_WORTH_FRAC = 0.10  # of the whole run; shorter warm-ups are not worth a word
FIRST_MOST_FRAC = 0.5  # a warm-up that takes most of the run is what there is to tell
# What a pause is, by the call into a library that samples of it found.
RARER = 10
ADVICE = {
    "saving": "Call save_beside(step, path) where torch.save was called. A checkpoint every 10 to 30 minutes loses "
    "little work when a job dies.",
    "logging": "Collect the values on the device, and write them out every few hundred steps.",
}
LOGGING = (
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
    """Every so many steps one takes far longer: a checkpoint, a log entry, a picture.

    Proof: the marks of all steps, recorded or not. A step counts that is half as long again as the median and stands
    out from the spread, without the waits for batches, collections and compilations in it. What it is, is told by
    samples of the line that ran. Confused with: an evaluation (batches of another loader: work, not a pause), the
    beginning of a pass with its new workers (told as that), the first steps (`slow_first_step`), ordinary spread. What
    to do: do it less often, or in a thread beside the loop.
    """
    found, begun = pauses(evidence.run, evidence.steps), passes(evidence.run, evidence.steps)
    if found is not None and found.frac >= PAUSE_WORTH_FRAC and (found.every or _kind(found.called)):
        return _pausing(evidence, found)
    if begun is not None and begun.frac >= PAUSE_WORTH_FRAC and (loader := _restarts(evidence)) is not None:
        return _restarting(evidence, begun, loader)
    return None


def slow_first_step(evidence: Evidence) -> Finding | None:
    """The first steps take far longer than the others; they do so once.

    Proof: the marks: a first or second step of more than three times the median of the warm ones. Confused with:
    compilations that come back (`recompilation`) and pauses every so many steps (`periodic_stalls`). What to do: mostly
    nothing; leave these steps out of every timing. Where jobs are short and start often, keep what was compiled.
    """
    steps = evidence.steps
    warm = steps.dur_ns[steps.plain | steps.interior]
    if len(warm) < FEW:
        return None
    typical = float(np.median(warm))
    first = np.arange(len(steps)) < WARM_UP + 1
    slow = first & (steps.dur_ns > FIRST_TIMES * typical)
    extra_ns = int((steps.dur_ns[slow] - typical).sum())
    whole_ns = int(steps.dur_ns.sum())
    if not slow.any() or extra_ns < FIRST_WORTH_FRAC * whole_ns:
        return None
    share = extra_ns / whole_ns
    spans = Spans(steps.start_ns[slow], steps.end_ns[slow])
    count = int(slow.sum())
    what = "The first step takes" if count == 1 else f"The first {count} steps take"
    return Finding(
        claim=f"{what} {duration(extra_ns)} longer than the others, once: {_warming(evidence, spans, extra_ns)}.",
        evidence=(
            f"A typical step takes {duration(typical)}; the warm-up is {percent(share)} of the "
            f"{duration(whole_ns)} of all steps.",
        ),
        numbers=figures(extra_ns=extra_ns, typical_ns=typical, frac=share),
        advice="It happens once a run: leave the first steps out when you time a loop. "
        "In a real training run it is soon forgotten.",
        confidence=CERTAIN,
        from_steps=False,
        shown_by=spans,
        aside=share < FIRST_MOST_FRAC,
    )


def _pausing(evidence: Evidence, found: Pauses) -> Finding:
    kind = _kind(found.called)
    when = f"Every {found.every} steps" if found.every else f"{count(found.count, 'time')} in {found.steps} steps"
    where = f" ({found.frame})" if found.frame else ""
    what = {"saving": "a checkpoint is written", "logging": "something is logged"}.get(kind, "something else is done")
    return Finding(
        claim=f"{when} the loop stops for {duration(found.each_ns)} while {what}{where}: "
        f"{percent(found.frac)} of the time.",
        evidence=(
            f"{found.count} of {found.steps} steps take {duration(found.each_ns)} more than the ordinary "
            f"{duration(found.ordinary_ns)}, without waits for data; "
            f"that is {duration(found.total_ns / found.steps)} a step.",
            *_sampled(found),
        ),
        numbers=figures(frac=found.frac, each_ns=found.each_ns, count=found.count, every=found.every or None),
        fix=_fix(evidence, kind, found),
        advice=ADVICE.get(kind, "Do it less often, or in a thread beside the loop."),
        gain=averaged(
            found.step_mean_ns,
            round(found.total_ns / found.steps),
            "the pauses, removed by 70 to 100 %",
            "even no such pause",
            (0.7, 1.0),
        ),
        confidence=LIKELY if kind else SUSPECT,
        why_confidence="" if kind else "what ran in them is not known for certain",
        from_steps=False,
        shown_by=found.spans,
    )


def _restarting(evidence: Evidence, begun: Passes, loader: Loader) -> Finding:
    name, batch = evidence.names.loader, loader.batch_size or 32
    warm = evidence.steps.dur_ns[evidence.steps.plain | evidence.steps.interior]
    step_ns = int(warm.mean()) if len(warm) else 0
    return Finding(
        claim=f"Each pass over the data begins with a wait of {duration(begun.each_ns)} while its {loader.workers} "
        f"workers are started anew: {percent(begun.frac)} of the time.",
        evidence=(
            f"In {begun.count} passes after the first, the first batch took {duration(begun.each_ns)} longer than "
            "others.",
            "persistent_workers is off, so the workers end with every pass.",
        ),
        numbers=figures(frac=begun.frac, each_ns=begun.each_ns, count=begun.count),
        fix="from torch.utils.data import DataLoader\n\n"
        f"{name} = DataLoader({evidence.names.dataset}, batch_size={batch}, shuffle=True,\n"
        f"    num_workers={loader.workers}, persistent_workers=True)  # they stay between passes",
        advice="What a worker prepares once (open files, tables) is then kept as well. With very short passes, let one "
        "pass go over the data several times.",
        gain=averaged(
            step_ns, round(begun.frac * step_ns), "the restarts, removed by 50 to 100 %", "even no restart", (0.5, 1.0)
        ),
        confidence=LIKELY,
        from_steps=False,
        shown_by=begun.spans,
    )


def _restarts(evidence: Evidence) -> Loader | None:
    """The loader whose workers end with every pass, if there is one."""
    loader = leading_loader(evidence.run)
    restarts = loader is not None and bool(loader.workers) and loader.persistent_workers is False
    return loader if restarts else None


def _kind(called: str | None) -> str:
    if called is None:
        return ""
    if called.startswith(SAVING):
        return "saving"
    return "logging" if called.startswith(LOGGING) else ""


def _sampled(found: Pauses) -> tuple[str, ...]:
    if not found.frame:
        return ()
    call = f", calling {found.called}" if found.called else ""
    return (f"{found.samples} samples of the main thread in these steps found it at {found.frame}{call}.",)


def _warming(evidence: Evidence, spans: Spans, extra_ns: int) -> str:
    """What took that long, as far as was recorded."""
    compiled = stalled(evidence.run, StallKind.COMPILE)
    inside = sum(clip(compiled, start, end).total_ns for start, end in zip(*spans, strict=True))
    if inside >= extra_ns / 2:
        return "torch.compile compiles"
    if any(loader.workers for loader in evidence.run.loaders):
        return "workers start, libraries are loaded, memory is taken"
    return "libraries are loaded, memory is taken, the fastest kernels are looked for"


def _fix(evidence: Evidence, kind: str, found: Pauses) -> str:
    every = RARER * (found.every or max(1, found.steps // found.count))
    if kind == "saving":
        return _saved_beside(evidence, every)
    return (
        f"def now_and_then(step, do, every={every}):  # ten times less often\n    if step % every == 0:\n        do()"
    )


def _saved_beside(evidence: Evidence, every: int) -> str:
    model, optimizer = evidence.names.model, evidence.names.optimizer
    return (
        "import threading\n"
        "import torch\n\n"
        "def copied(value):  # a copy in host memory, which training does not change any more\n"
        "    if torch.is_tensor(value):\n"
        '        return value.detach().to("cpu", copy=True)\n'
        "    if isinstance(value, dict):\n"
        "        return {key: copied(each) for key, each in value.items()}\n"
        "    return [copied(each) for each in value] if isinstance(value, list) else value\n\n"
        f"def save_beside(step, path, every={every}):  # less often; a thread writes while training goes on\n"
        "    if step % every == 0:\n"
        f'        state = copied({{"model": {model}.state_dict(), "optimizer": {optimizer}.state_dict()}})\n'
        "        threading.Thread(target=torch.save, args=(state, path)).start()"
    )
