"""Findings as text: claim, evidence, fix and expected gain."""

from __future__ import annotations

from gpulab.analysis.steps.detection import completed_steps
from gpulab.rules.engine.finding import Diagnosis, Finding, Gain
from gpulab.run import KILLED
from gpulab.views.report.evidence_picture import evidence_timeline
from gpulab.views.sheet.sheet import Answer, Expectation, Line
from gpulab.wording import count, duration, ratio, scale, sentence


def headline(diagnosis: Diagnosis) -> Answer:
    """Return the verdict; if there is a finding, with its evidence, fix and expected gain."""
    first = diagnosis.first
    limit = f"The next bottleneck will be: {diagnosis.next_limit}." if diagnosis.next_limit else ""
    if first is None:
        return Answer(claim=sentence(diagnosis.verdict), leading=True, closing=limit)
    closing = f"{limit} {_together(diagnosis)}".strip()
    return finding_answer(first, diagnosis, claim=diagnosis.verdict, leading=True, closing=closing)


def _together(diagnosis: Diagnosis) -> str:
    if diagnosis.combined_bound is None or diagnosis.combined_bound > MAX_USEFUL_BOUND:
        return ""
    return f"With the other causes of idle time fixed as well: at most {ratio(diagnosis.combined_bound)}."


MAX_USEFUL_BOUND = 20.0  # above this a bound is no more informative than "nearly all of the step"


def finding_answer(
    finding: Finding, diagnosis: Diagnosis, *, claim: str = "", leading: bool = False, closing: str = ""
) -> Answer:
    """Return one finding of a diagnosis as a block, with a picture of its evidence."""
    notes = [f"Note: {caveat}" for caveat in map(sentence, finding.caveats)]
    if finding.gain is not None:
        notes.insert(0, sentence(f"Predicted by: {finding.gain.basis}"))
    notes.append(f"How this is proved: %gpuwhy {finding.rule}")
    if finding.lesson:
        notes.append(f"Learn more: {finding.lesson}.ipynb of the course (python -m gpulab lessons my-course)")
    if finding.rewrites:
        notes.append(f"Together with other changes: %gpuwhatif {finding.rewrites} ...")
    return Answer(
        claim=sentence(claim or finding.claim),
        leading=leading,
        evidence=finding.evidence,
        fix=finding.fix,
        advice=finding.advice,
        expectation=expectation(finding.gain, _confidence(finding)),
        notes=tuple(notes) if finding.gain else (f"{_confidence(finding)}.", *notes),
        closing=closing,
        gist=_gist(finding.gain),
        picture=evidence_timeline(finding, diagnosis),
    )


def finding_text(finding: Finding) -> str:
    """Return a finding as one paragraph: claim, evidence, expected gain, confidence."""
    gain = expectation(finding.gain)
    sentences = (finding.claim, *finding.evidence, gain.text if gain else "", _confidence(finding))
    return " ".join(map(sentence, filter(None, sentences)))


def _gist(gain: Gain | None) -> str:
    """Return the predicted step time in a few words: "120 -> 80-95 ms"."""
    if gain is None:
        return ""
    unit = scale(gain.step_ns)
    return f"{unit.number(gain.step_ns)} -> {unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"


def expectation(
    gain: Gain | None, confidence: str = "", *, verb: str = "Expect", measured_ns: float | None = None
) -> Expectation | None:
    """Return a predicted gain as a sentence with its range and its bound; None if there is no prediction."""
    if gain is None:
        return None
    unit = scale(gain.step_ns)
    span = f"{unit.number(gain.step_ns)} -> {unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"
    low, high = ratio(gain.worst_speedup), ratio(gain.best_speedup)
    speedup = high if low == high else f"{low.removesuffix('x')}-{high}"
    bound = f"{gain.floor_assumes[:1].upper()}{gain.floor_assumes[1:]} gives at most {ratio(gain.bound)}."
    if gain.bound > MAX_USEFUL_BOUND:
        bound = "This cause takes nearly all of the step, so no useful bound can be given."
    same_work = (
        f" for the same work, done in {ratio(1 / gain.work_ratio)} as many steps" if gain.work_ratio != 1 else ""
    )
    return Expectation(
        text=f"{verb} {span}{same_work} ({speedup}). {bound}{f' {confidence}.' if confidence else ''}",
        best_frac=gain.best_ns / gain.step_ns,
        worst_frac=gain.worst_ns / gain.step_ns,
        floor_frac=gain.floor_ns / gain.step_ns,
        measured_frac=None if measured_ns is None else measured_ns / gain.step_ns,
    )


def _confidence(finding: Finding) -> str:
    reason = f" ({finding.confidence_reason})" if finding.confidence_reason else ""
    return f"Confidence: {finding.confidence}{reason}"


def outcome_lines(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """Say how a run was cut short; nothing for a run that completed."""
    run = diagnosis.run
    if run.outcome == "ok":
        return ()
    cause = {"KeyboardInterrupt": "Interrupted", KILLED: "Killed"}.get(run.outcome, f"Ended by {run.outcome}")
    step_count = completed_steps(run, diagnosis.steps)
    progress = f"after {count(step_count, 'step')}" if step_count else "before the first complete step"
    return (Line(f"{cause} {progress}, at {duration(run.span_ns)}. The report covers the run up to that point."),)
