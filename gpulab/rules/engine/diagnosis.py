"""Ask every rule; rank the answers; say what could not be asked, and what will limit next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import DISPATCHING, Ledger, ledger
from gpulab.intervals import intersect
from gpulab.replay.history import NO_HISTORY, History
from gpulab.rules.engine.catalogue import RULES
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.finding import Diagnosis, Finding, Masked, Unjudged
from gpulab.rules.engine.needs import unmet, without_ledger
from gpulab.rules.engine.rule import Rule, Stage
from gpulab.run import Run
from gpulab.wording import percent

NEXT_WORTH_FRAC = 0.05
EXPLAINED_FRAC = 0.5  # a finding of which another explains this much is not told twice

Answer = tuple[Rule, Finding | Unjudged | None]


def diagnose(run: Run, peers: Sequence[Run] = (), history: History = NO_HISTORY) -> Diagnosis:
    """What is worth changing in this run, first things first; never raises for what a run lacks, it says so.

    `peers`: the runs of all ranks where it is one of several; some questions need them all. `history`: what earlier
    predictions on this machine taught.
    """
    found_steps = steps(run)
    seen = Evidence(run, found_steps, ledger(run, found_steps), tuple(peers), history, diagnose)
    answers = [(rule, _answer(rule, seen)) for rule in RULES]
    found, masked = ranked([(rule, answer) for rule, answer in answers if isinstance(answer, Finding)])
    unjudged = tuple(answer for _, answer in answers if isinstance(answer, Unjudged))
    first = next((finding for finding in found if not finding.aside), None)
    return Diagnosis(
        run=run,
        steps=found_steps,
        ledger=seen.accounts,
        findings=found,
        unjudged=unjudged,
        verdict=first.claim if first else _nothing(seen, unjudged),
        next_limit=_next_limit(seen.ledger, first) if first and first.gain and first.parts else None,
        masked=masked,
        together=_together(seen, found),
    )


def _answer(rule: Rule, seen: Evidence) -> Finding | Unjudged | None:
    lacking = unmet(rule.needs, seen)
    answer = rule.ask(seen) if lacking is None else Unjudged(why=lacking[0], fix=lacking[1])
    if isinstance(answer, Unjudged):
        return replace(answer, rule=rule.name, about=answer.about or rule.about)
    return answer and _stamped(rule, answer, seen)


def _stamped(rule: Rule, finding: Finding, seen: Evidence) -> Finding:
    """The finding with the name, topic and lesson of its rule, and with the confidence that the recording allows."""
    confidence, why = seen.confidence(finding.confidence) if finding.from_steps else (finding.confidence, "")
    return replace(
        finding,
        rule=rule.name,
        topic=rule.topic,
        lesson=rule.lesson,
        confidence=confidence,
        why_confidence=why or finding.why_confidence,
    )


def ranked(answers: Iterable[tuple[Rule, Finding]]) -> tuple[tuple[Finding, ...], tuple[Masked, ...]]:
    """The findings that no other explains, first things first; and those that one does."""
    told = list(answers)
    by = {
        rule.name: next((other for _, other in told if _explains(other, finding, rule)), None) for rule, finding in told
    }
    left = [(rule, finding) for rule, finding in told if by[rule.name] is None]
    left.sort(key=lambda each: (not each[1].urgent, each[1].aside, -each[1].saves_ns, each[0].stage))
    masked = tuple(
        Masked(finding=finding, by=other.rule) for rule, finding in told if (other := by[rule.name]) is not None
    )
    return tuple(finding for _, finding in left), masked


def _explains(other: Finding, finding: Finding, rule: Rule) -> bool:
    """Whether the other finding is about the same time; one that shows no time of its own explains by being there."""
    if rule.name in other.explains:
        return other.saves_ns >= EXPLAINED_FRAC * finding.saves_ns
    if other.rule not in rule.masked_by:
        return False
    if not finding.shown_by.total_ns or not other.shown_by.total_ns:
        return True
    shared_ns = intersect(finding.shown_by, other.shown_by).total_ns
    return shared_ns >= EXPLAINED_FRAC * finding.shown_by.total_ns


def _together(seen: Evidence, found: Sequence[Finding]) -> float | None:
    """The bound of mending all idle causes at once: never the product of theirs, as they may share time."""
    stages = {rule.name: rule.stage for rule in RULES}
    idle = [each for each in found if each.gain and each.parts and stages.get(each.rule) == Stage.IDLE]
    if len(idle) < 2:
        return None
    left = 1 - seen.ledger.share(*sorted({key for each in idle for key in each.parts}))
    best = max(each.gain.bound for each in idle if each.gain)
    return max(best, 1 / left) if left > 0 else None


def _nothing(seen: Evidence, unjudged: Sequence[Unjudged]) -> str:
    if seen.accounts is None:
        return f"Not judged: {without_ledger(seen)[0]}."
    doubt = max(unjudged, key=lambda each: each.open_frac, default=None)
    if doubt is not None and doubt.open_frac:
        return f"No cause can be named: {doubt.why}."
    idle = [part for part in seen.ledger.parts if not part.busy]
    most = max(idle, key=lambda part: seen.ledger.frac(part.key))
    return (
        "Nothing worth changing: no single cause takes much of a step "
        f"(idle {percent(seen.ledger.idle_frac)}, most of it {most.label}: {percent(seen.ledger.frac(most.key))})."
    )


def _next_limit(accounts: Ledger, first: Finding) -> str | None:
    """The largest part of the step once the first finding's part is gone; its share is of what is left."""
    mended = first.parts
    left = 1 - accounts.frac(*mended)
    if left < NEXT_WORTH_FRAC:
        return None  # next to nothing else was seen, so nothing can be said of what comes then
    alone = [part for part in accounts.parts if not part.busy and part.key not in DISPATCHING]
    groups: list[tuple[str, tuple[str, ...]]] = [(part.label, (part.key,)) for part in alone]
    groups.append(("calling operators", DISPATCHING))
    rest = [(accounts.frac(*keys) / left, label) for label, keys in groups if not set(keys) & set(mended)]
    share, label = max(rest)
    work = accounts.frac(*(part.key for part in accounts.parts if part.busy and part.key not in mended)) / left
    if work >= share or share < NEXT_WORTH_FRAC:
        return f"the compute itself ({percent(work)} of what is left)"
    return f"{label} ({percent(share)} of what is left)"
