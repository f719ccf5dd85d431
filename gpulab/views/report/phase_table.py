"""Phases of a run as a table: training, evaluation, other code, with the share that waits for data."""

from __future__ import annotations

from collections.abc import Sequence

from gpulab.analysis.events.named_phases import MOST_NAMES, name_count
from gpulab.analysis.steps.phases import PhaseKind, RunPhase, evaluated_loader
from gpulab.run import Run
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import clean, count, percent, scale

_MIN_EVALUATION_FRAC = 0.02  # of the run: with less evaluation and
_MAX_NAME_LENGTH = 40  # characters
_MIN_OTHER_FRAC = 0.10  # less other code, the run is the training loop, and the table says nothing new


def run_phases(run: Run, phases: Sequence[RunPhase]) -> TableBlock | None:
    """Return the table; None if nearly all of the run is its training loop, and the program named no other phase."""
    shares = {PhaseKind.OTHER: _MIN_OTHER_FRAC, PhaseKind.EVALUATION: _MIN_EVALUATION_FRAC}
    has_others = any(phase.kind in shares and phase.total_ns >= shares[phase.kind] * run.span_ns for phase in phases)
    if not has_others and not any(phase.name and phase.kind is not PhaseKind.TRAINING for phase in phases):
        return None
    unit = scale(float(run.span_ns), figures=4)
    has_batches = any(phase.batches for phase in phases)
    rows = [
        Row(
            (
                _label(run, phase),
                unit.number(float(phase.total_ns)),
                percent(phase.total_ns / run.span_ns, 1),
                _work(phase),
                *((percent(phase.waiting_frac) if phase.batches else "",) if has_batches else ()),
            )
        )
        for phase in phases
    ]
    no_wait = ("",) if has_batches else ()
    total = Row(("all", unit.number(float(run.span_ns)), percent(1.0, 1), "", *no_wait), kind="total")
    return TableBlock(
        header=("", f"time, {unit.unit}", "share", "work", *(("waiting for data",) if has_batches else ())),
        rows=(*rows, total),
        caption=_caption(run),
    )


def _caption(run: Run) -> str:
    text = (
        "Phases of the whole run, from the times of all steps, traced or not. The other sections describe only the "
        "training steps."
    )
    names = name_count(run)
    if names > MOST_NAMES:
        text += f" The program named {names:,} phases; the {MOST_NAMES} longest are listed, the rest counts as training"
        text += " or other code."
    return text


def _label(run: Run, phase: RunPhase) -> str:
    loader = evaluated_loader(run, phase)
    label = clean(phase.name, _MAX_NAME_LENGTH) or phase.kind.value
    return f"{label} ({loader.name})" if loader is not None and loader.name else label


def _work(phase: RunPhase) -> str:
    if phase.passes and phase.kind is not PhaseKind.TRAINING:
        return f"{count(phase.batches, 'batch')} in {count(phase.passes, 'pass')}"
    parts = [*_counted(phase.updates, "optimizer step"), *_counted(phase.batches, "batch")]
    if phase.kind is PhaseKind.PART:
        return ", ".join(parts or [count(phase.times, "time")])
    return ", ".join(parts)


def _counted(number: int, noun: str) -> list[str]:
    return [count(number, noun)] if number else []
