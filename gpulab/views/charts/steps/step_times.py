"""How long each step took, which ones stand out, and what explains them where something does."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from gpulab.analysis.host.gc_and_compilation import stalled
from gpulab.analysis.steps.detection import WARM_UP, Mask, Steps, steps, typical_ns
from gpulab.analysis.steps.pauses import Passes, Pauses, passes, pauses
from gpulab.intervals import Ints, covered_ns, union
from gpulab.run import Run
from gpulab.tables import MarkKind, StallKind
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.steps_and_ledger import LOOPLESS, in_unit
from gpulab.views.charts.drawing.style import INK, PAPER, SOFT, Dress
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import Scale, clean, count, percent, ratio, scale, shorten

WHAT = "Step times"
FAR = 2.0  # this many times the median is an outlier
HALF = 0.5  # of what a step takes beyond the median: what covers so much of it explains it
MOST_MARKS, MOST_OUT, MOST_ROWS = 2000, 400, 39
LOG_FROM = 20.0  # the longest over the median
UNEXPLAINED = "unexplained"
# Of each explanation: the colour and the mark of its steps; one of the ledger's where there is one.
_MARKS = {
    "warm-up": ("launch", "s"),
    "garbage collection": ("alloc", "v"),
    "compilation": ("glue", "D"),
    "beginning of a pass": ("sync", ">"),
    "waiting for a batch": ("loader", "^"),
    "pause": ("python", "P"),
    UNEXPLAINED: ("", "X"),
}


@dataclass(frozen=True)
class _Outliers:
    """Steps that take more than FAR times the median, and why."""

    index: Ints
    why: tuple[str, ...]  # one each, a key of _MARKS
    pause: str  # what the pauses are, where samples tell


def step_times(run: Run) -> Chart:
    """How long each step took, over the run; those of more than twice the median are marked with their reason.

    From gpulab.analysis.steps.detection, pauses and stalls, and the marks. A reason is named where it covers at least
    half of what the step takes beyond the median. It cannot show why a step is long that nothing recorded covers:
    those are "unexplained".
    """
    found = steps(run)
    if found.found_by == LOOPLESS or len(found) < 2:
        fix = "record a loop of at least six steps, or call gpulab.step() once in each"
        return nothing_to_draw(run, WHAT, "no steps were found in this run", fix)
    dur = found.dur_ns
    middle = typical_ns(dur, found.burst)
    out = _outliers(run, found, middle)
    unit = scale(float(middle), figures=3)

    def draw(axes: Axes) -> None:
        _marks(axes, found, out)
        _dressed(axes, found, middle, unit)

    return chart(
        _answer(found, out, middle, unit),
        draw,
        source=run,
        alt=_alt(found, out, middle, unit),
        table=_table(found, out, middle, unit),
        height_in=3.3,
    )


# What is an outlier, and why.


def _outliers(run: Run, found: Steps, middle: int) -> _Outliers:
    dur = found.dur_ns
    index = np.flatnonzero(dur > FAR * middle)
    start, end = found.start_ns[index], found.end_ns[index]
    beyond = np.maximum(dur[index] - middle, 1)
    paused, begun = pauses(run, found), passes(run, found)
    causes = (
        ("garbage collection", covered_ns(stalled(run, StallKind.GC), start, end)),
        ("compilation", covered_ns(stalled(run, StallKind.COMPILE), start, end)),
        ("beginning of a pass", _passes_ns(begun, start, end)),
        ("waiting for a batch", _waited_ns(run, start, end) - _usual_wait_ns(run, found)),
        ("pause", _paused_ns(paused if _doing(paused) else None, start, end)),  # else it says no more than "long"
    )
    why = np.full(len(index), UNEXPLAINED, object)
    for name, ns in reversed(causes):
        why[ns >= HALF * beyond] = name
    early = (index < WARM_UP) & (why == UNEXPLAINED)
    why[early] = "warm-up"
    return _Outliers(index, tuple(why.tolist()), _doing(paused))


def _passes_ns(begun: Passes | None, start: Ints, end: Ints) -> Ints:
    return covered_ns(begun.spans, start, end) if begun else np.zeros(len(start), np.int64)


def _paused_ns(paused: Pauses | None, start: Ints, end: Ints) -> Ints:
    return covered_ns(paused.spans, start, end) if paused else np.zeros(len(start), np.int64)


def _waited_ns(run: Run, start: Ints, end: Ints) -> Ints:
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    return covered_ns(union(calls["start_ns"], calls["end_ns"]), start, end)


def _usual_wait_ns(run: Run, found: Steps) -> int:
    return int(np.median(_waited_ns(run, found.start_ns, found.end_ns)))


def _doing(paused: Pauses | None) -> str:
    """What most samples of the pauses found: the call into a library, else the user's line."""
    return clean(shorten(paused.called or paused.frame or "", 40)) if paused else ""


# How it is drawn.


