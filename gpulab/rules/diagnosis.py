"""Ask every rule; rank the answers; say what could not be asked, and what will limit next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpulab.analysis.ledger import DISPATCHING, Ledger, ledger
from gpulab.analysis.steps import Steps, steps
from gpulab.rules.device import device_bound, exposed_copies, host_syncs
from gpulab.rules.evidence import Evidence
from gpulab.rules.feeding import few_workers, starving
from gpulab.rules.finding import Diagnosis, Finding, Unjudged
from gpulab.rules.host import dispatch_bound, host_python
from gpulab.rules.phrases import percent
from gpulab.run import Run


@dataclass(frozen=True)
class Rule:
    """A question: the function that asks it, what it is about, and whether it needs a GPU in the run."""

    ask: Callable[[Evidence], Finding | Unjudged | None]
    about: str
    needs_gpu: bool = False

    @property
    def name(self) -> str:
        """The name of the function, which is the name of the rule."""
        return self.ask.__name__


# In the order in which equal findings are shown: feeding, host, way to the device, device.
RULES = (
    Rule(starving, "a main process that builds the batches"),
    Rule(few_workers, "workers that are late"),
    Rule(host_python, "Python code in the loop"),
    Rule(dispatch_bound, "the cost of calling operators"),
    Rule(exposed_copies, "copies to the GPU", needs_gpu=True),
    Rule(host_syncs, "waits for the GPU", needs_gpu=True),
    Rule(device_bound, "a device that is simply busy"),
)
NEXT_WORTH_FRAC = 0.05


def diagnose(run: Run) -> Diagnosis:
    """What is worth changing in this run, first things first; never raises for what a run lacks, it says so."""
    found_steps = steps(run)
    accounts = ledger(run, found_steps)
    if accounts is None:
        return _without_ledger(run, found_steps)
    seen = Evidence(run, found_steps, accounts)
    asked = [rule for rule in RULES if seen.on_gpu or not rule.needs_gpu]
    answers = [rule.ask(seen) for rule in asked]
    found = [answer for answer in answers if isinstance(answer, Finding)]
    found.sort(key=lambda finding: -finding.saves_ns)
    open_questions = [answer for answer in answers if isinstance(answer, Unjudged)]
    not_asked = [_no_gpu(rule, seen.missing_work) for rule in RULES if rule not in asked]
    return Diagnosis(
        run=run,
        steps=found_steps,
        ledger=accounts,
        findings=tuple(found),
        unjudged=(*open_questions, *not_asked),
        verdict=found[0].claim if found else _nothing(seen, open_questions),
        next_limit=_next_limit(accounts, found[0]) if found and found[0].gain else None,
    )


def _nothing(seen: Evidence, open_questions: Sequence[Unjudged]) -> str:
    if open_questions:
        return f"No cause can be named: {open_questions[0].why}."
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


def _no_gpu(rule: Rule, missing: str | None) -> Unjudged:
    return Unjudged(
        rule=rule.name,
        about=rule.about,
        why=missing or "no GPU work was recorded in this run",
        fix="record it again, to the end" if missing else "profile on a machine with a GPU",
    )


def _without_ledger(run: Run, found_steps: Steps) -> Diagnosis:
    why, fix = _what_is_missing(run)
    return Diagnosis(
        run=run,
        steps=found_steps,
        ledger=None,
        findings=(),
        unjudged=tuple(Unjudged(rule=rule.name, about=rule.about, why=why, fix=fix) for rule in RULES),
        verdict=f"Not judged: {why}.",
        next_limit=None,
    )


def _what_is_missing(run: Run) -> tuple[str, str]:
    if run.recording.level == "sensors":
        return "only sensors and step marks were recorded", "run the cell again without --level sensors"
    if run.recording.left_out and not len(run.event_rows):
        gap = run.recording.left_out[0]
        return gap.why, gap.fix
    if not len(run.event_rows):
        return "nothing of PyTorch ran while the profiler was on", "profile the cell that holds the training loop"
    return "no complete step was recorded", "let the loop run for at least six steps"
