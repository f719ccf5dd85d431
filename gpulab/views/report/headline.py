"""Findings in words: the claim, what shows it, the fix, and what it is expected to give."""

from __future__ import annotations

from gpulab.analysis.steps.detection import completed
from gpulab.rules.engine.finding import Diagnosis, Finding, Gain
from gpulab.views.report.evidence_picture import evidence
from gpulab.views.sheet.sheet import Answer, Expectation, Line
from gpulab.views.wording import counted, duration, scale, sentence, times


def headline(diagnosis: Diagnosis) -> Answer:
    """The verdict and, where there is a finding, all that belongs to it."""
    first = diagnosis.first
    limit = f"The next limit will be: {diagnosis.next_limit}." if diagnosis.next_limit else ""
    if first is None:
        return Answer(claim=sentence(diagnosis.verdict), leading=True, closing=limit)
    closing = f"{limit} {_together(diagnosis)}".strip()
    return answer(first, diagnosis, claim=diagnosis.verdict, leading=True, closing=closing)


def _together(diagnosis: Diagnosis) -> str:
    if diagnosis.together is None or diagnosis.together > BOUNDLESS:
        return ""
    return f"With the other causes of idle time mended as well: at most {times(diagnosis.together)}."


BOUNDLESS = 20.0  # a bound above this says nothing that "nearly all" does not


def answer(
    finding: Finding, diagnosis: Diagnosis, *, claim: str = "", leading: bool = False, closing: str = ""
) -> Answer:
    """One finding of a diagnosis, with a picture of its evidence."""
    notes = [f"Note: {caveat}" for caveat in map(sentence, finding.caveats)]
    if finding.gain is not None:
        notes.insert(0, sentence(f"Predicted by: {finding.gain.basis}"))
    notes.append(f"Why this is believed: %gpuwhy {finding.rule}")
    if finding.lesson:
        notes.append(f"Learn more: {finding.lesson}.ipynb of the course (python -m gpulab lessons my-course)")
    if finding.rewrites:
        notes.append(f"With other changes beside it: %gpuwhatif {finding.rewrites} ...")
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
        picture=evidence(finding, diagnosis),
    )


def answer_words(finding: Finding) -> str:
    """A finding in one paragraph, for where there is room for no more."""
    gain = expectation(finding.gain)
    said = (finding.claim, *finding.evidence, gain.text if gain else "", _confidence(finding))
    return " ".join(map(sentence, filter(None, said)))


def _gist(gain: Gain | None) -> str:
    """What a finding is worth, short enough to stand beside its claim."""
    if gain is None:
        return ""
    unit = scale(gain.step_ns)
    return f"{unit.bare(gain.step_ns)} -> {unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"


def expectation(
    gain: Gain | None, confidence: str = "", *, verb: str = "Expect", measured_ns: float | None = None
) -> Expectation | None:
    """A predicted gain as a sentence with its range and its bound."""
    if gain is None:
        return None
    unit = scale(gain.step_ns)
    span = f"{unit.bare(gain.step_ns)} -> {unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"
    low, high = times(gain.worst_speedup), times(gain.best_speedup)
    speedup = high if low == high else f"{low.removesuffix('x')}-{high}"
    bound = f"{gain.floor_means[:1].upper()}{gain.floor_means[1:]} gives at most {times(gain.bound)}."
    if gain.bound > BOUNDLESS:
        bound = "Nearly all of a step is this cause, so no useful bound can be given."
    same = f" for the same work, which {times(1 / gain.work)} as many steps do" if gain.work != 1 else ""
    return Expectation(
        text=f"{verb} {span}{same} ({speedup}). {bound}{f' {confidence}.' if confidence else ''}",
        best_frac=gain.best_ns / gain.step_ns,
        worst_frac=gain.worst_ns / gain.step_ns,
        floor_frac=gain.floor_ns / gain.step_ns,
        measured_frac=None if measured_ns is None else measured_ns / gain.step_ns,
    )


def _confidence(finding: Finding) -> str:
    why = f" ({finding.why_confidence})" if finding.why_confidence else ""
    return f"Confidence: {finding.confidence}{why}"


def ending(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """How a run ended that did not end by itself; nothing for one that did."""
    run = diagnosis.run
    if run.outcome == "ok":
        return ()
    what = "Interrupted" if run.outcome == "KeyboardInterrupt" else f"Ended by {run.outcome}"
    seen = completed(run, diagnosis.steps)
    after = f"after {counted(seen, 'step')}" if seen else "before the first complete step"
    return (Line(f"{what} {after}, at {duration(run.span_ns)}; this is what was recorded until then."),)