def _marks(axes: Axes, found: Steps, out: _Outliers) -> None:
    dur, number = found.dur_ns.astype(np.float64), np.arange(1, len(found) + 1)
    usual = np.ones(len(found), bool)
    usual[out.index] = False
    if usual.sum() > MOST_MARKS:
        _band(axes, number[usual], dur[usual])
    else:
        recorded: Mask = found.recorded
        plain: Dress = {"linestyle": "none", "markersize": 4.5, "rasterized": True}
        several = recorded.any() and not recorded.all()
        for mask, face, name in ((recorded, colour("matmul"), "recorded"), (~recorded, PAPER, "not recorded")):
            if (mask & usual).any():
                label = f"{name} with events" if several else None
                edge: Dress = {"markerfacecolor": face, "markeredgecolor": colour("matmul"), "label": label}
                axes.plot(number[mask & usual], dur[mask & usual], marker="o", **plain, **edge)
    why = np.array(out.why, object)
    for name, (key, marker) in _MARKS.items():
        mine = out.index[why == name]
        if not len(mine):
            continue
        shown = mine if len(mine) <= MOST_OUT else mine[np.argsort(-dur[mine])[:MOST_OUT]]
        label = f"{out.pause or name} ({len(mine)})" if name == "pause" else f"{name} ({len(mine)})"
        seen: Dress = {"markerfacecolor": colour(key), "markeredgecolor": INK, "markeredgewidth": 0.6, "label": label}
        axes.plot(number[shown], dur[shown], marker=marker, markersize=7, linestyle="none", rasterized=True, **seen)


def _band(axes: Axes, number: Ints, dur: NDArray[np.float64]) -> None:
    """Of very many steps the median of each stretch, and between what they lie."""
    parts = np.array_split(np.arange(len(number)), 400)
    at = [float(number[part].mean()) for part in parts]
    low, middle, high = (
        [float(value) for value in values]
        for values in zip(*(np.percentile(dur[part], (0, 50, 100)) for part in parts), strict=True)
    )
    axes.fill_between(at, low, high, color=colour("kernels"), alpha=0.45, linewidth=0, label="smallest to largest")
    axes.plot(at, middle, color=colour("matmul"), linewidth=1.4, label=f"median of {len(parts[0])} steps")


def _dressed(axes: Axes, found: Steps, middle: int, unit: Scale) -> None:
    longest = float(found.dur_ns.max())
    axes.axhline(middle, color=INK, linewidth=1.0)
    axes.annotate(
        f"median\n{unit(middle)}", (1, middle), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", va="center", fontsize=8.5,
    )  # fmt: skip
    if longest > FAR * middle:
        axes.axhline(FAR * middle, color=SOFT, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            "twice that", (1, FAR * middle), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="bottom", fontsize=8.5, color=SOFT,
        )  # fmt: skip
    if longest > LOG_FROM * middle:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit.unit_ns:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    else:
        axes.set_ylim(0, longest * 1.08)
        in_unit(axes.yaxis, unit, 6)
    log = ", log scale" if longest > LOG_FROM * middle else ""
    axes.set_ylabel(f"{unit.unit} per step{log}")
    axes.set_xlabel(f"step (found by {clean(found.found_by, 60)})")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    handles, names = axes.get_legend_handles_labels()
    if handles:
        place: Dress = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
        axes.legend(handles, names, ncols=3, **place, columnspacing=1.4, handletextpad=0.5)


# The same in words.


def _reasons(out: _Outliers) -> str:
    often = Counter(out.why)
    return ", ".join(f"{often[name]} {name}" for name in _MARKS if often[name])


def _answer(found: Steps, out: _Outliers, middle: int, unit: Scale) -> str:
    if not len(out.index):
        low, high = int(found.dur_ns.min()), int(found.dur_ns.max())
        spread = f"{unit.range(low, high)} {unit.unit}"
        return f"No step of {len(found):,} takes more than twice the median ({unit(middle)}): they take {spread}"
    takes = "takes" if len(out.index) == 1 else "take"
    answer = f"{len(out.index):,} of {count(len(found), 'step')} {takes} more than twice the median ({unit(middle)})"
    often = Counter(out.why).most_common(1)[0]
    cause = out.pause if often[0] == "pause" else often[0]
    if often[0] == UNEXPLAINED:
        return answer if often[1] < len(out.why) else f"{answer}, and nothing recorded explains it"
    if often[1] == len(out.why):
        return f"{answer}: {cause}"
    return f"{answer}; {often[1]:,} of them: {cause}"


def _alt(found: Steps, out: _Outliers, middle: int, unit: Scale) -> str:
    total = int(found.dur_ns.sum())
    told = f"The time of each of {count(len(found), 'step')} in order; the median is {unit(middle)}"
    if found.burst > 1:
        told += f", of means over groups of {found.burst}, in which they come"
    if not len(out.index):
        return told
    extra = int((found.dur_ns[out.index] - middle).sum())
    longest = int(found.dur_ns.argmax())
    told += (
        f". The longest is step {longest + 1:,}, {unit(int(found.dur_ns[longest]))} "
        f"({ratio(found.dur_ns[longest] / middle)} the median). Why: {_reasons(out)}. What these steps take beyond the "
        f"median is {percent(extra / total, 1)} of all step time"
    )
    return told + (f". The pauses: {out.pause}" if out.pause else "")


def _table(found: Steps, out: _Outliers, middle: int, unit: Scale) -> Table:
    dur = found.dur_ns
    order = np.argsort(-dur[out.index], kind="stable")[:MOST_ROWS]
    chosen = out.index[order] if len(out.index) else np.argsort(-dur, kind="stable")[:10]
    why = [out.why[place] for place in order] if len(out.index) else [""] * len(chosen)
    rows = [
        Row((f"step {index + 1:,}", reason, unit.number(int(dur[index])), ratio(dur[index] / middle)))
        for index, reason in zip(chosen.tolist(), why, strict=True)
    ]
    rows.append(Row((f"median of {len(found):,}", "", unit.number(middle), ratio(1.0)), kind="total"))
    left = len(out.index) - len(order)
    caption = "The steps of more than twice the median, longest first" if len(out.index) else "The ten longest steps"
    caption += f"; {left:,} more are left out." if left > 0 else "."
    return Table(header=("", "why", unit.unit, "of the median"), rows=tuple(rows), left=2, caption=caption)
