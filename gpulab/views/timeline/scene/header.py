"""What a page is told once of a scene: its groups, colours, findings, and what a reader must know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import CPU_PARTS
from gpulab.intervals import longest
from gpulab.rules.engine.finding import Diagnosis, Finding
from gpulab.run import Run
from gpulab.views.report.provenance import gap_words
from gpulab.views.sheet.lanes import window
from gpulab.views.timeline.scene.colours import KEYS, Key
from gpulab.views.timeline.scene.groups import Group
from gpulab.views.timeline.scene.placed_run import Placed, Side
from gpulab.wording import clean, count, duration, ratio, sentence

MOST_SPANS = 200
MARGIN_FRAC = 0.01  # beside the steps that are shown first
INFLATED = 1.1


def heading(diagnosis: Diagnosis, sides: Sequence[Side], span_ns: int, deepest: int) -> dict[str, Any]:
    """The header of a scene, as JSON knows it."""
    run = diagnosis.run
    return {
        "version": 1,
        "title": clean(run.name, 120),
        "source": clean(_source(run), 300),
        "watermark": clean(_watermark(sides), 300),
        "span_ns": span_ns,
        "home": _home(diagnosis.steps, span_ns),
        "deepest": deepest,
        "sides": [{"name": clean(side.name, 120), "source": clean(_source(side.run), 300)} for side in sides],
        "groups": [_group(side, placed) for side in sides for placed in side.placed],
        "keys": [{"key": key.key, "label": key.label, "colour": key.colour} for key in _keys(sides[0])],
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "notes": [clean(note) for note in _notes(sides)],
        "counts": {"events": sum(len(side.run.event_rows) for side in sides)},
    }


def _keys(side: Side) -> Iterator[Key]:
    """The colours, with the words that fit a run without a GPU where it is one."""
    on_cpu = side.accounts is not None and side.accounts.device == "cpu"
    labels = {part.key: part.label for part in CPU_PARTS} if on_cpu else {}
    for key in KEYS:
        yield replace(key, label=labels.get(key.key, key.label))


def _source(run: Run) -> str:
    """Where the numbers come from, with the day where it is not told already."""
    told = str(run.source)
    date = run.source.date
    return f"{told}, {date}" if date and date not in told else told


def _watermark(sides: Sequence[Side]) -> str:
    """That what is seen was never measured: of the run, or of the one below it."""
    told = [str(side.run.source) for side in sides if side.run.source.how in ("virtual", "predicted")]
    if len(told) == 1 and len(sides) > 1:  # one of two: which
        return f"{'above' if sides[0].run.source.how in ('virtual', 'predicted') else 'below'}: {told[0]}"
    return "; ".join(dict.fromkeys(told))


def _home(steps: Steps, span_ns: int) -> list[int]:
    shown = window(steps)
    if shown is None or shown.end_ns <= shown.start_ns:
        return [0, span_ns]
    margin = round(MARGIN_FRAC * (shown.end_ns - shown.start_ns))
    return [max(0, shown.start_ns - margin), min(span_ns, shown.end_ns + margin)]


def _group(side: Side, placed: Placed) -> dict[str, Any]:
    group: Group = placed.group
    return {
        "id": f"beside:{group.id}" if side.number else group.id,
        "name": group.name,
        "kind": "boxes" if group.curve is None else "curve",
        "side": side.number,
        "first": placed.first,
        "rows": group.height,
        "folded": group.folded,
        "about": group.about,
        "unit": group.unit,
        "low": group.low,
        "high": group.high,
        "format": group.format,
        "threshold": group.threshold,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    spans = longest(finding.shown_by, MOST_SPANS)
    return {
        "rule": finding.rule,
        "claim": clean(finding.claim),
        "confidence": finding.confidence,
        "spans": np.stack([spans.start_ns, spans.end_ns], axis=1).tolist(),
        "more": len(finding.shown_by.start_ns) - len(spans.start_ns),
    }


def _notes(sides: Sequence[Side]) -> Iterator[str]:
    if len(sides) > 1:
        yield from _alignment(sides[0], sides[1])
    for side in sides:
        whose = f"Of {side.name}: " if len(sides) > 1 else ""
        for note in (*_of_side(side), *side.notes, *map(gap_words, side.run.recording.left_out), *_lost(side.run)):
            yield whose + sentence(note)


def _of_side(side: Side) -> Iterator[str]:
    run, steps = side.run, side.steps
    if not len(run.event_rows):
        sensed = any(placed.group.curve is not None for placed in side.placed)
        level = run.recording.level
        yield f"no events were recorded (level {level})" if sensed else "nothing was recorded: there is nothing to show"
        return
    if not steps.recorded.all():
        yield _which(steps)
    if run.source.how == "predicted":
        yield "sensors and memory are not predicted"
    if steps.inflation is not None and steps.inflation >= INFLATED:
        yield f"recorded steps took {ratio(steps.inflation)} the time of the others: recording has its cost"


def _which(steps: Steps) -> str:
    """Of which steps there are events."""
    found = np.flatnonzero(steps.recorded)
    if not len(found):
        return f"no whole step of {len(steps)} was recorded with events"
    first, last = int(found[0]) + 1, int(found[-1]) + 1
    if len(found) < last - first + 1:
        return f"events were recorded for {len(found)} of {len(steps)} steps only, between steps {first} and {last}"
    which = f"steps {first}-{last}" if last > first else f"step {first}"
    return f"events were recorded for {which} only, of {len(steps)}"


def _lost(run: Run) -> Iterator[str]:
    for cause, events in sorted(run.recording.lost.items()):
        yield f"lost from the trace: {count(events, 'event')} ({cause})"


def _alignment(first: Side, second: Side) -> Iterator[str]:
    shown = window(first.steps), window(second.steps)
    if None in shown:
        yield "Both begin at the left: without steps in both there is nothing to align."
    else:
        yield f"Below: {second.name}, moved so that the first steps shown of both begin together."
    cut_ns = -second.shift_ns
    if cut_ns > 0:
        yield f"The first {duration(cut_ns)} of {second.name} are left of the beginning and are not shown."
