"""A rule about code between the epochs, which no step of the training shows."""

from __future__ import annotations

from gpulab.analysis.data.worker_starts import STARTING
from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.host.frames import Frame, deepest_frame, library_call
from gpulab.analysis.steps.phases import PhaseKind, gaps_between_epochs, loop_phases
from gpulab.intervals import Spans, clip, covered_ns, subtract
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, Gain, known_numbers
from gpulab.run import Run
from gpulab.tables import StallKind
from gpulab.wording import count, duration, percent

_MIN_FRAC = 0.2  # of the loop: many programs save and print between epochs for less
_MOSTLY = 0.5  # of this time in garbage collection
_RUN_LESS_OFTEN = (
    "Run it after every few epochs, or once after the training. Generate samples under torch.inference_mode(), and "
    "write files in a thread."
)
_COLLECT_LESS = (
    "Collect garbage less often: tensors are freed without gc.collect(), as soon as nothing refers to them. If a "
    "library calls it, call gc.freeze() before the training: existing objects, such as modules, are then not searched."
)
_REMOVED_FRACS = (0.5, 0.95)  # of this time: half as often, or nearly never


def work_between_epochs(evidence: Evidence) -> Finding | None:
    """Code between the epochs takes much of the loop: drawing samples, saving files, or computing metrics.

    Proof: the time between the passes over one DataLoader, without evaluations and without the profiler's pauses. All
    of it together takes at least 20 % of the loop. Samples of the main thread name the line.

    If garbage collection takes most of this time, as where a library calls gc.collect() in every epoch, the finding
    says so.

    Confused with: evaluations with a DataLoader (`frequent_evaluation`); the start of workers (`too_many_workers`);
    code that runs every N steps (`periodic_stalls`); rollouts and folds, which make the data of the next epochs: code
    before a new DataLoader does not count.

    What to do: run it after every few epochs, or once after the training. Generate samples under
    torch.inference_mode() and for few examples. Write files in a thread.
    """
    between, pauses = gaps_between_epochs(evidence.run), pauses_of(evidence.run)
    training = next((phase for phase in loop_phases(evidence.run) if phase.kind is PhaseKind.TRAINING), None)
    if between is None or training is None or not training.updates:
        return None
    spans, gaps = subtract(between, pauses), len(between.start_ns)
    start_ns, end_ns = int(training.spans.start_ns[0]), int(between.end_ns[-1])
    total_ns = end_ns - start_ns - clip(pauses, start_ns, end_ns).total_ns
    share = spans.total_ns / max(1, total_ns)
    function = library_call(evidence.run, spans)
    if share < _MIN_FRAC or (function is not None and function.endswith(STARTING)):
        return None
    frame, collected_frac = deepest_frame(evidence.run, spans), _collected_frac(evidence.run, spans)
    return Finding(
        claim=f"Code between the epochs takes {percent(share)} of the loop{_in_line(frame)}: "
        f"{duration(spans.total_ns / gaps)} each time.",
        evidence=(
            f"{count(gaps, 'gap')} between the passes over the DataLoader, in which no batch is loaded and no "
            f"optimizer steps, take {duration(spans.total_ns)}; {count(training.updates, 'training step')} take "
            f"{duration(total_ns - spans.total_ns)}.",
            *_samples(frame, function),
            *_collections(collected_frac),
        ),
        numbers=known_numbers(frac=share, between_ns=spans.total_ns, gaps=gaps),
        advice=_COLLECT_LESS if collected_frac >= _MOSTLY else _RUN_LESS_OFTEN,
        gain=_gain(total_ns, spans.total_ns, training.updates),
        confidence=LIKELY if frame is not None else SUSPECT,
        confidence_reason="" if frame is not None else "no sample names the code",
        from_steps=False,
        spans=spans,
    )


def _collected_frac(run: Run, spans: Spans) -> float:
    """Return the share of this time in which Python collected garbage, 0-1."""
    collections = run.stall_rows.of_kind(StallKind.GC)
    collected_ns = covered_ns(spans, collections["start_ns"], collections["start_ns"] + collections["dur_ns"]).sum()
    return float(collected_ns / max(1, spans.total_ns))


def _collections(collected_frac: float) -> tuple[str, ...]:
    if collected_frac < _MOSTLY:
        return ()
    return (f"In {percent(collected_frac)} of this time, Python collects garbage.",)


def _in_line(frame: Frame | None) -> str:
    return f" ({frame.name})" if frame is not None else ""


def _samples(frame: Frame | None, function: str | None) -> tuple[str, ...]:
    if frame is None or frame.samples is None:
        return ()
    calling = f", calling {function}" if function else ""
    return (f"{percent(frame.frac)} of {count(frame.samples, 'sample')} in this time are in {frame.name}{calling}.",)


def _gain(total_ns: int, between_ns: int, updates: int) -> Gain:
    """Return the gain for the mean step, which includes its share of this code."""
    step_ns, saved_ns = round(total_ns / updates), round(between_ns / updates)
    low, high = _REMOVED_FRACS
    return Gain(
        step_ns=step_ns,
        best_ns=round(step_ns - high * saved_ns),
        worst_ns=round(step_ns - low * saved_ns),
        floor_ns=max(1, step_ns - saved_ns),
        basis="running this code half as often to hardly ever, averaged over all steps",
        floor_assumes="no such code",
        is_mean=True,
    )
