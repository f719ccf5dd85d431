"""The report of a run: verdict, evidence, fix, other findings, and how it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gpulab.extras import require_extra
from gpulab.questions import diagnose
from gpulab.questions.run_names import RunLike, replace_names
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.run_facts import is_from_monitor
from gpulab.views.front_end import shows_widgets
from gpulab.views.report.earlier_runs import earlier_runs_text
from gpulab.views.report.energy_table import energy_section
from gpulab.views.report.gpu_event_table import alert_section, gpu_event_section
from gpulab.views.report.headline import alternative_answer, finding_answer, headline, outcome_lines
from gpulab.views.report.job.sections import job_sections
from gpulab.views.report.ledger_table import how_to_mark_steps, ledger_blocks, method_of
from gpulab.views.report.line_table import line_section
from gpulab.views.report.memory_holders import memory_section
from gpulab.views.report.operator_table import operator_section
from gpulab.views.report.phase_table import phase_section
from gpulab.views.report.provenance import origin, provenance
from gpulab.views.report.sensor_table import sensor_blocks
from gpulab.views.report.undiagnosed.monitor import monitor_answer
from gpulab.views.report.undiagnosed.no_pytorch import nothing_to_diagnose, ran_no_pytorch
from gpulab.views.report.undiagnosed.unjudged import unjudged_line, unjudged_reasons
from gpulab.views.report.virtual_notice import assumptions, estimate_notice
from gpulab.views.sheet.html import fragment
from gpulab.views.sheet.sheet import Block, Line, Section, Sheet
from gpulab.views.sheet.step_picture import step_timeline
from gpulab.views.sheet.view import View, text_bytes, write_file
from gpulab.wording import count, sentence

if TYPE_CHECKING:
    from gpulab.views.timeline.scene.scene import Scene


@dataclass(frozen=True, eq=False, repr=False)
class Report(View):
    """A diagnosis as a view: end a cell with it, print it, or `save` it."""

    diagnosis: Diagnosis
    ranks: tuple[Run, ...] = ()  # of a job
    suffixes: ClassVar[tuple[str, ...]] = (*View.suffixes, ".png")

    def save(self, path: str | Path, *, timeline: bool = True) -> Path:
        """Write the report to `path` and return the path; the suffix is `.html`, `.png`, `.txt` or `.md`.

        HTML is self-contained and includes the zoomable timeline unless `timeline=False`. Writing is atomic. Raises
        GpulabError for `.png` if matplotlib is not installed.
        """
        path = Path(path)
        form = path.suffix.lower()
        if form == ".png":
            require_extra("charts", "matplotlib", problem=f"The report cannot be saved as {form}.")
            from gpulab.views.charts.report_png import report_png

            return write_file(path, (report_png(self.diagnosis),))
        if form in (".html", ".htm") and timeline and len(self.diagnosis.run.event_rows):
            return write_file(path, text_bytes(self._with_timeline()))
        return super().save(path)

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": repr(self), "text/html": self._zoomable if shows_widgets() else self._html}

    @cached_property
    def _zoomable(self) -> str:
        """The same HTML with a zoom button on the picture, which works as long as the kernel lives."""
        from gpulab.views.timeline.zoom_button import with_timeline_button

        return fragment(with_timeline_button(self.sheet, self._scene))

    def _with_timeline(self) -> str:
        from gpulab.views.timeline.page import timeline_page

        return timeline_page(self._scene(), self._repr_html_(), MOST_PAGE_BYTES)

    def _scene(self) -> Scene:
        from gpulab.views.timeline.scene.rank_scene import build_rank_scene
        from gpulab.views.timeline.scene.scene import build_scene

        return build_rank_scene(self.diagnosis, self.ranks) if len(self.ranks) > 1 else build_scene(self.diagnosis)


MOST_PAGE_BYTES = 2_000_000  # of a saved page with its timeline: small enough for an e-mail


def report(subject: Diagnosis | RunLike | Sequence[RunLike], *, everything: bool = False) -> Report:
    """Return the report of a diagnosis, of a run or of the ranks of a job; runs are diagnosed first by `diagnose`.

    `everything`: also list the checks that could not run, each with the reason, and report on a run without PyTorch at
    full length.
    """
    subject = subject if isinstance(subject, Diagnosis) else replace_names(subject)
    diagnosis = subject if isinstance(subject, Diagnosis) else diagnose(subject)
    several = subject if isinstance(subject, Sequence) else ()
    ranks = tuple(run for run in several if isinstance(run, Run))
    if not (everything or ranks) and ran_no_pytorch(diagnosis):
        blocks = nothing_to_diagnose(diagnosis)
    else:
        blocks = (*_overview(diagnosis, job_sections(ranks)), *_details(diagnosis, everything=everything))
    return Report(Sheet(f"gpulab report of {diagnosis.run.name}", blocks), diagnosis, ranks)


def _overview(diagnosis: Diagnosis, ranks: tuple[Section, ...]) -> tuple[Block, ...]:
    """Return the visible part: verdict, ranks, ledger, a timeline of a few steps, a line for each other finding."""
    run, ledger = diagnosis.run, diagnosis.ledger
    looped = diagnosis.steps.detected_by != "whole run"
    blocks: list[Block] = [
        *estimate_notice(run),
        *outcome_lines(diagnosis),
        monitor_answer(diagnosis) if is_from_monitor(run) else headline(diagnosis),
        *_alternative(diagnosis),
        Line(sentence(origin(run)), soft=True),
        *((Line(sentence(earlier)),) if (earlier := earlier_runs_text(diagnosis)) else ()),
        *ranks,
    ]
    if (holders := memory_section(run)) is not None:
        blocks.append(holders)
    if ledger is not None and diagnosis.step is not None:
        method = method_of(run, diagnosis.steps)
        title = "Where the step time goes" if looped else "Where the time goes"
        blocks.append(
            Section(
                title,
                ledger_blocks(
                    ledger, diagnosis.step, has_steps=looped, method=method, marking=how_to_mark_steps(diagnosis.run)
                ),
            )
        )
    else:
        blocks.append(Section("Sensor readings", sensor_blocks(run)))
    if (phases := phase_section(diagnosis)) is not None:
        blocks.append(phases)
    few_steps = step_timeline(diagnosis)
    if few_steps is not None:
        blocks.append(Section("Timeline" if looped else "The whole recording", (few_steps,)))
    return (*blocks, *_findings(diagnosis))


def _alternative(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """Return code for the first cause, if its first remedy is advice."""
    if diagnosis.first is None or is_from_monitor(diagnosis.run):
        return ()
    answer = alternative_answer(diagnosis.first)
    return (Section("Another remedy for the same cause, as code", (answer,)),) if answer is not None else ()


def _findings(diagnosis: Diagnosis) -> tuple[Section, ...]:
    """Return every finding except the first: its claim, with evidence, fix and picture folded below."""
    others = [finding for finding in diagnosis.others if not finding.informs_only]
    asides = [finding for finding in diagnosis.others if finding.informs_only]
    groups = ((count(len(others), "other finding"), others), ("Worth knowing", asides))
    return tuple(
        Section(title, tuple(finding_answer(finding, diagnosis) for finding in findings))
        for title, findings in groups
        if findings
    )


def _details(diagnosis: Diagnosis, *, everything: bool) -> tuple[Section, ...]:
    """Return the folded part: masked findings, sensors, assumptions, rules not judged, provenance."""
    sections: list[Section] = []
    if diagnosis.masked:
        sections.append(Section("Findings that overlap with another one", _masked(diagnosis), folded=True))
    if (operators := operator_section(diagnosis)) is not None:
        sections.append(operators)
    if (lines := line_section(diagnosis)) is not None:
        sections.append(lines)
    if diagnosis.ledger is not None and (len(diagnosis.run.gpu_rows) or len(diagnosis.run.host_rows)):
        sections.append(Section("Sensor readings", sensor_blocks(diagnosis.run), folded=True))
    extra = (alert_section(diagnosis), gpu_event_section(diagnosis))
    sections += [section for section in extra if section is not None]
    if (energy := energy_section(diagnosis)) is not None:
        sections.append(energy)
    sections += assumptions(diagnosis.run)
    if everything and diagnosis.unjudged:
        sections.append(Section("Checks that could not run", unjudged_reasons(diagnosis), folded=True))
    unjudged = () if everything else unjudged_line(diagnosis)
    sections.append(Section("How this was measured", (*provenance(diagnosis), *unjudged), folded=True))
    return tuple(sections)


def _masked(diagnosis: Diagnosis) -> tuple[Line, ...]:
    """Return a line for each masked finding, with the rule that covers it."""
    return tuple(
        Line(f"{sentence(masked.finding.claim)} Its time is counted in the finding {masked.explained_by}.")
        for masked in diagnosis.masked
    )
