"""Diagnose one run: evaluate every rule, rank the findings, and name what could not be judged and what limits next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import DISPATCH_KEYS, Ledger, build_ledger
from gpulab.analysis.steps.phases import training_share
from gpulab.analysis.steps.typical_step import TypicalStep, mean_step
from gpulab.intervals import intersect
from gpulab.replay.history import NO_HISTORY, History
from gpulab.rules.engine.catalogue import RULES
from gpulab.rules.engine.evidence import Evidence, with_warm_caches_ns
from gpulab.rules.engine.finding import CERTAIN, LIKELY, SUSPECT, Diagnosis, Finding, Gain, Masked, Unjudged
from gpulab.rules.engine.fix_scope import with_scope
from gpulab.rules.engine.needs import OPERATORS, PYTORCH, first_unmet_need, why_no_ledger
from gpulab.rules.engine.pasted_names import missing_names
from gpulab.rules.engine.phrases import sentences
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.run import Run
from gpulab.wording import count, percent, ratio, sentence

_MIN_IDLE_FRAC = 0.05  # of a step; less is not worth an explanation
_MIN_NEXT_FRAC = 0.05  # smaller parts of the step are not named as the next limit
_EXPLAINED_FRAC = 0.5  # a finding is masked if another finding covers this much of its time

_MIN_SAVED_FRAC = 0.05  # of a step: a fix that may save less is named, but is not the verdict
_MINORITY_FRAC = 0.4  # of the loop: with so little training, what a step gains is not what the loop gains
_MAJORITY_FRAC = 0.5  # of a step
_SHORTER_FRAC = 0.1  # parts that a replay shortens by less are not named

Answer = tuple[Rule, Finding | Unjudged | None]


def diagnose(run: Run, peers: Sequence[Run] = (), history: History = NO_HISTORY) -> Diagnosis:
    """Return the ranked findings for one run. Never raises for missing data: rules without their inputs are not judged.

    `peers`: the runs of all ranks if this is one of several; some rules need them all. `history`: predictions that were
    measured earlier on this machine.
    """
    if peers:
        return _diagnosis(run, peers, history)
    latest: tuple[History, Diagnosis] | None = run.results.get(diagnose)
    if latest is None or latest[0] != history:
        latest = run.results[diagnose] = history, _diagnosis(run, (), history)
    return latest[1]


def _diagnosis(run: Run, peers: Sequence[Run], history: History) -> Diagnosis:
    steps_of_run = find_steps(run)
    evidence = Evidence(run, steps_of_run, build_ledger(run, steps_of_run), tuple(peers), history, diagnose)
    answers = [(rule, _judge(rule, evidence)) for rule in RULES]
    ranked, masked = rank_findings([(rule, answer) for rule, answer in answers if isinstance(answer, Finding)])
    findings = tuple(each if evidence.on_gpu else _with_rivals(each) for each in ranked)
    unjudged = tuple(answer for _, answer in answers if isinstance(answer, Unjudged))
    first = next((finding for finding in findings if not finding.informs_only), None)
    bound_of_all, combined_rules = combined_bound(evidence, findings)
    return Diagnosis(
        run=run,
        steps=steps_of_run,
        ledger=evidence.optional_ledger,
        step=_reported_step(evidence, first) if evidence.optional_ledger else None,
        findings=findings,
        unjudged=unjudged,
        verdict=first.claim if first else _verdict_without_finding(evidence, unjudged, findings),
        next_limit=_next_limit(evidence, first) if first and first.ledger_parts else None,
        masked=masked,
        combined_bound=bound_of_all,
        combined_rules=combined_rules,
    )


def _reported_step(evidence: Evidence, first: Finding | None) -> TypicalStep:
    """Return the step whose parts a report shows: the typical one; the mean one if the first finding is about that."""
    gain = first.gain if first else None
    if first is None or gain is None or not gain.is_mean or not first.ledger_parts:
        return evidence.typical_step
    cause_ns = gain.step_ns - (gain.cold_floor_ns or gain.floor_ns)
    return mean_step(evidence.ledger, gain.step_ns, cause_ns, first.spans, first.ledger_parts[0])


def _judge(rule: Rule, evidence: Evidence) -> Finding | Unjudged | None:
    missing = first_unmet_need((PYTORCH, *rule.needs), evidence)
    answer = rule.check(evidence) if missing is None else Unjudged(reason=missing[0], fix=missing[1])
    if isinstance(answer, Unjudged):
        return replace(answer, rule=rule.name, about=answer.about or rule.about)
    return answer and _with_rule_facts(rule, answer, evidence)


def _with_rule_facts(rule: Rule, finding: Finding, evidence: Evidence) -> Finding:
    """Return the finding with the name, topic and lesson of its rule, and the confidence that the recording allows."""
    confidence, why = evidence.confidence(finding.confidence) if finding.from_steps else (finding.confidence, "")
    return replace(
        _with_final_code(finding, evidence.run),
        alternatives=tuple(
            replace(_with_final_code(each, evidence.run), rule=rule.name) for each in finding.alternatives
        ),
        gain=finding.gain and _with_side_effects(finding.gain, finding.ledger_parts, evidence),
        informs_only=finding.informs_only
        or (not evidence.on_gpu and _may_save_little(finding, confidence, evidence.run)),
        rule=rule.name,
        topic=rule.topic,
        lesson=rule.lesson,
        confidence=confidence,
        confidence_reason=why or finding.confidence_reason,
    )


def _with_rivals(finding: Finding) -> Finding:
    """Return the finding; without high confidence if its cause takes so little that another change may gain more.

    Of eleven first findings with high confidence on CPU loops that were new to gpulab, four did not name the change
    that helped most. If a cause takes half of a step, no other can take more.
    """
    gain = finding.gain
    if finding.confidence != CERTAIN or finding.urgent or finding.informs_only or gain is None:
        return finding
    if 1 - 1 / gain.cold_bound >= _MAJORITY_FRAC:
        return finding
    reason = "this cause takes less than half of a step"
    return replace(finding, confidence=LIKELY, confidence_reason=reason)


def _may_save_little(finding: Finding, confidence: str, run: Run) -> bool:
    """Whether the lower end of the predicted range is too low to act on; of a mere bound, whether the cause is unsure.

    If evaluations take most of the loop, a change of the training steps saves only their part of it. On a GPU such a
    finding stays a verdict: idle time, or slow kernels, are a fact whatever the fix gains. On a CPU, where all of a
    step is CPU work, the loops that people write often got slower with such a fix.
    """
    gain = finding.gain
    if gain is None or finding.urgent:
        return False
    if gain.is_bound_only:
        return confidence == SUSPECT
    share = training_share(run) if finding.from_steps and not gain.is_mean else 1.0
    return (share if share < _MINORITY_FRAC else 1.0) * finding.least_saved_ns < _MIN_SAVED_FRAC * gain.step_ns


def _with_final_code(finding: Finding, run: Run) -> Finding:
    return with_scope(_without_unknown_names(finding, run), run)


def _without_unknown_names(finding: Finding, run: Run) -> Finding:
    """Return the finding; if its code needs an object that no variable holds, with words in place of code."""
    missing = missing_names(finding.fix, run) if finding.fix else ()
    if not missing:
        return finding
    statements = [line for line in finding.fix.splitlines() if line and not line.startswith(("import ", "from ", "#"))]
    change = f" What to change, with your own name for it: {statements[0]}." if len(statements) == 1 else ""
    reason = f"No variable here holds the {' or the '.join(missing)}, so no code is printed; a framework may own it."
    return replace(finding, fix="", advice=sentences(f"{reason}{change}", finding.advice))


def _with_side_effects(gain: Gain, ledger_parts: Sequence[str], evidence: Evidence) -> Gain:
    """Return the gain; if the fix is predicted to shorten other parts of the step too, its basis names them.

    Without that, the prediction would contradict the ledger, which shows how much of the step the cause does not take.
    """
    if not gain.remaining_ns or not ledger_parts or not evidence.on_gpu:
        return gain
    now = evidence.scene.part_ns
    others = [part for part in evidence.ledger.parts if part.key not in ledger_parts and now.get(part.key)]
    if gain.best_ns >= sum(now[part.key] for part in others):
        return gain
    shorter = [part for part in others if gain.remaining_ns.get(part.key, 0) < (1 - _SHORTER_FRAC) * now[part.key]]
    if not shorter:
        return gain
    before, after = (sum(parts.get(part.key, 0) for part in shorter) for parts in (now, gain.remaining_ns))
    labels = ", ".join(part.label for part in shorter)
    shorter_by = percent(1 - after / before)
    return replace(
        gain,
        basis=f"{gain.basis}, which also cuts {labels} by {shorter_by}",
    )


def rank_findings(answers: Iterable[tuple[Rule, Finding]]) -> tuple[tuple[Finding, ...], tuple[Masked, ...]]:
    """Split findings into those to report, ranked, and those that another finding explains."""
    pairs = list(answers)
    explained_by = {
        rule.name: next((other for _, other in pairs if _explains(other, finding, rule)), None)
        for rule, finding in pairs
    }
    reported = [(rule, finding) for rule, finding in pairs if explained_by[rule.name] is None]
    reported.sort(key=_rank)
    masked = tuple(
        Masked(finding=finding, explained_by=other.rule)
        for rule, finding in pairs
        if (other := explained_by[rule.name]) is not None
    )
    return tuple(finding for _, finding in reported), masked


def _rank(pair: tuple[Rule, Finding]) -> tuple[bool, bool, bool, int, int, Stage]:
    """Return the sort key of a finding: urgent ones first, then the largest saving at the lower end of its range."""
    rule, finding = pair
    precedence = not finding.urgent, finding.informs_only, not finding.distorts_others
    return *precedence, -finding.least_saved_ns, -finding.saved_ns, rule.stage


def _explains(other: Finding, finding: Finding, rule: Rule) -> bool:
    """Whether the other finding covers the same time; a finding without spans explains by being present."""
    if rule.name in other.explains:
        return other.saved_ns >= _EXPLAINED_FRAC * finding.saved_ns
    if other.rule not in rule.masked_by:
        return False
    if not finding.spans.total_ns or not other.spans.total_ns:
        return True
    shared_ns = intersect(finding.spans, other.spans).total_ns
    return shared_ns >= _EXPLAINED_FRAC * finding.spans.total_ns


def combined_bound(evidence: Evidence, findings: Sequence[Finding]) -> tuple[float | None, tuple[str, ...]]:
    """Return the bound of fixing all idle causes at once, with their rules.

    None if there are fewer than two, or the first finding is none: one about the mean step, such as evaluations, has
    another step than the others. Also None if another finding, such as slow kernels, may gain more than this bound.
    """
    stages = {rule.name: rule.stage for rule in RULES}
    idle = [each for each in findings if each.gain and each.ledger_parts and stages.get(each.rule) == Stage.IDLE]
    if len(idle) < 2 or findings[0] not in idle:
        return None, ()
    # Their fixes may also shorten other parts of the step, so the parts of the ledger are no bound.
    bound = joint_bound([each.gain for each in idle if each.gain], evidence.on_gpu)
    if bound is None or any(each.gain is not None and each.gain.best_speedup > bound for each in findings):
        return None, ()
    return bound, tuple(each.rule for each in idle)


def joint_bound(gains: Sequence[Gain], on_gpu: bool) -> float | None:
    """Return the bound of several gains together, never the product of their bounds: they may share time.

    Without warm caches their savings add up. The rest of the step then speeds up once, by the largest allowance. None
    if nothing would remain of the step.
    """
    rest = 1 - sum(1 - 1 / gain.cold_bound for gain in gains)
    if rest <= 0:
        return None
    warm_frac = min(gain.cold_bound / gain.bound for gain in gains)
    if not on_gpu:
        warm_frac = min(warm_frac, with_warm_caches_ns(round(rest * 1e9), 10**9) / (rest * 1e9))
    return 1 / (rest * warm_frac)


def _verdict_without_finding(evidence: Evidence, unjudged: Sequence[Unjudged], findings: Sequence[Finding]) -> str:
    if evidence.optional_ledger is None:
        why, fix = why_no_ledger(evidence)
        return f"No diagnosis: {why}. {sentence(fix)}".rstrip()
    uncertain = max(unjudged, key=lambda answer: answer.unexplained_frac, default=None)
    known_frac = max((finding.numbers.get("exposed_frac", 0.0) for finding in findings), default=0.0)
    if uncertain is not None and uncertain.unexplained_frac > known_frac:
        return f"The cause is unknown: {uncertain.reason}."
    idle_parts = [part for part in evidence.ledger.parts if not part.busy]
    largest = max(idle_parts, key=lambda part: evidence.part_share(part.key))
    largest_share = percent(evidence.part_share(largest.key))
    idle_share = evidence.part_share(*(part.key for part in idle_parts))
    idle = f"(idle {percent(idle_share)}, most of it {largest.label}: {largest_share})"
    if not PYTORCH.is_met(evidence):
        return f"No diagnosis: {PYTORCH.why}. The {'GPU' if evidence.on_gpu else 'CPU'} is {idle[1:-1]}."
    if not OPERATORS.is_met(evidence) and idle_share >= _MIN_IDLE_FRAC:
        return f"The cause is unknown: the GPU is {idle[1:-1]}, and {OPERATORS.why}. {sentence(OPERATORS.fix)}"
    main = next((each for each in findings if each.numbers.get("exposed_frac", 0.0) >= _MAJORITY_FRAC), None)
    if main is not None:  # what takes most of the step is the verdict, also if no fix of it is certain to gain
        return f"{main.claim} No fix is certain to save {percent(_MIN_SAVED_FRAC)} of a step; see Worth knowing."
    if not evidence.on_gpu and findings and (share := training_share(evidence.run)) < _MINORITY_FRAC:
        return (
            f"Training steps take {percent(share)} of the loop, inference between them {percent(1 - share)}. No change "
            f"of the training steps is certain to save {percent(_MIN_SAVED_FRAC)} of the loop; see Worth knowing."
        )
    if not evidence.on_gpu:
        idle = f"({largest.label}: {largest_share} of a step)"
    if evidence.steps.too_few and evidence.steps.detected_by != "whole run":
        analysed = count(int(evidence.steps.interior.sum()), "complete step")
        return (
            f"No cause found, but only {analysed} of {len(evidence.steps):,} could be analysed {idle}. "
            "Let the loop run longer, or record more steps: --steps 20, in scripts gpulab.profile(steps=20)."
        )
    gains = [finding.gain for finding in findings if finding.gain is not None]
    best = max(gains, key=lambda gain: gain.best_speedup, default=None)
    if best is not None and best.step_ns - best.best_ns >= _MIN_SAVED_FRAC * best.step_ns:
        speedups = f"{ratio(best.worst_speedup).removesuffix('x')}-{ratio(best.best_speedup)}"
        return (
            f"No change is certain to save {percent(_MIN_SAVED_FRAC)} of a step {idle}. The most promising one is "
            f"under Worth knowing: {speedups}."
        )
    return f"Nothing worth changing: no single cause takes much of a step {idle}."


def _next_limit(evidence: Evidence, first: Finding) -> str | None:
    """Return the largest part of the step after the first finding is fixed, with its share; None if unknown.

    Where workers, cores or copies limit the predicted step, these are named. Otherwise, the parts are those of the
    replay with the fix. Without a replay they are known only if the fix removes idle time or exposed communication or
    copies completely: all other parts then stay as they are.
    """
    ledger, gain = evidence.ledger, first.gain
    if gain is None:
        return None
    if gain.limit is not None:
        return gain.limit
    if gain.remaining_ns:
        return _largest_part(ledger, gain.remaining_ns, first.ledger_parts)
    busy = {part.key for part in ledger.parts if part.busy} - {"communication", "copies"}
    if busy & set(first.ledger_parts) or 1 - evidence.part_share(*first.ledger_parts) < _MIN_NEXT_FRAC:
        return None
    part_ns = {key: dur_ns for key, dur_ns in evidence.typical_step.part_ns.items() if key not in first.ledger_parts}
    return _largest_part(ledger, part_ns, denominator="the remaining step")


def _largest_part(
    ledger: Ledger,
    part_ns: Mapping[str, int],
    first_parts: tuple[str, ...] = (),
    *,
    denominator: str = "the predicted step",
) -> str | None:
    """Return label and share of the largest group of parts: device work, dispatch, or a single idle part.

    `first_parts`: the parts that the first finding is about; if one of them is still the largest, the label says so.
    `denominator`: what the parts sum to.
    """
    busy = tuple(part.key for part in ledger.parts if part.busy)
    device_work = "GPU work" if ledger.device == "gpu" else "operators"
    groups: list[tuple[str, tuple[str, ...]]] = [(device_work, busy), ("dispatch and Python code", DISPATCH_KEYS)]
    groups += [(part.label, (part.key,)) for part in ledger.parts if part.key not in (*busy, *DISPATCH_KEYS)]
    total = sum(part_ns.values())
    share, label, keys = max(
        (sum(part_ns.get(key, 0) for key in keys) / max(1, total), label, keys) for label, keys in groups
    )
    used = [part.label for part in ledger.parts if part.key in keys and part_ns.get(part.key)]
    label = used[0] if len(used) == 1 else label
    still = "still " if len(keys) == 1 and keys[0] in first_parts else ""
    if share < _MIN_NEXT_FRAC:
        return None
    return f"{still}{label} ({percent(share)} of {denominator})"
