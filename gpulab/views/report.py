"""The report: what was found in a run, why it is believed, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpulab.questions import diagnose
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.accounts import ESTIMATED, RECORDED, accounts
from gpulab.views.headline import answer, ending, headline
from gpulab.views.memory import memory
from gpulab.views.provenance import origin, provenance
from gpulab.views.readings import readings
from gpulab.views.sheet import Block, Line, Section, Sheet
from gpulab.views.timeline import timeline
from gpulab.views.view import View
from gpulab.views.watermark import assumptions, watermark
from gpulab.views.wording import counted, sentence


@dataclass(frozen=True, eq=False, repr=False)
class Report(View):
    """A diagnosis that shows itself: end a cell with it, print it, or `save` it."""

    diagnosis: Diagnosis


def report(what: Diagnosis | Run | Sequence[Run]) -> Report:
    """The report of a diagnosis, or of a run, which is diagnosed first; of the ranks of a job as `diagnose` has it."""
    diagnosis = what if isinstance(what, Diagnosis) else diagnose(what)
    blocks = (*_first_depth(diagnosis), *_second_depth(diagnosis))
    return Report(Sheet(f"gpulab report of {diagnosis.run.name}", blocks), diagnosis)


def _first_depth(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """What is read first: the verdict, where a step goes, and a few steps as a picture."""
    run, ledger = diagnosis.run, diagnosis.ledger
    looped = diagnosis.steps.found_by != "whole run"
    blocks: list[Block] = [
        *watermark(run),
        *ending(diagnosis),
        headline(diagnosis),
        Line(sentence(origin(run)), soft=True),
    ]
    if (holders := memory(run)) is not None:
        blocks.append(holders)
    if ledger is not None:
        how = ESTIMATED if run.source.how == "virtual" else RECORDED
        title = "Where a step goes" if looped else "Where the time goes"
        blocks.append(Section(title, accounts(ledger, looped=looped, how=how)))
    else:
        blocks.append(Section("What the sensors said", readings(run)))
    picture = timeline(diagnosis)
    if picture is not None:
        blocks.append(Section("A few steps" if looped else "All that was recorded", (picture,)))
    return tuple(blocks)


def _second_depth(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """What is read on demand."""
    unjudged = diagnosis.unjudged
    others = [finding for finding in diagnosis.others if not finding.aside]
    asides = [finding for finding in diagnosis.others if finding.aside]
    sections = []
    if others:
        title = f"{counted(len(others), 'other finding')}"
        sections.append(Section(title, tuple(answer(finding) for finding in others), folded=True))
    if asides:
        sections.append(Section("Worth knowing", tuple(answer(finding) for finding in asides), folded=True))
    if diagnosis.masked:
        sections.append(Section("Seen, and explained by another finding", _masked(diagnosis), folded=True))
    if diagnosis.ledger is not None and (len(diagnosis.run.gpu_rows) or len(diagnosis.run.host_rows)):
        sections.append(Section("What the sensors said", readings(diagnosis.run), folded=True))
    sections += assumptions(diagnosis.run)
    if unjudged:
        sections.append(Section("What was not judged, and why", _unjudged(diagnosis), folded=True))
    sections.append(Section("How this was measured", provenance(diagnosis), folded=True))
    return tuple(sections)


def _masked(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """What was seen, each with the claim that explains it."""
    claims = {finding.rule: finding.claim for finding in diagnosis.findings}
    claims |= {masked.finding.rule: masked.finding.claim for masked in diagnosis.masked}
    return tuple(
        Line(f"{sentence(masked.finding.claim)} Explained by: {claims[masked.by]}") for masked in diagnosis.masked
    )


def _unjudged(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """One line for all that share a reason."""
    if len({(each.why, each.fix) for each in diagnosis.unjudged}) == 1 and diagnosis.ledger is None:
        return (Line(f"No question could be asked: {_reason(diagnosis.unjudged[0].why, diagnosis.unjudged[0].fix)}"),)
    shared: dict[tuple[str, str], list[str]] = {}
    for each in diagnosis.unjudged:
        shared.setdefault((each.why, each.fix), []).append(each.about)
    return tuple(
        Line(f"{sentence('; '.join(about)).rstrip('.')}: {_reason(why, fix)}") for (why, fix), about in shared.items()
    )


def _reason(why: str, fix: str) -> str:
    return f"{why.rstrip('.')}. {sentence(fix)}".rstrip()
