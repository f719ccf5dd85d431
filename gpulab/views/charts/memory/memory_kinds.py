"""What memory is for at the moment when most is given out; and, where it ran out, who holds it."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from gpulab.analysis.memory.holders import Held, held
from gpulab.analysis.memory.lifetimes import BEFORE, KEPT, LEFT, MADE, PASSING, Peak, at_peak
from gpulab.analysis.steps.detection import steps
from gpulab.run import Failure, Run
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.steps_and_ledger import LOOPLESS, bar_rows, beside, in_bytes
from gpulab.views.charts.drawing.style import PAPER, Dress
from gpulab.views.charts.memory.memory_over_time import HOST, WHERE, device_of
from gpulab.views.report.memory_holders import KINDS as HOLDERS
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import percent, size

SUBJECT = "Memory by category"
PARAMETERS, STATE = "parameters and buffers", "optimizer state and else, from before"
FREE, UNUSED, OTHERS = "free", "kept by PyTorch, not in use", "other processes"
_PHASES = ("forward", "backward", "the optimizer")
# Of each category: its colour (one of the ledger's) and a hatch.
_LOOKS = {
    PARAMETERS: ("matmul", ""),
    BEFORE: ("communication", "////"),
    STATE: ("communication", "////"),
    KEPT: ("copies", ""),
    LEFT: ("kernels", "...."),
    MADE: ("python", "xxxx"),
    PASSING: ("dispatch", "\\\\\\\\"),
    "parameters": ("matmul", ""),
    "gradients": ("kernels", "...."),
    "optimizer state": ("communication", "////"),
    "variables": ("copies", ""),
    "values of earlier cells": ("sync", "xxxx"),
    "errors of earlier cells": ("loader", "----"),
    "kept for backward()": ("python", "||||"),
}
_PLURALS = {
    "variable": "variables",
    "value of an earlier cell": "values of earlier cells",
    "error of an earlier cell": "errors of earlier cells",
    "": "other tensors",
}
Line = tuple[str, int]


def memory_kinds(run: Run) -> Chart:
    """Memory by category: of a run that ran out of it, who held it; else what it was for when most was given out.

    From gpulab.analysis.memory.holders where memory ran out. Else each piece is told by its life, from the memory
    events: asked for in forward and given back in backward is an activation, whatever the model. It cannot tell
    optimizer state from gradients where both were there before the recording.
    """
    if run.failure is not None and len(run.holder_rows):
        return _ran_out(run, run.failure)
    device = device_of(run)
    found = steps(run)
    peak = at_peak(run, found, device)
    if peak is None:
        fix = "record with %%gpuprofile --level deep, or on gpulab.virtual_gpu"
        return nothing_to_draw(run, SUBJECT, "memory was not recorded piece by piece in complete steps", fix)
    lines = _lines(run, peak, device)
    when = f"in {_PHASES[peak.phase]}" + ("" if found.found_by == LOOPLESS else f" of step {peak.step + 1}")
    first = max(lines, key=lambda line: line[1])
    return chart(
        f"{size(peak.total_bytes)} given out at most, {when}; the largest part: {first[0]} "
        f"({percent(first[1] / peak.total_bytes)})",
        lambda axes: _draw(axes, lines, peak.total_bytes, WHERE[device == HOST]),
        source=run,
        alt=f"A bar for each category of the memory given out {when}: {_told(lines, peak.total_bytes)}",
        table=_table(lines, peak.total_bytes, "given out"),
        height_in=1.5 + 0.32 * (len(lines) + 1),
    )


def _lines(run: Run, peak: Peak, device: int) -> list[Line]:
    """The categories; of what was there before, the parameters by their own size, where they must be part of it."""
    lines = list(peak.by_kind.items())
    mine = [model.bytes or 0 for model in run.models if (model.device == "cpu") is (device == HOST)]
    parameters, before = sum(mine), peak.by_kind.get(BEFORE, 0)
    # Host memory is counted from when the profiler began: what the model had by then is not in it.
    if device == HOST or not 0 < parameters <= before:
        return lines
    split = [(PARAMETERS, parameters)] + ([(STATE, before - parameters)] if before > parameters else [])
    return [*split, *((name, count) for name, count in lines if name != BEFORE)]


def _ran_out(run: Run, failure: Failure) -> Chart:
    found = held(run)
    lines = _held_lines(found, failure)
    whole = failure.capacity_bytes or sum(count for _, count in lines)
    tensors = [line for line in lines if line[0] not in (FREE, UNUSED, OTHERS)] or lines
    first = max(tensors, key=lambda line: line[1])
    where = "Host memory" if failure.device is None else f"The {size(whole)} of GPU {failure.device}"
    return chart(
        f"{where} ran out; most of it: {first[0]}, {size(first[1])} ({percent(first[1] / whole)})",
        lambda axes: _draw(axes, lines, whole, "where memory ran out"),
        source=run,
        alt=f"A bar for each category of what held memory when it ran out: {_told(lines, whole)}",
        table=_table(lines, whole, "held"),
        height_in=1.5 + 0.32 * (len(lines) + 1),
    )


def _held_lines(found: Held, failure: Failure) -> list[Line]:
    by: dict[str, int] = {}
    for each in found.holdings:
        name = HOLDERS.get(each.kind, each.kind)
        by[_PLURALS.get(name, name)] = by.get(_PLURALS.get(name, name), 0) + each.bytes
    by |= {UNUSED: found.unused_bytes or 0, OTHERS: failure.others_bytes or 0, FREE: failure.free_bytes or 0}
    return sorted(((name, count) for name, count in by.items() if count > 0), key=lambda line: -line[1])


def _draw(axes: Axes, lines: Sequence[Line], whole: int, what: str) -> None:
    at = 0.0
    last = len(lines)
    for place, (name, count) in enumerate(lines):
        key, hatch = _LOOKS.get(name, ("", ""))
        look: Dress = {"facecolor": colour(key) if key else NEUTRAL, "edgecolor": PAPER, "hatch": hatch}
        if name == FREE:
            look = {"facecolor": "none", "edgecolor": NEUTRAL}
        for line in (place, last):
            axes.barh(line, count, left=at, height=0.68, linewidth=1 if name == FREE else 0, **look)
        at += count
        beside(axes, at, place, f"{size(count)}  {percent(count / whole)}")
    beside(axes, at, last, size(at), fontweight="bold")
    bar_rows(axes, [*(name for name, _ in lines), "together"], at * 1.25)
    axes.set_xlabel(f"{in_bytes(axes.xaxis, at)} ({what})")


def _told(lines: Sequence[Line], whole: int) -> str:
    return ", ".join(f"{name} {size(count)} ({percent(count / whole)})" for name, count in lines)


def _table(lines: Sequence[Line], whole: int, column: str) -> Table:
    rows = [
        Row((name, size(count), percent(count / whole, 1)), key=_LOOKS.get(name, ("rest", ""))[0])
        for name, count in lines
    ]
    together = sum(count for _, count in lines)
    rows.append(Row(("together", size(together), percent(together / whole, 1)), kind="total"))
    return Table(header=("", column, "share"), rows=tuple(rows))
