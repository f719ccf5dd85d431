"""The static form of a timeline: a window as picture, text and tables, for output that cannot be interactive."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import no_spans
from gpulab.views.report.provenance import origin
from gpulab.views.report.virtual_notice import estimate_notice
from gpulab.views.sheet.lanes import Window, timeline_lanes
from gpulab.views.sheet.sheet import Block, Facts, Line, Mark, Row, Section, Sheet, TableBlock, Timeline
from gpulab.views.sheet.step_picture import LANE_PX, axis_ticks, lane_legend, lanes_svg
from gpulab.views.timeline.rank_lanes_picture import rank_lanes_picture
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.wording import count, duration, percent, scale, sentence

_MAX_STEP_LINES = 60  # with more steps their lines would fill the picture
_MAX_STEP_LABELS = 10
_MIN_ROW_FRAC = 0.005  # smaller parts of the ledger are summed in the last row
_MAX_KERNELS = 5


def window_sheet(sides: tuple[PlacedRun, ...], brushed: Mapping[str, Any], notes: tuple[str, ...] = ()) -> Sheet:
    """Return a sheet of a window, given as `Scene.brush` returns it: for each run a picture, its ledger and kernels."""
    start_ns, end_ns = int(brushed["start_ns"]), int(brushed["end_ns"])
    names = " and ".join(side.name for side in sides if not side.is_lane)
    blocks: list[Block] = [Line(_headline(sides, start_ns, end_ns))]
    has_lanes = any(side.is_lane for side in sides)
    if has_lanes and (picture := rank_lanes_picture(sides, start_ns, end_ns)) is not None:
        blocks.append(Section("Ranks", (picture,)))
    for side, contents in zip(sides, brushed["sides"], strict=True):
        if side.is_lane:
            continue
        side_blocks = tuple(_side(side, contents, start_ns, end_ns))
        blocks += [Section(side.name, side_blocks)] if len(sides) > 1 else side_blocks
    blocks += [Line(sentence(note), soft=True) for note in notes]
    return Sheet(f"gpulab timeline of {names}", tuple(blocks))


def _headline(sides: tuple[PlacedRun, ...], start_ns: int, end_ns: int) -> str:
    run = sides[0].run
    if start_ns <= 0 and end_ns >= run.span_ns:
        return f"The whole run {run.name}: {duration(run.span_ns)}."
    unit = scale(max(run.span_ns, 1), figures=5)
    length = duration(end_ns - start_ns)
    return f"{length} of {run.name}: from {unit.number(start_ns)} to {unit(end_ns)} of {duration(run.span_ns)}."


def _side(side: PlacedRun, contents: Mapping[str, Any], start_ns: int, end_ns: int) -> Iterator[Block]:
    run, accounts = side.run, side.ledger
    yield Line(sentence(origin(run)), soft=True)
    yield from estimate_notice(run)
    if accounts is None:
        yield Line("No picture: this run has no events.")
        return
    yield _picture(side, accounts, contents, start_ns, end_ns)
    longest = contents["kernels"][:_MAX_KERNELS]
    if longest:
        rows = tuple((each["name"], f"{duration(each['total_ns'])} in {each['count']:,}") for each in longest)
        yield Section("Longest total time in this window", (Facts(rows),), folded=True)
    if contents.get("note"):
        yield Line(sentence(contents["note"]), soft=True)


def _picture(side: PlacedRun, accounts: Ledger, contents: Mapping[str, Any], start_ns: int, end_ns: int) -> Timeline:
    steps = side.steps
    run_start, run_end = start_ns - side.shift_ns, max(end_ns - side.shift_ns, start_ns - side.shift_ns + 1)
    visible = np.flatnonzero((steps.end_ns > run_start) & (steps.start_ns < run_end) & (steps.end_ns > steps.start_ns))
    window = Window(run_start, run_end, tuple(visible.tolist()))
    picture_lanes = timeline_lanes(side.run, accounts, window)
    starts = [int(steps.start_ns[index]) for index in visible if steps.start_ns[index] >= run_start]
    return Timeline(
        svg=lanes_svg(picture_lanes, window, starts if len(starts) <= _MAX_STEP_LINES else (), no_spans()),
        lane_names=tuple(lane.name for lane in picture_lanes),
        lane_px=LANE_PX,
        steps=_marks(steps, window),
        ticks=axis_ticks(window),
        legend=lane_legend(accounts, picture_lanes, window),
        alt=_alt(contents, steps, window),
        table=_table(contents, end_ns - start_ns),
    )


def _marks(steps: Steps, window: Window) -> tuple[Mark, ...]:
    if not 0 < len(window.steps) <= _MAX_STEP_LABELS or steps.detected_by == "whole run":
        return ()
    span = window.end_ns - window.start_ns
    marks = []
    for index in window.steps:
        start = max(0.0, (int(steps.start_ns[index]) - window.start_ns) / span)
        end = min(1.0, (int(steps.end_ns[index]) - window.start_ns) / span)
        length = duration(int(steps.end_ns[index] - steps.start_ns[index]))
        marks.append(Mark(start, end, f"step {index + 1}: {length}" if end - start > 0.1 else f"{index + 1}"))
    return tuple(marks)


def _alt(contents: Mapping[str, Any], steps: Steps, window: Window) -> str:
    """Return the alternative text of the picture, from the numbers of its ledger."""
    span = max(1, window.end_ns - window.start_ns)
    parts = sorted(((part["ns"] / span, part["label"]) for part in contents["ledger"]), reverse=True)
    largest = ", ".join(f"{label} {percent(frac)}" for frac, label in parts[:3] if frac > 0)
    step_count = f" in {count(len(window.steps), 'step')}" if window.steps and steps.detected_by != "whole run" else ""
    return sentence(f"Timeline of {duration(span)}{step_count}. Largest parts: {largest or 'nothing was recorded'}")


def _table(contents: Mapping[str, Any], span_ns: int) -> TableBlock:
    """Return the ledger of the window."""
    unit = scale(max(span_ns, 1), figures=4)
    large = [part for part in contents["ledger"] if part["ns"] >= _MIN_ROW_FRAC * span_ns]
    rows = [
        Row((part["label"], unit.number(part["ns"]), percent(part["ns"] / span_ns, 1)), part["key"]) for part in large
    ]
    rest = span_ns - sum(part["ns"] for part in large)
    if rest:
        rows.append(Row(("other", unit.number(rest), percent(rest / span_ns, 1)), "rest"))
    rows.append(Row(("total", unit.number(span_ns), percent(1.0, 1)), kind="total"))
    return TableBlock(header=("", unit.unit, "share"), rows=tuple(rows))
