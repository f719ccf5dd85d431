"""Phases of a run as a table: training, evaluation, other code, with the share and the largest part of each."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.analysis.events.named_phases import MOST_NAMES, name_count
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.phase_ledger import phase_ledger
from gpulab.analysis.steps.phases import PhaseKind, RunPhase, evaluated_by, find_phases
from gpulab.analysis.steps.typical_step import TypicalStep
from gpulab.rules import Diagnosis
from gpulab.run import Run
from gpulab.views.sheet.sheet import Line, Row, Section, TableBlock
from gpulab.wording import clean, count, percent, scale

_MIN_EVALUATION_FRAC = 0.02  # of the run: with less evaluation and
_MAX_NAME_LENGTH = 40  # characters
_MIN_OTHER_FRAC = 0.10  # less other code, the run is the training loop, and the table says nothing new
_MOST_EVALUATIONS = 3  # in the sentence
_NOT_RECORDED = "not recorded"
_NO_PART = frozenset((PhaseKind.PROFILER,))
LargestPart = tuple[str, float]  # label of the part in the ledger, and its share of the phase, 0-1


def phase_section(diagnosis: Diagnosis) -> Section | None:
    """Return the table of the phases after a sentence about their shares; None if it would say nothing new."""
    run, phases = diagnosis.run, find_phases(diagnosis.run)
    parts = largest_parts(run, phases, diagnosis.ledger, diagnosis.step)
    table = run_phases(run, phases, parts)
    return None if table is None else Section("Phases of the run", (Line(phase_sentence(run, phases, parts)), table))


def largest_parts(
    run: Run, phases: Sequence[RunPhase], ledger: Ledger | None, step: TypicalStep | None
) -> list[LargestPart | None]:
    """Return the largest part of each phase: for the training that of its typical step, as the ledger of steps has it.

    None for phases of which no events were recorded.
    """
    parts: list[LargestPart | None] = []
    for phase in phases:
        if phase.kind is PhaseKind.TRAINING and ledger is not None and step is not None:
            part = max(ledger.parts, key=lambda part: step.frac(part.key))
            parts.append((part.label, step.frac(part.key)))
            continue
        of_phase = phase_ledger(run, phase)
        parts.append(None if of_phase is None else of_phase.largest)
    return parts


def phase_sentence(run: Run, phases: Sequence[RunPhase], parts: Sequence[LargestPart | None]) -> str:
    """Say what share of the run the training and each evaluation takes, and what takes most of an evaluation."""
    shares = [
        f"{_label(run, phase)} {percent(phase.total_ns / run.span_ns)}"
        for phase in phases
        if phase.kind is not PhaseKind.PART
    ]
    text = f"Share of the run: {', '.join(shares)}."
    evaluations = [pair for pair in zip(phases, parts, strict=True) if pair[0].kind is PhaseKind.EVALUATION]
    for phase, part in evaluations[:_MOST_EVALUATIONS]:
        name = _label(run, phase)
        if part is not None:
            text += f" Largest part of {name}, as far as recorded: {part[0]}, {percent(part[1])}."
        elif phase.batches:
            text += (
                f" No event of {name} was recorded; it waits for data for {percent(phase.waiting_frac)} of its time."
            )
        else:
            text += f" No event of {name} was recorded."
    return text


def run_phases(
    run: Run, phases: Sequence[RunPhase], parts: Sequence[LargestPart | None] | None = None
) -> TableBlock | None:
    """Return the table; None if nearly all of the run is its training loop, and the program named no other phase.

    `parts`: as `largest_parts` returns them; without them, the ledger of the recorded parts of each phase has them.
    """
    parts = largest_parts(run, phases, None, None) if parts is None else parts
    shares = {PhaseKind.OTHER: _MIN_OTHER_FRAC, PhaseKind.EVALUATION: _MIN_EVALUATION_FRAC}
    has_others = any(phase.kind in shares and phase.total_ns >= shares[phase.kind] * run.span_ns for phase in phases)
    if not has_others and not any(phase.name and phase.kind is not PhaseKind.TRAINING for phase in phases):
        return None
    unit = scale(float(run.span_ns), figures=4)
    has_parts = any(part is not None for part in parts)
    heading, last = _last_column(phases, parts)
    rows = [
        Row(
            (
                _label(run, phase),
                unit.number(float(phase.total_ns)),
                percent(phase.total_ns / run.span_ns, 1),
                _work(phase),
                *cells,
            )
        )
        for phase, cells in zip(phases, last, strict=True)
    ]
    total = Row(("all", unit.number(float(run.span_ns)), percent(1.0, 1), "", *("" for _ in heading)), kind="total")
    return TableBlock(
        header=("", f"time, {unit.unit}", "share", "work", *heading),
        rows=(*rows, total),
        caption=_caption(run, has_parts=has_parts),
    )


def _last_column(
    phases: Sequence[RunPhase], parts: Sequence[LargestPart | None]
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return heading and cells: the largest parts; without events the waits for batches, if there are any."""
    if any(part is not None for part in parts):
        pairs = zip(phases, parts, strict=True)
        return ("largest part",), [(_part_text(phase, part),) for phase, part in pairs]
    if any(phase.batches for phase in phases):
        return ("waiting for data",), [(percent(phase.waiting_frac) if phase.batches else "",) for phase in phases]
    return (), [() for _ in phases]


def _part_text(phase: RunPhase, part: LargestPart | None) -> str:
    """Return the part in the fewest words: "long operators 84 %", "Python code < 0.2 ms 45 %"."""
    if part is None:
        return "" if phase.kind in _NO_PART else _NOT_RECORDED
    return f"{part[0].partition(' (')[0].removesuffix(' at a time')} {percent(part[1])}"


def _caption(run: Run, *, has_parts: bool) -> str:
    text = (
        "Phases of the whole run, from the times of all steps, traced or not. The other sections describe only the "
        "training steps."
    )
    if has_parts:
        text += " The last column shows what took most of the time in the recorded events of a phase."
    names = name_count(run)
    if names > MOST_NAMES:
        text += f" The program named {names:,} phases; the {MOST_NAMES} longest are listed, the rest counts as training"
        text += " or other code."
    return text


def _label(run: Run, phase: RunPhase) -> str:
    label, evaluated = (clean(text, _MAX_NAME_LENGTH) for text in (phase.name, evaluated_by(run, phase)))
    return f"{label or phase.kind.value}{f' ({evaluated})' if evaluated else ''}"


def _work(phase: RunPhase) -> str:
    if phase.code is not None:
        return count(phase.times, "evaluation")
    if phase.passes and phase.kind is not PhaseKind.TRAINING:
        return f"{count(phase.batches, 'batch')} in {count(phase.passes, 'pass')}"
    parts = [*_counted(phase.updates, "update"), *_counted(phase.batches, "batch")]
    if phase.kind is PhaseKind.PART:
        return ", ".join(parts or [count(phase.times, "time")])
    return ", ".join(parts)


def _counted(number: int, noun: str) -> list[str]:
    return [count(number, noun)] if number else []
