"""The report: what was found in a run, why it is believed, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from gpulab.questions import diagnose
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.front_end import shows_widgets
from gpulab.views.report.headline import answer, ending, headline
from gpulab.views.report.ledger_table import ESTIMATED, RECORDED, accounts
from gpulab.views.report.memory_holders import memory
from gpulab.views.report.provenance import origin, provenance
from gpulab.views.report.sensor_table import readings
from gpulab.views.report.virtual_notice import assumptions, watermark
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.sheet import Block, Line, Section, Sheet
from gpulab.views.sheet.step_picture import picture
from gpulab.views.sheet.view import View, in_lines, written
from gpulab.wording import count, sentence


@dataclass(frozen=True, eq=False, repr=False)
class Report(View):
    """A diagnosis that shows itself: end a cell with it, print it, or `save` it."""

    diagnosis: Diagnosis
    endings: ClassVar[tuple[str, ...]] = (*View.endings, ".png")

    def save(self, path: str | Path, *, timeline: bool = True) -> Path:
        """Write `.html` (self-contained, with the timeline to zoom into unless told otherwise), `.png`, `.txt`, `.md`.

        A file is written whole or not at all; gives the path.
        """
        path = Path(path)
        form = path.suffix.lower()
        if form == ".png":
            from gpulab.views.charts.report_png import png

            return written(path, (png(self.diagnosis),))
        if form in (".html", ".htm") and timeline and len(self.diagnosis.run.event_rows):
            return written(path, in_lines(self._with_timeline()))
        return super().save(path)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._zoomable if shows_widgets() else self._html}

    @cached_property
    def _zoomable(self) -> str:
        """The same HTML, whose picture can be zoomed into while the kernel lives; saved, it is the picture."""
        from gpulab.views.timeline.zoom_button import offered

        return fragment(offered(self.sheet, self.diagnosis))

    def _with_timeline(self) -> str:
        from gpulab.views.timeline.page import page
        from gpulab.views.timeline.scene.scene import scene

        return page(scene(self.diagnosis), self._repr_html_(), MOST_PAGE_BYTES)


MOST_PAGE_BYTES = 2_000_000  # of a saved page with its timeline: small enough for a mail


def report(what: Diagnosis | Run | Sequence[Run]) -> Report:
    """The report of a diagnosis, or of a run, which is diagnosed first; of the ranks of a job as `diagnose` has it."""
    diagnosis = what if isinstance(what, Diagnosis) else diagnose(what)
    blocks = (*_first_depth(diagnosis), *_second_depth(diagnosis))
    return Report(Sheet(f"gpulab report of {diagnosis.run.name}", blocks), diagnosis)


def _first_depth(diagnosis: Diagnosis) -> tuple[Block, ...]:
    """What is read first: the verdict, where a step goes, a few steps as a picture, each other finding in a line."""
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
    few_steps = picture(diagnosis)
    if few_steps is not None:
        blocks.append(Section("A few steps" if looped else "All that was recorded", (few_steps,)))
    return (*blocks, *_findings(diagnosis))


def _findings(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """Every finding but the first, a line each; its evidence, fix and picture under it on demand."""
    others = [finding for finding in diagnosis.others if not finding.aside]
    asides = [finding for finding in diagnosis.others if finding.aside]
    titled = ((count(len(others), "other finding"), others), ("Worth knowing", asides))
    return tuple(
        Section(title, tuple(answer(finding, diagnosis) for finding in some)) for title, some in titled if some
    )


def _second_depth(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """What is read on demand."""
    unjudged = diagnosis.unjudged
    sections = []
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
