"""A rule about generating sequences without a cache: each new position computes all earlier ones again."""

from __future__ import annotations

from typing import NamedTuple

from gpulab.analysis.events.recorded_spans import pauses_of
from gpulab.analysis.steps.phases import PhaseKind, loop_phases, training_steps
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import LIKELY, SUSPECT, Finding, known_numbers
from gpulab.rules.host.garbage_collection import mean_step_gain
from gpulab.rules.steps.evaluation_calls import evaluation_time
from gpulab.run import GrowingInput, Run
from gpulab.wording import count, duration, percent

_MIN_CALLS = 8
_MIN_SAVED_FRAC = 0.05  # of the run
_REALISED = 0.6  # at worst: attention over the cache and smaller products remain
_REMOVED_OF_REST = 0.25  # at best, if the positions take most of a call: its other costs are less for one, too
_SLIDING = 0.5
_MOST_SAVED = 0.98
_FEWEST_SAMPLES = 8  # of such code; with fewer, its share of the run is a guess
_KEEP_STATES = (
    "Keep what the model computed for the earlier positions, and pass only the new one. Attention needs a KV cache: in "
    "Transformers, model.generate() with use_cache=True, or past_key_values=output.past_key_values in the next call; "
    "attention of your own returns its keys and values, and takes them back. A recurrent model needs only its last "
    "state. An encoder that sees later positions, too, has to compute all of them again."
)


class _Share(NamedTuple):
    """How much of the run such code takes: per step, and as a fraction."""

    step_ns: int  # of the whole run
    frac: float  # 0-1
    samples: int | None  # of the main thread that show it; None if marks do
    text: str  # up to the module: "Evaluations take 40 % of the time in training and evaluation, and call"


def no_kv_cache(evidence: Evidence) -> Finding | None:
    """Generating a sequence computes all earlier positions again for each new one, as without a KV cache.

    Proof: in parts of evaluations, or of other code in which the model does not train, each outermost call of a module
    was noted. Its input is that of its call before and one position more, it gets nothing that may be a cache, and a
    call takes longer for each position. In CPU memory, outputs for the earlier positions are the same as in the call
    before, so the model is causal.

    Confused with: batches sorted by length, which hold other samples; bidirectional encoders, whose earlier outputs
    change; calls that are limited by launches, for which a cache saves little; a window that moves along the sequence.

    What to do: use a KV cache for attention, or the last state of a recurrent model, and pass only the new position.
    """
    candidates = [each for each in evidence.run.growing_inputs if each.has_equal_outputs is not False]
    growing = max(candidates, key=lambda each: each.parts_frac, default=None)
    share = None if growing is None else _share(evidence, growing)
    if growing is None or share is None or growing.calls + growing.sliding_calls < _MIN_CALLS:
        return None
    entries = [each for each in candidates if each.in_evaluations == growing.in_evaluations]
    least_frac, most_frac = (min(1.0, sum(fracs)) for fracs in zip(*map(_saved_fracs, entries), strict=True))
    if most_frac * share.frac < _MIN_SAVED_FRAC:
        return None
    is_sure = least_frac * share.frac >= _MIN_SAVED_FRAC
    reason = _reason_for_doubt(growing, share)
    return Finding(
        claim=f"{share.text} {_subject(growing)} for all earlier positions again for each new one: "
        f"{_positions(growing)}.",
        evidence=_evidence(growing),
        numbers=known_numbers(
            frac=share.frac,
            parts_frac=growing.parts_frac,
            calls=growing.calls + growing.sliding_calls,
            least_positions=growing.least_positions or None,
            most_positions=growing.most_positions or None,
            call_ns=growing.call_ns or None,
        ),
        advice=_KEEP_STATES,
        gain=mean_step_gain(
            share.step_ns,
            round(most_frac * share.frac * share.step_ns),
            "how much longer a call takes per position: at worst, 60 % of what one position per call saves; at best, "
            "all of that and up to a quarter of the rest",
            "one position per call",
            (least_frac / most_frac, 1.0),
        ),
        confidence=SUSPECT if reason else LIKELY,
        confidence_reason=reason,
        from_steps=False,
        explains=("work_between_epochs", "periodic_stalls") if is_sure else (),
    )


