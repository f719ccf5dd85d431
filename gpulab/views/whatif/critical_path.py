"""Replays as pictures: the critical path of a step, and a step as it is above the predicted one, on one scale."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from gpulab.analysis.steps.detection import Steps
from gpulab.analysis.steps.ledger import Ledger, Part, ledger
from gpulab.intervals import Spans, nothing, union
from gpulab.replay.critical_path import BETWEEN, CriticalPath, Lever, critical_path, extent, levers
from gpulab.replay.predicted_run import emitted
from gpulab.replay.prediction import Prediction
from gpulab.replay.sweep import Timed
from gpulab.run import Run
from gpulab.views.sheet.lanes import Lane, Window, host_and_device, shading
from gpulab.views.sheet.palette import NEUTRAL
from gpulab.views.sheet.sheet import Line, Mark, Row, Section, Table, Timeline
from gpulab.views.sheet.step_picture import LANE_PX, LEGEND, WIDTH, WORTH_A_KEY_FRAC, bars, filled, svg, ticks
from gpulab.wording import Scale, duration, percent, ratio, scale, sentence

STRIP_PX = 3  # marks, above a lane, where the path is in it
WORTH_A_ROW_FRAC = 0.005
WORTH_SAYING_FRAC = 0.05
HELD_BY = {"the copies to the GPU": "copies"}  # what a limit keeps a step waiting with; loading, unless named here


def path_block(timed: Timed) -> Section:
    """The critical path of the typical step: as a picture, as a table, and what would shorten it."""
    path = critical_path(timed)
    what = _what(timed)
    title = f"The critical path of {what}"
    if not path.segments:
        return Section(title, (Line("It takes no time, so nothing decides how long it is."),))
    run, accounts = _one_step(timed, path.segments[0].start_ns, path.segments[-1].end_ns)
    told = levers(timed, path)
    rows = _kinds(path, timed.graph.ledger)
    intro = f"What {what} of {duration(path.step_ns)} had to wait for, moment by moment; all else had time to spare."
    blocks = [Line(intro), *_answer(told, timed)]
    if accounts is not None:
        blocks.append(Line("Above each lane a line shows where the path is in it.", soft=True))
    picture = () if accounts is None else (_picture(path, host_and_device(run, accounts, _window(path)), rows, what),)
    return Section(title, (*blocks, *picture, _levers_table(path, told, timed.graph.ledger)))


def _one_step(timed: Timed, start_ns: int, end_ns: int) -> tuple[Run, Ledger | None]:
    """The run around a step, and where the time of that step went; None where it takes no time."""
    run = emitted(timed, (start_ns, end_ns))
    yes = np.ones(1, bool)
    step = Steps(np.array([start_ns]), np.array([end_ns]), yes, yes, ~yes, timed.graph.steps.found_by)
    return run, ledger(run, step)


def _what(timed: Timed) -> str:
    return "a typical step" if timed.graph.steps.found_by != "whole run" else "the recording"


def _window(path: CriticalPath) -> Window:
    return Window(path.segments[0].start_ns, path.segments[-1].end_ns, (path.step,))


def _picture(path: CriticalPath, beside: tuple[Lane, ...], rows: list[tuple[str, str, int]], what: str) -> Timeline:
    shown = _window(path)
    parts = tuple((kind, path.spans(kind)) for kind, _, _ in rows)
    drawn = (Lane("decides", parts), *beside)
    sides = (path.spans(on_device=False), path.spans(on_device=True))[: len(beside)]
    above = "".join(_strip(spans, shown, row) for row, spans in enumerate(sides, start=1))
    unit = scale(path.step_ns, figures=4)
    body = [
        Row((label, unit.number(ns), percent(ns / path.step_ns, 1)), key=kind)
        for kind, label, ns in rows
        if ns >= WORTH_A_ROW_FRAC * path.step_ns
    ]
    rest = sum(ns for _, _, ns in rows if ns < WORTH_A_ROW_FRAC * path.step_ns)
    if rest:
        body.append(Row(("all else", unit.number(rest), percent(rest / path.step_ns, 1)), key="rest"))
    body.append(Row(("in all", unit.number(path.step_ns), "100.0 %"), kind="total"))
    return Timeline(
        svg=svg(drawn, shown, (shown.start_ns,), nothing(), above),
        lane_names=tuple(lane.name for lane in drawn),
        lane_px=LANE_PX,
        steps=(Mark(0.0, 1.0, f"{what}: {unit(path.step_ns)}"),),
        ticks=ticks(shown),
        legend=_keys(drawn, shown, path.timed.graph.ledger),
        alt=sentence(
            f"The critical path of {what}, {duration(path.step_ns)}. What decides how long it is: "
            f"{_most((label, ns / max(1, path.step_ns)) for _, label, ns in rows)}"
        ),
        table=Table(header=(unit.unit, "decides", "share"), rows=tuple(body)),
    )


def _strip(spans: Spans, shown: Window, row: int) -> str:
    """A line above a lane, where some spans are."""
    edges = np.linspace(shown.start_ns, shown.end_ns, WIDTH + 1).astype(np.int64)
    drawn = bars(filled(spans, edges) >= 0.5, STRIP_PX)
    return f'<path fill="{NEUTRAL}" transform="translate(0 {row * LANE_PX})" d="{drawn}"/>' if drawn else ""


def _kinds(path: CriticalPath, accounts: Ledger) -> list[tuple[str, str, int]]:
    """Kind, name and ns of all that decides, most first."""
    labels = _labels(accounts)
    return [(kind, labels.get(kind, kind), ns) for kind, ns in path.by_kind.items()]


def _labels(accounts: Ledger) -> dict[str, str]:
    return {part.key: _label(part) for part in accounts.parts} | dict(BETWEEN)


def _label(part: Part) -> str:
    return LEGEND.get(part.key, part.label)


def _most(named: Iterable[tuple[str, float]]) -> str:
    ranked = sorted(named, key=lambda each: -each[1])
    return ", ".join(f"{label} {percent(frac)}" for label, frac in ranked[:4] if frac >= WORTH_SAYING_FRAC)


def _answer(told: tuple[Lever, ...], timed: Timed) -> Iterator[Line]:
    """What would shorten it, in a sentence."""
    labels, step_ns = _labels(timed.graph.ledger), max(1.0, timed.own_ns)
    felt = [lever for lever in told if lever.all_ns >= WORTH_SAYING_FRAC * step_ns]
    if not felt:
        yield Line("Nothing alone would shorten it by a twentieth: several things take turns in deciding it.")
        return
    unit = scale(max(lever.tenth_ns for lever in felt))
    best = max(felt, key=lambda lever: lever.tenth_ns)
    yield Line(
        f"A tenth less of {labels.get(best.kind, best.kind)} gives most: {unit(best.tenth_ns)} "
        f"({percent(best.tenth_ns / step_ns, 1)})."
    )


def _levers_table(path: CriticalPath, told: tuple[Lever, ...], accounts: Ledger) -> Table:
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
        for lever in told
        if max(lever.path_ns, lever.all_ns) >= WORTH_A_ROW_FRAC * path.step_ns
    ]
    return Table(
        header=("", f"decides, {unit.unit}", "share", "a tenth less gives", "none of it gives"),
        rows=tuple(rows),
        caption="What would shorten it, each replayed. Where it gives less than the path holds of it, another path "
        "takes over; where more, there is more of it beside the path.",
    )


@dataclass(frozen=True, eq=False)
class _Drawn:
    """One step of a replay, ready to be drawn from zero on."""

    lanes: tuple[Lane, ...]
    length_ns: int  # with what a limit adds to it
    part_ns: dict[str, int]  # by part of the ledger; sums to the length
    accounts: Ledger


def before_after(told: Prediction) -> Timeline:
    """The typical step as it is, and under it the predicted one, on one scale of time."""
    now = _drawn(told.scene.timed)
    then = _drawn(told.timed, tuple(lane.name for lane in now.lanes))
    longest = max(now.length_ns, then.length_ns, 1)
    shown = Window(0, longest, (0, 1))
    drawn = tuple(
        Lane(f"{name}: {lane.name}", lane.parts) for name, each in (("now", now), ("then", then)) for lane in each.lanes
    )
    unit = scale(longest, figures=4)
    what = _what(told.timed)
    work = f" for {ratio(told.work)} the samples" if told.work != 1 else ""
    return Timeline(
        svg=svg(drawn, shown, (0,), nothing(), _ends((now, then), longest)),
        lane_names=tuple(lane.name for lane in drawn),
        lane_px=LANE_PX,
        steps=(Mark(0.0, 1.0, f"now {unit(now.length_ns)}, then {unit(then.length_ns)}{work}, as predicted"),),
        ticks=ticks(shown),
        legend=_keys(drawn, shown, now.accounts),
        alt=_words(now, then, what, work),
        table=_side_by_side(now, then, unit),
    )


def _drawn(timed: Timed, names: tuple[str, ...] = ()) -> _Drawn:
    """The most typical step of a replay, moved to begin at zero."""
    one = extent(timed)
    start, end = round(one.begin_ns), round(one.end_ns)
    run, accounts = _one_step(timed, start, end)
    if accounts is None:  # the step takes no time
        return _Drawn(tuple(Lane(name, ()) for name in names), 0, {}, timed.graph.ledger)
    shown = Window(start, end, (one.step,))
    part_ns = {part.key: int(accounts.part_ns[part.key][0]) for part in accounts.parts}
    lanes = tuple(
        Lane(lane.name, tuple((key, _moved(shading(spans, shown), start)) for key, spans in lane.parts))
        for lane in host_and_device(run, accounts, shown)
    )
    held = round(max(0.0, timed.step_ns - timed.own_ns))
    if held:
        limits = timed.graph.limits_ns
        key = HELD_BY.get(max(limits, key=lambda name: limits[name]), "loader")
        lanes = (Lane(lanes[0].name, _with(lanes[0], key, end - start, held)), *lanes[1:])
        part_ns[key] = part_ns.get(key, 0) + held
    return _Drawn(lanes, end - start + held, part_ns, accounts)


def _moved(spans: Spans, by_ns: int) -> Spans:
    return Spans(spans.start_ns - by_ns, spans.end_ns - by_ns)


def _with(lane: Lane, key: str, at_ns: int, held_ns: int) -> tuple[tuple[str, Spans], ...]:
    """The parts of a lane, and after its end one part more."""
    more = union([at_ns], [at_ns + held_ns])
    mine = dict(lane.parts)
    before = mine.get(key, nothing())
    mine[key] = union(np.append(before.start_ns, more.start_ns), np.append(before.end_ns, more.end_ns))
    return tuple(mine.items())


def _ends(each: tuple[_Drawn, ...], longest_ns: int) -> str:
    """Where each step ends, across its own lanes, and a line between the two."""
    pieces, top = [], 0
    for number, one in enumerate(each):
        bottom = top + LANE_PX * len(one.lanes)
        at = min(WIDTH - 2.0, WIDTH * one.length_ns / longest_ns)
        pieces.append(f'<path fill="{NEUTRAL}" d="M{at:.1f} {top}h2V{bottom}h-2z"/>')
        if number:
            pieces.append(f'<path fill="{NEUTRAL}" d="M0 {top}H{WIDTH}v1H0z"/>')
        top = bottom
    return "".join(pieces)


def _keys(drawn: tuple[Lane, ...], shown: Window, accounts: Ledger) -> tuple[tuple[str, str], ...]:
    least_ns = WORTH_A_KEY_FRAC * (shown.end_ns - shown.start_ns)
    seen = {key for lane in drawn for key, spans in lane.parts if shading(spans, shown).total_ns >= least_ns}
    return tuple((key, label) for key, label in _labels(accounts).items() if key in seen)


def _words(now: _Drawn, then: _Drawn, what: str, work: str) -> str:
    return " ".join(
        sentence(text)
        for text in (
            f"{what} as it is takes {duration(now.length_ns)}: {_shares(now)}",
            f"predicted{work}: {duration(then.length_ns)}: {_shares(then)}",
        )
    )


def _shares(one: _Drawn) -> str:
    labels = {part.key: part.label for part in one.accounts.parts}
    return _most((labels.get(key, key), ns / max(1, one.length_ns)) for key, ns in one.part_ns.items())


def _side_by_side(now: _Drawn, then: _Drawn, unit: Scale) -> Table:
    """The two steps as numbers: each part that matters in one of them."""
    least_ns = WORTH_A_ROW_FRAC * max(now.length_ns, then.length_ns)
    labels = {part.key: part.label for each in (now, then) for part in each.accounts.parts}
    rows, rest = [], [now.length_ns, then.length_ns]
    for key, label in labels.items():
        pair = [each.part_ns.get(key, 0) for each in (now, then)]
        if max(pair) >= least_ns:
            rows.append(Row((label, *map(unit.number, pair), _change(pair, unit)), key=key))
            rest = [left - ns for left, ns in zip(rest, pair, strict=True)]
    if any(rest):
        rows.append(Row(("all else", *map(unit.number, rest), _change(rest, unit)), key="rest"))
    whole = [now.length_ns, then.length_ns]
    rows.append(Row(("in all", *map(unit.number, whole), _change(whole, unit)), kind="total"))
    return Table(header=(unit.unit, "now", "predicted", "change"), rows=tuple(rows))


def _change(pair: list[int], unit: Scale) -> str:
    change = pair[1] - pair[0]
    return f"+{unit.number(change)}" if change > 0 else unit.number(change)
