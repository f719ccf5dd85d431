"""The header of a scene, sent to the page once: groups, colours, findings and notes on the recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import CPU_PARTS
from gpulab.intervals import longest_spans
from gpulab.rules.engine.finding import CONFIDENCE_LABELS, Diagnosis, Finding
from gpulab.run import Run
from gpulab.views.report.provenance import gap_text
from gpulab.views.sheet.lanes import middle_window
from gpulab.views.timeline.scene.colours import COLOUR_KEYS, ColourKey
from gpulab.views.timeline.scene.elements import Group
from gpulab.views.timeline.scene.placed_run import PlacedGroup, PlacedRun
from gpulab.wording import clean, count, duration, ratio, sentence

MAX_EVIDENCE_SPANS = 200
MAX_NOTES = 50
MAX_HIGH_LANES = 16  # more lanes of ranks are lower, and have no collectives
MARGIN_FRAC = 0.01  # on either side of the steps in the initial view
MIN_REPORTED_INFLATION = 1.1


def scene_header(
    diagnosis: Diagnosis, sides: Sequence[PlacedRun], span_ns: int, deepest: int, placement: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the header of a scene as JSON-compatible values. `placement`: how the other runs were placed."""
    run = diagnosis.run
    return {
        "version": 1,
        "title": clean(run.name, 120),
        "source": clean(_source(run), 300),
        "watermark": clean(_watermark(sides), 300),
        "span_ns": span_ns,
        "home": _home(diagnosis.steps, span_ns),
        "deepest": deepest,
        "sides": [
            {"name": clean(side.name, 120), "source": clean(_source(side.run), 300), "lane": side.is_lane}
            for side in sides
        ],
        "low_lanes": sum(side.is_lane for side in sides) > MAX_HIGH_LANES,
        "groups": [_group(side, placed) for side in sides for placed in side.placed_groups],
        "keys": [{"key": key.key, "label": key.label, "colour": key.colour} for key in _keys(sides[0])],
        "findings": [_finding(finding) for finding in diagnosis.findings],
        "notes": _limited_notes(sides, placement),
        "counts": {"events": sum(len(side.run.event_rows) for side in sides)},
    }


def _keys(side: PlacedRun) -> Iterator[ColourKey]:
    """Yield the colours; a run without a GPU uses the labels of the CPU ledger."""
    on_cpu = side.ledger is not None and side.ledger.device == "cpu"
    labels = {part.key: part.label for part in CPU_PARTS} if on_cpu else {}
    for key in COLOUR_KEYS:
        yield replace(key, label=labels.get(key.key, key.label))


def _source(run: Run) -> str:
    """Return the source of the numbers, with the date unless it is part of the source."""
    source = str(run.source)
    date = run.source.date
    return f"{source}, {date}" if date and date not in source else source


def _watermark(sides: Sequence[PlacedRun]) -> str:
    """Return the sources of the runs that were not measured but simulated or predicted; "" if there are none."""
    sources = [str(side.run.source) for side in sides if side.run.source.how in ("virtual", "predicted")]
    if len(sources) == 1 and len(sides) > 1:
        return f"{'above' if sides[0].run.source.how in ('virtual', 'predicted') else 'below'}: {sources[0]}"
    return "; ".join(dict.fromkeys(sources))


def _home(steps: Steps, span_ns: int) -> list[int]:
    """Return the initial window: a few interior steps, or the whole run."""
    first_view = middle_window(steps)
    if first_view is None or first_view.end_ns <= first_view.start_ns:
        return [0, span_ns]
    margin = round(MARGIN_FRAC * (first_view.end_ns - first_view.start_ns))
    return [max(0, first_view.start_ns - margin), min(span_ns, first_view.end_ns + margin)]


def _group(side: PlacedRun, placed: PlacedGroup) -> dict[str, Any]:
    group: Group = placed.group
    return {
        "id": f"beside:{group.id}" if side.number else group.id,
        "name": group.name,
        "kind": "boxes" if group.curve is None else "curve",
        "side": side.number,
        "first": placed.first,
        "rows": group.row_count,
        "folded": group.folded,
        "about": group.description,
        "unit": group.unit,
        "low": group.low,
        "high": group.high,
        "format": group.format,
        "threshold": group.threshold,
    }


def _finding(finding: Finding) -> dict[str, Any]:
    spans = longest_spans(finding.spans, MAX_EVIDENCE_SPANS)
    return {
        "rule": finding.rule,
        "claim": clean(finding.claim),
        "confidence": CONFIDENCE_LABELS[finding.confidence],
        "spans": np.stack([spans.start_ns, spans.end_ns], axis=1).tolist(),
        "more": len(finding.spans.start_ns) - len(spans.start_ns),
    }


def _limited_notes(sides: Sequence[PlacedRun], placement: Sequence[str]) -> list[str]:
    """Return the first notes, made safe to show; the page shows all of them above the timeline."""
    notes = [*placement, *_notes(sides)]
    more = len(notes) - MAX_NOTES
    return [*map(clean, notes[:MAX_NOTES]), *([f"{count(more, 'more note')} not shown."] if more > 0 else [])]


def _notes(sides: Sequence[PlacedRun]) -> Iterator[str]:
    if len(sides) > 1 and not sides[1].is_lane:
        yield from _alignment(sides[0], sides[1])
    for side in sides:
        prefix = f"{side.name}: " if len(sides) > 1 else ""
        notes = (
            *(() if side.is_lane else _recording_notes(side)),
            *side.notes,
            *map(gap_text, side.run.recording.left_out),
            *_lost(side.run),
        )
        for note in notes:
            yield prefix + sentence(note)


def _recording_notes(side: PlacedRun) -> Iterator[str]:
    run, steps = side.run, side.steps
    if not len(run.event_rows):
        has_curves = any(placed.group.curve is not None for placed in side.placed_groups)
        level = run.recording.level
        yield f"no events were recorded (level {level})" if has_curves else "the run is empty: nothing was recorded"
        return
    if not steps.recorded.all():
        yield _recorded_steps(steps)
    if run.source.how == "predicted":
        yield "sensors and memory are not predicted"
    if steps.profiler_overhead is not None and steps.profiler_overhead >= MIN_REPORTED_INFLATION:
        yield f"profiler overhead: profiled steps took {ratio(steps.profiler_overhead)} the time of the other steps"


def _recorded_steps(steps: Steps) -> str:
    """Describe which steps have events."""
    recorded = np.flatnonzero(steps.recorded)
    if not len(recorded):
        return f"none of the {len(steps)} steps was recorded with events from start to end"
    first, last = int(recorded[0]) + 1, int(recorded[-1]) + 1
    if len(recorded) < last - first + 1:
        return f"only {len(recorded)} of {len(steps)} steps have events, between steps {first} and {last}"
    if last > first:
        return f"only steps {first}-{last} of {len(steps)} have events"
    return f"only step {first} of {len(steps)} has events"


def _lost(run: Run) -> Iterator[str]:
    for cause, events in sorted(run.recording.lost.items()):
        yield f"the trace lost {count(events, 'event')} ({cause})"


def _alignment(first: PlacedRun, second: PlacedRun) -> Iterator[str]:
    if None in (middle_window(first.steps), middle_window(second.steps)):
        yield "Both runs start at the left edge: they cannot be aligned by steps, because at least one has none."
    else:
        yield f"{second.name} (below) is aligned so that the first visible steps of both runs start together."
    cut_ns = -second.shift_ns
    if cut_ns > 0:
        yield f"The first {duration(cut_ns)} of {second.name} lie before the start of the time axis and are not shown."
