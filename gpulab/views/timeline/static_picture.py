"""The still form of a timeline: a window of it as a picture and in words, for wherever nothing moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import nothing
from gpulab.views.report.provenance import origin
from gpulab.views.report.virtual_notice import watermark
from gpulab.views.sheet.lanes import Window, lanes
from gpulab.views.sheet.sheet import Block, Facts, Line, Mark, Row, Section, Sheet, Table, Timeline
from gpulab.views.sheet.step_picture import LANE_PX, legend, svg, ticks
from gpulab.views.timeline.scene.placed_run import Side
from gpulab.wording import count, duration, percent, scale, sentence

MOST_STEPS = 60  # more are not marked: their lines would be the picture
MOST_LABELS = 10
WORTH_SAYING_FRAC = 0.005
MOST_KERNELS = 5


def still(sides: tuple[Side, ...], brushed: Mapping[str, Any], notes: tuple[str, ...] = ()) -> Sheet:
    """The window that was brushed, of each run: a picture, the same in words, and the kernels that took longest."""
    start_ns, end_ns = int(brushed["start_ns"]), int(brushed["end_ns"])
    names = " and ".join(side.name for side in sides)
    blocks: list[Block] = [Line(_headline(sides, start_ns, end_ns))]
    for side, told in zip(sides, brushed["sides"], strict=True):
        shown = tuple(_side(side, told, start_ns, end_ns))
        blocks += [Section(side.name, shown)] if len(sides) > 1 else shown
    blocks += [Line(sentence(note), soft=True) for note in notes]
    return Sheet(f"gpulab timeline of {names}", tuple(blocks))


def _headline(sides: tuple[Side, ...], start_ns: int, end_ns: int) -> str:
    run = sides[0].run
    if start_ns <= 0 and end_ns >= run.span_ns:
        return f"All of {run.name}, {duration(run.span_ns)}."
    unit = scale(max(run.span_ns, 1), figures=5)
    length = duration(end_ns - start_ns)
    return f"{length} of {run.name}: from {unit.number(start_ns)} to {unit(end_ns)} of {duration(run.span_ns)}."


def _side(side: Side, told: Mapping[str, Any], start_ns: int, end_ns: int) -> Iterator[Block]:
    run, accounts = side.run, side.accounts
    yield Line(sentence(origin(run)), soft=True)
    yield from watermark(run)
    if accounts is None:
        yield Line("There is no picture: no step of this run was recorded with events.")
        return
    yield _picture(side, accounts, told, start_ns, end_ns)
    longest = told["kernels"][:MOST_KERNELS]
    if longest:
        rows = tuple((each["name"], f"{duration(each['total_ns'])} in {each['count']:,}") for each in longest)
        yield Section("What took longest in it", (Facts(rows),), folded=True)
    if told.get("note"):
        yield Line(sentence(told["note"]), soft=True)


def _picture(side: Side, accounts: Ledger, told: Mapping[str, Any], start_ns: int, end_ns: int) -> Timeline:
    steps = side.steps
    own_start, own_end = start_ns - side.shift_ns, max(end_ns - side.shift_ns, start_ns - side.shift_ns + 1)
    inside = np.flatnonzero((steps.end_ns > own_start) & (steps.start_ns < own_end) & (steps.end_ns > steps.start_ns))
    shown = Window(own_start, own_end, tuple(inside.tolist()))
    drawn = lanes(side.run, accounts, shown)
    starts = [int(steps.start_ns[each]) for each in inside if steps.start_ns[each] >= own_start]
    return Timeline(
        svg=svg(drawn, shown, starts if len(starts) <= MOST_STEPS else (), nothing()),
        lane_names=tuple(lane.name for lane in drawn),
        lane_px=LANE_PX,
        steps=_marks(steps, shown),
        ticks=ticks(shown),
        legend=legend(accounts, drawn, shown),
        alt=_alt(told, steps, shown),
        table=_table(told, end_ns - start_ns),
    )


def _marks(steps: Steps, shown: Window) -> tuple[Mark, ...]:
    if not 0 < len(shown.steps) <= MOST_LABELS or steps.found_by == "whole run":
        return ()
    span = shown.end_ns - shown.start_ns
    marks = []
    for each in shown.steps:
        at = max(0.0, (int(steps.start_ns[each]) - shown.start_ns) / span)
        until = min(1.0, (int(steps.end_ns[each]) - shown.start_ns) / span)
        length = duration(int(steps.end_ns[each] - steps.start_ns[each]))
        marks.append(Mark(at, until, f"step {each + 1}: {length}" if until - at > 0.1 else f"{each + 1}"))
    return tuple(marks)


def _alt(told: Mapping[str, Any], steps: Steps, shown: Window) -> str:
    """The picture in a sentence, from the numbers of its ledger."""
    span = max(1, shown.end_ns - shown.start_ns)
    parts = sorted(((part["ns"] / span, part["label"]) for part in told["ledger"]), reverse=True)
    most = ", ".join(f"{label} {percent(frac)}" for frac, label in parts[:3] if frac > 0)
    which = f" in {count(len(shown.steps), 'step')}" if shown.steps and steps.found_by != "whole run" else ""
    return sentence(f"Timeline of {duration(span)}{which}. Most time goes to: {most or 'nothing that was recorded'}")


def _table(told: Mapping[str, Any], span_ns: int) -> Table:
    """The ledger of the window."""
    unit = scale(max(span_ns, 1), figures=4)
    large = [part for part in told["ledger"] if part["ns"] >= WORTH_SAYING_FRAC * span_ns]
    rows = [
        Row((part["label"], unit.number(part["ns"]), percent(part["ns"] / span_ns, 1)), part["key"]) for part in large
    ]
    rest = span_ns - sum(part["ns"] for part in large)
    if rest:
        rows.append(Row(("all else", unit.number(rest), percent(rest / span_ns, 1)), "rest"))
    rows.append(Row(("in all", unit.number(span_ns), percent(1.0, 1)), kind="total"))
    return Table(header=("", unit.unit, "share"), rows=tuple(rows))