def _reason_for_doubt(growing: GrowingInput, share: _Share) -> str:
    """Return why the confidence is low, a clause; "" if it is not."""
    if share.samples is not None and share.samples < _FEWEST_SAMPLES:
        return f"only {count(share.samples, 'sample')} of this code"
    return "" if growing.has_equal_outputs else "outputs were not compared"


def _saved_fracs(growing: GrowingInput) -> tuple[float, float]:
    """Return which part of the watched time one position per call would save, at worst and at best, 0-1.

    A window that slides along the sequence can have a cache for a part of its calls only: at worst, they count half.
    """
    growing_ns = growing.calls * growing.call_ns
    sliding_frac = growing.sliding_ns / max(1.0, growing_ns + growing.sliding_ns)
    positions = max(1.0, (growing.least_positions + growing.most_positions) / 2)
    low, high = (ns * (positions - 1) / max(1.0, growing.call_ns) for ns in growing.position_ns)
    best = min(_MOST_SAVED, high + _REMOVED_OF_REST * high * (1 - high)) if growing.calls else _MOST_SAVED
    worst = _REALISED * min(best, low) * (1 - sliding_frac + _SLIDING * sliding_frac)
    return worst * growing.parts_frac, best * growing.parts_frac


def _share(evidence: Evidence, growing: GrowingInput) -> _Share | None:
    """Return the share of evaluations by their marks, or that of other code by samples of the main thread."""
    if growing.in_evaluations:
        evaluations = evaluation_time(evidence)
        if evaluations is None:
            return None
        text = f"Evaluations take {percent(evaluations.share)} of the time in training and evaluation, and call"
        return _Share(round(evaluations.step_ns), evaluations.share, None, text)
    if not growing.samples or not growing.run_samples:
        return None
    frac, code = growing.samples / growing.run_samples, growing.location or "generating a sequence"
    text = f"{percent(frac)} of the run goes to {code}, which calls"
    return _Share(_mean_step_ns(evidence.run, len(evidence.steps)), frac, growing.samples, text)


def _mean_step_ns(run: Run, steps: int) -> int:
    """Return the time of the run per training step; without training, per step as the recording shows them."""
    training = next((phase for phase in loop_phases(run) if phase.kind is PhaseKind.TRAINING), None)
    updates = steps if training is None or not training.updates else training_steps(run, training)
    return max(1, (run.span_ns - pauses_of(run).total_ns) // max(1, updates))


def _subject(growing: GrowingInput) -> str:
    return f"{growing.name} ({growing.kind})" if growing.name else growing.kind


def _positions(growing: GrowingInput) -> str:
    if not growing.calls:
        return "a window that moves along the sequence"
    return f"{growing.least_positions} to {growing.most_positions} positions per call"


def _evidence(growing: GrowingInput) -> tuple[str, ...]:
    sentences = []
    if growing.calls:
        at = f" at {growing.location}" if growing.location else ""
        low, high = growing.position_ns
        sentences.append(
            f"In {count(growing.calls, 'watched call')}{at}, the input was one position longer than in the call "
            f"before. A call takes {duration(growing.call_ns)} (median), and {duration((low + high) / 2)} more per "
            "position."
        )
    if growing.sliding_calls:
        sentences.append(
            f"In {count(growing.sliding_calls, 'call')}, the input had lost its first position, and had a new last one."
        )
    sentences.append(f"These calls take {percent(growing.parts_frac)} of the watched time.")
    if growing.has_equal_outputs:
        sentences.append("Their outputs for the earlier positions were those of the call before.")
    return tuple(sentences)
