"""Findings as text: claim, evidence, fix and expected gain."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.analysis.steps.marked_steps import completed_steps
from gpulab.analysis.steps.phases import training_share
from gpulab.capture.run_registry import runs
from gpulab.rules.engine.evidence import cores_of_other_programs
from gpulab.rules.engine.finding import CONFIDENCE_LABELS, Diagnosis, Finding, Gain
from gpulab.rules.engine.pasted_names import fixes_to_try
from gpulab.run import KILLED, Run
from gpulab.run_facts import NO_CUDA
from gpulab.views.report.evidence_picture import evidence_timeline
from gpulab.views.sheet.sheet import Answer, Expectation, Line
from gpulab.views.whatif.command import has_magics, whatif_command
from gpulab.wording import count, duration, percent, ratio, scale, sentence, shell_word

_MIN_EVALUATIONS_FRAC = 0.1  # of the loop: the gain of a step is about that of a loop with fewer evaluations
_GOOD_PART = 0.25  # of what the advice surely saves


def headline(diagnosis: Diagnosis) -> Answer:
    """Return the verdict; if there is a finding, with its evidence, fix and expected gain."""
    first = diagnosis.first
    rest = (("Next bottleneck", diagnosis.next_limit),) if diagnosis.next_limit else ()
    if first is None:
        return Answer(claim=sentence(diagnosis.verdict), leading=True, facts=rest)
    more_facts = (*_rival(first, diagnosis), *_bound_of_all(diagnosis), *rest)
    return finding_answer(first, diagnosis, claim=diagnosis.verdict, leading=True, more_facts=more_facts)


def _rival(first: Finding, diagnosis: Diagnosis) -> tuple[tuple[str, str], ...]:
    """Return the finding that saves more by the middle of its range, but less at worst, which decides what is first."""
    if first.gain is None or first.urgent or first.distorts_others:
        return ()
    others = [each for each in diagnosis.others if each.gain and not each.informs_only and not each.gain.is_bound_only]
    rival = max(others, key=lambda each: each.saved_ns, default=None)
    if rival is None or rival.gain is None or rival.saved_ns <= first.saved_ns:
        return ()
    speedups = speedups_text(rival.gain.worst_speedup, rival.gain.best_speedup)
    return (("May gain more, less surely", f"{rival.rule} ({speedups}), see below"),)


def _trial_commands(finding: Finding, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    """Yield the magics that try a fix, and all of them; none in a script, and for code that changes nothing itself."""
    run = diagnosis.run
    tried = [fix for each in diagnosis.findings for fix in fixes_to_try(each)]
    rules = [each.rule for each in tried]
    if not (has_magics() and runs.holds(run) and run.source.how == "measured"):
        return
    command, works = f"%gpufix {shell_word(run.name)}", "and works on copies of your variables"
    if finding.rule in rules:
        fix = tried[rules.index(finding.rule)]
        rule = "" if fix is tried[0] else f" --rule {finding.rule}"
        label, which = (
            ("Measure the other remedy", f"{fix.alternative}; ") if fix.alternative else ("Measure this fix", "")
        )
        yield label, f"{command}{rule} ({which}takes about a minute, {works})"
    if finding is diagnosis.first and len(tried) > 1:
        yield "Measure all fixes", f"{command} --all ({len(tried)} fixes; the fastest comes first)"


def _bound_of_all(diagnosis: Diagnosis) -> tuple[tuple[str, str], ...]:
    if diagnosis.combined_bound is None or diagnosis.combined_bound > MAX_USEFUL_BOUND:
        return ()
    rules = diagnosis.combined_rules
    is_of_all = all(finding.rule in rules for finding in diagnosis.findings if finding.gain is not None)
    fixes = "all findings" if is_of_all else f"{', '.join(rules[:-1])} and {rules[-1]}"
    return ((f"Upper bound with {fixes} fixed", ratio(diagnosis.combined_bound)),)


PREDICTED, OF_LOOP, UPPER_BOUND = "Predicted step time", "Predicted for the whole loop", "Upper bound"
MAX_USEFUL_BOUND = 20  # a larger bound is shown as "over 20x"
_OTHER_PROGRAMS = "shared_cpu"  # the rule whose finding says the same
_MIN_REST_FRAC = 0.02  # an allowance for a smaller part of the rest of the step is not mentioned


def finding_answer(
    finding: Finding,
    diagnosis: Diagnosis,
    *,
    claim: str = "",
    leading: bool = False,
    more_facts: tuple[tuple[str, str], ...] = (),
) -> Answer:
    """Return one finding of a diagnosis as a block, with a picture of its evidence."""
    return Answer(
        claim=sentence(claim or finding.claim),
        leading=leading,
        evidence=finding.evidence,
        fix=finding.fix,
        advice=finding.advice,
        facts=(
            *expected_facts(finding.gain),
            *_with_evaluations(finding, diagnosis.run),
            _confidence(finding),
            *more_facts,
        ),
        expectation=expectation(finding.gain),
        notes=tuple(_notes(finding, diagnosis)),
        gist=_gist(finding.gain),
        picture=evidence_timeline(finding, diagnosis),
    )


def _notes(finding: Finding, diagnosis: Diagnosis) -> Iterator[tuple[str, str]]:
    if finding.gain is not None:
        yield "Basis of the range", finding.gain.basis
    for caveat in finding.caveats:
        yield "Note", sentence(caveat)
    yield from _trial_commands(finding, diagnosis)
    yield "Explanation", f"%gpuwhy {finding.rule}"
    if finding.rewrites:
        yield "Combine with other changes", whatif_command(diagnosis.run, finding.rewrites, "CHANGE", "...")
    if finding.lesson:
        yield "Lesson", f"{finding.lesson}.ipynb (python -m gpulab lessons FOLDER copies the course)"


def alternative_answer(finding: Finding) -> Answer | None:
    """Return a remedy with code, if the first remedy is advice; None without one.

    Code that may save much less than the advice, such as workers on busy cores, is left to trials.
    """
    if finding.fix:
        return None
    for remedy in fixes_to_try(finding):
        if remedy.fix and remedy.gain is not None and remedy.least_saved_ns >= _GOOD_PART * finding.least_saved_ns > 0:
            return Answer(
                claim=sentence(remedy.advice or remedy.alternative),
                leading=False,
                fix=remedy.fix,
                facts=expected_facts(remedy.gain),
                expectation=expectation(remedy.gain),
                notes=tuple(("Note", sentence(caveat)) for caveat in remedy.caveats),
                gist=_gist(remedy.gain),
            )
    return None


def finding_text(finding: Finding) -> str:
    """Return a finding as one paragraph: claim, evidence, expected gain, confidence."""
    facts = (f"{name}: {value}" for name, value in (*expected_facts(finding.gain), _confidence(finding)))
    return " ".join(map(sentence, (finding.claim, *finding.evidence, *facts)))


def _gist(gain: Gain | None) -> str:
    """Return the predicted step time in a few words: "120 -> 80-95 ms"."""
    if gain is None:
        return ""
    unit = scale(gain.step_ns)
    return f"{unit.number(gain.step_ns)} -> {unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"


def expected_facts(gain: Gain | None) -> tuple[tuple[str, str], ...]:
    """Return the predicted step time with its range, and the bound; () if there is no prediction."""
    if gain is None:
        return ()
    unit = scale(gain.step_ns)
    span = f"{unit.number(gain.step_ns)} -> {unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"
    speedup = speedups_text(gain.worst_speedup, gain.best_speedup)
    bound = bound_text(gain.best_speedup, gain.bound, gain.cold_bound, gain.floor_assumes)
    same_work = f", for the same work in {ratio(1 / gain.work_ratio)} as many steps" if gain.work_ratio != 1 else ""
    return (PREDICTED, f"{span} ({speedup}){same_work}"), (UPPER_BOUND, bound)


def _with_evaluations(finding: Finding, run: Run) -> tuple[tuple[str, str], ...]:
    """Return the predicted gain of the loop with its evaluations; () if these take little or the gain counts them."""
    share = training_share(run)
    if finding.gain is None or finding.gain.is_mean or not finding.from_steps or share > 1 - _MIN_EVALUATIONS_FRAC:
        return ()
    gain = finding.gain.of_loop(share)
    speedups = speedups_text(gain.worst_speedup, gain.best_speedup)
    return ((OF_LOOP, f"{speedups} if evaluations ({percent(1 - share)} of the loop) take as long as now"),)


def speedups_text(worst: float, best: float) -> str:
    """Return a range of speed-ups, "1.5-2.5x"; like a bound, without a large end: "1.5x to over 20x"."""
    if best > MAX_USEFUL_BOUND:
        return _at_most(best) if worst > MAX_USEFUL_BOUND else f"{ratio(worst)} to {_at_most(best)}"
    low, high = ratio(worst), ratio(best)
    return high if low == high else f"{low.removesuffix('x')}-{high}"


def expectation(gain: Gain | None, measured_ns: float | None = None) -> Expectation | None:
    """Return a predicted gain, and the measured step if it is known, for a bar; None if there is no prediction."""
    if gain is None:
        return None
    longest_ns = max(gain.step_ns, gain.worst_ns)
    return Expectation(
        best_frac=gain.best_ns / longest_ns,
        worst_frac=gain.worst_ns / longest_ns,
        floor_frac=gain.floor_ns / longest_ns,
        measured_frac=None if measured_ns is None else measured_ns / longest_ns,
    )


def bound_text(best_speedup: float, bound: float, cold_bound: float, assumes: str) -> str:
    """Return the upper bound and its assumptions. `cold_bound`: the bound if the rest of the step is not faster.

    The rest of a step on a CPU gets faster where its data stay in the caches; the documentation explains that.
    A predicted range may count on a faster rest of the step. `cold_bound` does not bound such a range, so it is not
    shown beside it. `best_speedup`: the best end of the range.
    """
    if 1 - cold_bound / bound < _MIN_REST_FRAC or cold_bound > MAX_USEFUL_BOUND:
        return f"{_at_most(bound)} (assumes {assumes})"
    warm = "if the rest of the step gets faster, too"
    if best_speedup > cold_bound:
        return f"{_at_most(bound)} with {assumes}, {warm}"
    return f"{ratio(cold_bound)} with {assumes}; {_at_most(bound)} {warm}"


def _at_most(bound: float) -> str:
    return ratio(bound) if bound <= MAX_USEFUL_BOUND else f"over {MAX_USEFUL_BOUND}x"


def _confidence(finding: Finding) -> tuple[str, str]:
    reason = f" ({finding.confidence_reason})" if finding.confidence_reason else ""
    return "Confidence in the cause", f"{CONFIDENCE_LABELS[finding.confidence]}{reason}"


def outcome_lines(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """Say how a run was cut short, and who else used the cores; nothing for a run that completed on a quiet machine."""
    return (*_cut_short(diagnosis), *_contention(diagnosis))


def _contention(diagnosis: Diagnosis) -> tuple[Line, ...]:
    on_cpu = diagnosis.ledger is not None and diagnosis.ledger.device == "cpu"
    used = cores_of_other_programs(diagnosis.run, diagnosis.steps) if on_cpu else None
    if used is None or (diagnosis.first is not None and diagnosis.first.rule == _OTHER_PROGRAMS):
        return ()
    return (
        Line(
            f"Other processes used {used} while this loop ran, so its steps took longer than they would alone. If "
            "those processes do not belong to your training, stop them and record again before you trust small "
            "differences."
        ),
    )


def _cut_short(diagnosis: Diagnosis) -> tuple[Line, ...]:
    run = diagnosis.run
    if run.outcome == "ok":
        return ()
    cause = {"KeyboardInterrupt": "Interrupted", KILLED: "Killed"}.get(run.outcome, f"Ended by {run.outcome}")
    step_count = completed_steps(run, diagnosis.steps.detected_by, len(diagnosis.steps))
    progress = f"after {count(step_count, 'step')}" if step_count else "before the first complete step"
    ending = f"{cause} {progress}, at {duration(run.span_ns)}."
    if lacks_cuda(run):
        return (Line(f"{ending} This machine has no CUDA GPU that PyTorch can use. {_virtual_gpu_hint(run)}"),)
    return (Line(f"{ending} The report covers the run up to that point."),)


def lacks_cuda(run: Run) -> bool:
    """Whether the run ended because its code needs a CUDA GPU, which its machine does not have."""
    return NO_CUDA in run.facts


def _virtual_gpu_hint(run: Run) -> str:
    magic = f"%%gpuprofile {shell_word(run.name)} --virtual H100"
    command = magic if has_magics() else "gpulab run --virtual H100 SCRIPT"
    return f"To run the same code on a virtual GPU, which needs none: {command}"
