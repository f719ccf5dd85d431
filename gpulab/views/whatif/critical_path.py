"""Pictures of replays: the critical path of a step, and a recorded step above the predicted one on one time scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.ledger import Ledger, Part
from gpulab.intervals import Spans, no_spans, union
from gpulab.replay.critical_path import (
    KIND_LABELS,
    CriticalPath,
    ShorteningGain,
    critical_path,
    shortening_gains,
)
from gpulab.replay.prediction import Prediction
from gpulab.replay.replayed_step import replayed_step, scaled_parts_ns, step_between
from gpulab.replay.sweep import Schedule
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window, host_and_gpu_lanes
from gpulab.views.sheet.palette import NEUTRAL
from gpulab.views.sheet.sheet import Line, Mark, Row, Section, TableBlock, Timeline
from gpulab.views.sheet.step_picture import (
    LANE_LABELS,
    LANE_PX,
    MIN_LEGEND_FRAC,
    WIDTH,
    axis_ticks,
    bars_path,
    covered_fractions,
    lanes_svg,
)
from gpulab.wording import Scale, duration, percent, ratio, scale, sentence

STRIP_PX = 3  # height of the mark above a lane while the critical path runs through it
MIN_ROW_FRAC = 0.005
MIN_TEXT_FRAC = 0.05
WARM_CACHES = "saved in other rows (warm CPU caches)"  # row of the allowance for a CPU that is no longer interrupted


def critical_path_section(timed: Schedule) -> Section:
    """Return the critical path of the typical step as a picture and a table, and the changes that would shorten it."""
    path = critical_path(timed)
    subject = _subject(timed)
    title = f"The critical path of {subject}, without any change"
    if not path.segments:
        return Section(title, (Line("It takes no time, so it has no critical path."),))
    run, step_ledger = step_between(timed, path.segments[0].start_ns, path.segments[-1].end_ns)
    path_levers = shortening_gains(timed, path)
    rows = _kinds(path, timed.graph.ledger)
    intro = (
        f"The longest chain of dependent work in {_one_step(timed)} ({duration(path.step_ns)}); "
        "other work could take longer without delaying the step."
    )
    blocks = [Line(intro), *_best_lever(path_levers, timed)]
    picture: tuple[Timeline, ...] = ()
    if step_ledger is not None:
        blocks.append(Line("In the chart, the line above a row marks the critical path.", soft=True))
        picture = (_picture(path, host_and_gpu_lanes(run, step_ledger, _window(path)), rows, subject),)
    return Section(title, (*blocks, *picture, _levers_table(path, path_levers, timed.graph.ledger)))


def _subject(timed: Schedule) -> str:
    return "a typical step" if timed.graph.steps.detected_by != "whole run" else "the recording"


def _one_step(timed: Schedule) -> str:
    """Return what the path was computed in: a single step, whose length differs a little from the typical one."""
    return "one step of the replay" if timed.graph.steps.detected_by != "whole run" else "the recording"


def _window(path: CriticalPath) -> Window:
    return Window(path.segments[0].start_ns, path.segments[-1].end_ns, (path.step,))


def _picture(
    path: CriticalPath, activity: tuple[Lane, ...], rows: list[tuple[str, str, int]], subject: str
) -> Timeline:
    time_window = _window(path)
    parts = tuple((kind, path.spans(kind)) for kind, _, _ in rows)
    lanes = (Lane("critical path", parts), *activity)
    sides = (path.spans(on_device=False), path.spans(on_device=True))[: len(activity)]
    strips = "".join(_strip(spans, time_window, row) for row, spans in enumerate(sides, start=1))
    unit = scale(path.step_ns, figures=4)
    body = [
        Row((label, unit.number(ns), percent(ns / path.step_ns, 1)), key=kind)
        for kind, label, ns in rows
        if ns >= MIN_ROW_FRAC * path.step_ns
    ]
    rest = sum(ns for _, _, ns in rows if ns < MIN_ROW_FRAC * path.step_ns)
    if rest:
        body.append(Row(("all else", unit.number(rest), percent(rest / path.step_ns, 1)), key="rest"))
    body.append(Row(("total", unit.number(path.step_ns), "100.0 %"), kind="total"))
    return Timeline(
        svg=lanes_svg(lanes, time_window, (time_window.start_ns,), no_spans(), strips),
        lane_names=tuple(lane.name for lane in lanes),
        lane_px=LANE_PX,
        steps=(Mark(0.0, 1.0, f"{subject}: {unit(path.step_ns)}"),),
        ticks=axis_ticks(time_window),
        legend=_legend(lanes, time_window, path.schedule.graph.ledger),
        alt=sentence(
            f"The critical path of {subject}, {duration(path.step_ns)}. Largest parts: "
            f"{_largest((label, ns / max(1, path.step_ns)) for _, label, ns in rows)}"
        ),
        table=TableBlock(header=("", f"{unit.unit} on the path", "share"), rows=tuple(body)),
    )


def _strip(spans: Spans, time_window: Window, row: int) -> str:
    """Draw a line above a lane wherever the spans are."""
    edges = np.linspace(time_window.start_ns, time_window.end_ns, WIDTH + 1).astype(np.int64)
    outline = bars_path(covered_fractions(spans, edges) >= 0.5, STRIP_PX)
    return f'<path fill="{NEUTRAL}" transform="translate(0 {row * LANE_PX})" d="{outline}"/>' if outline else ""


def _kinds(path: CriticalPath, accounts: Ledger) -> list[tuple[str, str, int]]:
    """Return kind, label and ns of each part of the critical path, longest first."""
    labels = _labels(accounts)
    return [(kind, labels.get(kind, kind), ns) for kind, ns in path.by_kind.items()]


def _labels(accounts: Ledger) -> dict[str, str]:
    return {part.key: _label(part) for part in accounts.parts} | dict(KIND_LABELS)


def _label(part: Part) -> str:
    return LANE_LABELS.get(part.key, part.label)


def _largest(shares: Iterable[tuple[str, float]]) -> str:
    ranked = sorted(shares, key=lambda pair: -pair[1])
    return ", ".join(f"{label} {percent(frac)}" for label, frac in ranked[:4] if frac >= MIN_TEXT_FRAC)


def _best_lever(path_levers: tuple[ShorteningGain, ...], timed: Schedule) -> Iterator[Line]:
    """Say which part of the path gives most when it gets 10 % shorter."""
    labels, step_ns = _labels(timed.graph.ledger), max(1.0, timed.host_device_step_ns)
    effective = [lever for lever in path_levers if lever.all_ns >= MIN_TEXT_FRAC * step_ns]
    if not effective:
        limit = percent(MIN_TEXT_FRAC)
        yield Line(
            f"No single part would shorten the step by {limit}, even if removed: other paths are nearly as long."
        )
        return
    unit = scale(max(lever.tenth_ns for lever in effective))
    best = max(effective, key=lambda lever: lever.tenth_ns)
    yield Line(
        f"Largest gain: a 10 % cut in {labels.get(best.kind, best.kind)} saves {unit(best.tenth_ns)} per step "
        f"({percent(best.tenth_ns / step_ns, 1)})."
    )


def _levers_table(path: CriticalPath, path_levers: tuple[ShorteningGain, ...], accounts: Ledger) -> TableBlock:
    labels = _labels(accounts)
    unit = scale(path.step_ns, figures=4)
    rows = [
        Row(
            (
                labels.get(lever.kind, lever.kind),
                unit.number(lever.path_ns),
                percent(lever.path_ns / max(1, path.step_ns), 1),
                unit.number(round(lever.tenth_ns)),
                unit.number(round(lever.all_ns)),
            ),
            key=lever.kind,
        )
        for lever in path_levers
        if max(lever.path_ns, lever.all_ns) >= MIN_ROW_FRAC * path.step_ns
    ]
    return TableBlock(
        header=("", f"on the path, {unit.unit}", "share", "saved by 10 % less", "saved by removal"),
        rows=tuple(rows),
        caption="The savings per step are predicted by replays of the step.",
    )


@dataclass(frozen=True, eq=False)
class _StepLanes:
    """One step of a replay, shifted to start at zero and scaled to the step time that the prediction gives."""

    lanes: tuple[Lane, ...]
    length_ns: int  # including the wait that a limit adds
    part_ns: dict[str, int]  # by part of the ledger; sums to the length
    accounts: Ledger


def before_and_after(prediction: Prediction) -> Timeline:
    """Return the recorded typical step, and the predicted step below it, on one time scale."""
    now = _step_lanes(prediction.model.schedule, prediction.step_ns)
    predicted = _step_lanes(
        prediction.schedule, _length_in_table_ns(prediction), tuple(each.name for each in now.lanes)
    )
    longest = max(now.length_ns, predicted.length_ns, 1)
    time_window = Window(0, longest, (0, 1))
    lanes = tuple(
        Lane(f"{name}: {lane.name}", lane.parts)
        for name, step in (("now", now), ("predicted", predicted))
        for lane in step.lanes
    )
    unit = scale(longest, figures=4)
    subject = _subject(prediction.schedule)
    work = f" for {ratio(prediction.work_factor)} the samples" if prediction.work_factor != 1 else ""
    mark = f"now {unit(now.length_ns)}, predicted {unit(prediction.likely_ns)}{work}"
    return Timeline(
        svg=lanes_svg(lanes, time_window, (0,), no_spans(), _end_marks((now, predicted), longest)),
        lane_names=tuple(lane.name for lane in lanes),
        lane_px=LANE_PX,
        steps=(Mark(0.0, 1.0, mark),),
        ticks=axis_ticks(time_window),
        legend=_legend(lanes, time_window, now.accounts),
        alt=_description(now, predicted, prediction.likely_ns, subject, work),
        table=_side_by_side(now, predicted, prediction.likely_ns, unit),
    )


def _length_in_table_ns(prediction: Prediction) -> int:
    """Return the likely step; on a CPU before the allowance for warm caches, which has a row of its own."""
    if prediction.model.graph.on_gpu:
        return prediction.likely_ns
    return max(prediction.replayed_ns, prediction.likely_ns)


def _step_lanes(timed: Schedule, length_ns: int, names: tuple[str, ...] = ()) -> _StepLanes:
    """Return the most typical step of a replay, shifted to start at zero and scaled to this length."""
    step = replayed_step(timed)
    if step.ledger is None:  # the step takes no time
        return _StepLanes(tuple(Lane(name, ()) for name in names), 0, {}, timed.graph.ledger)
    factor = length_ns / max(1, step.length_ns)
    time_window = Window(step.start_ns, step.end_ns, (step.index,))
    lanes = tuple(
        Lane(
            lane.name,
            tuple(
                (key, _shifted(clip_to_window(spans, time_window), step.start_ns, factor)) for key, spans in lane.parts
            ),
        )
        for lane in host_and_gpu_lanes(step.run, step.ledger, time_window)
    )
    if step.wait_ns:
        at_ns, wait_ns = round((step.end_ns - step.start_ns) * factor), round(step.wait_ns * factor)
        lanes = (Lane(lanes[0].name, _append(lanes[0], step.wait_part, at_ns, wait_ns)), *lanes[1:])
    return _StepLanes(lanes, length_ns, dict(scaled_parts_ns(step, length_ns)), step.ledger)


def _shifted(spans: Spans, start_ns: int, factor: float) -> Spans:
    start, end = ((edge - start_ns) * factor for edge in (spans.start_ns, spans.end_ns))
    return Spans(np.rint(start).astype(np.int64), np.rint(end).astype(np.int64))


def _append(lane: Lane, key: str, at_ns: int, wait_ns: int) -> tuple[tuple[str, Spans], ...]:
    """Return the parts of a lane with a wait of one kind appended."""
    wait = union([at_ns], [at_ns + wait_ns])
    parts = dict(lane.parts)
    before = parts.get(key, no_spans())
    parts[key] = union(np.append(before.start_ns, wait.start_ns), np.append(before.end_ns, wait.end_ns))
    return tuple(parts.items())


def _end_marks(steps: tuple[_StepLanes, ...], longest_ns: int) -> str:
    """Mark the end of each step across its lanes, and draw a line between the steps."""
    paths, top = [], 0
    for number, step in enumerate(steps):
        bottom = top + LANE_PX * len(step.lanes)
        x = min(WIDTH - 2.0, WIDTH * step.length_ns / longest_ns)
        paths.append(f'<path fill="{NEUTRAL}" d="M{x:.1f} {top}h2V{bottom}h-2z"/>')
        if number:
            paths.append(f'<path fill="{NEUTRAL}" d="M0 {top}H{WIDTH}v1H0z"/>')
        top = bottom
    return "".join(paths)


def _legend(lanes: tuple[Lane, ...], time_window: Window, accounts: Ledger) -> tuple[tuple[str, str], ...]:
    min_ns = MIN_LEGEND_FRAC * (time_window.end_ns - time_window.start_ns)
    visible = {
        key for lane in lanes for key, spans in lane.parts if clip_to_window(spans, time_window).total_ns >= min_ns
    }
    return tuple((key, label) for key, label in _labels(accounts).items() if key in visible)


def _description(now: _StepLanes, predicted: _StepLanes, likely_ns: int, subject: str, work: str) -> str:
    return " ".join(
        sentence(text)
        for text in (
            f"{subject} takes {duration(now.length_ns)} now: {_shares(now)}",
            _predicted_step(likely_ns, predicted, work),
        )
    )


def _predicted_step(likely_ns: int, predicted: _StepLanes, work: str) -> str:
    """Return the predicted step with the shares of its parts, if these are all; otherwise the table shows the rest."""
    likely, saved_ns = f"Predicted{work}: {duration(likely_ns)}", predicted.length_ns - likely_ns
    return f"{likely}: {_shares(predicted)}" if abs(saved_ns) < MIN_ROW_FRAC * predicted.length_ns else likely


def _shares(step: _StepLanes) -> str:
    labels = {part.key: part.label for part in step.accounts.parts}
    return _largest((labels.get(key, key), ns / max(1, step.length_ns)) for key, ns in step.part_ns.items())


def _side_by_side(now: _StepLanes, predicted: _StepLanes, likely_ns: int, unit: Scale) -> TableBlock:
    """Return a table of both steps: each part of at least MIN_ROW_FRAC in one of them."""
    min_ns = MIN_ROW_FRAC * max(now.length_ns, predicted.length_ns)
    labels = {part.key: part.label for step in (now, predicted) for part in step.accounts.parts}
    rows, totals = [], [now.length_ns, likely_ns]
    caches = [0, likely_ns - predicted.length_ns]
    rest = [total - ns for total, ns in zip(totals, caches, strict=True)]
    for key, label in labels.items():
        pair = [step.part_ns.get(key, 0) for step in (now, predicted)]
        if max(pair) >= min_ns:
            rows.append(_part_row(label, pair, unit, key))
            rest = [left - ns for left, ns in zip(rest, pair, strict=True)]
    if any(unit.number(ns).strip("-0.") for ns in rest):
        rows.append(_part_row("all else", rest, unit, "rest"))
    if unit.number(caches[1]).strip("-0."):
        rows.append(_part_row(WARM_CACHES, caches, unit, "rest"))
    rows.append(Row(("total", *map(unit.number, totals), unit.signed_number(totals[1] - totals[0])), kind="total"))
    return TableBlock(header=(unit.unit, "now", "predicted", "change"), rows=tuple(rows))


def _part_row(label: str, pair: list[int], unit: Scale, key: str) -> Row:
    return Row((label, *map(unit.number, pair), unit.signed_number(pair[1] - pair[0])), key=key)
