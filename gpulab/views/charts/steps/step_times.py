"""Chart of step times: outliers are marked with their cause, if a recorded event explains them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from gpulab.analysis.host.gc_and_compilation import stall_spans
from gpulab.analysis.steps.detection import Mask, Steps, find_steps, typical_ns
from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.analysis.steps.pauses import PassStarts, Pauses, find_pauses, pass_start_cost
from gpulab.intervals import Ints, covered_ns, union
from gpulab.run import Run
from gpulab.tables import MarkKind, StallKind
from gpulab.views.charts.drawing.axes import WHOLE_RUN, label_time_axis
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SOFT_COLOUR, TEXT_COLOUR, Style
from gpulab.views.report.provenance import how_detected
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, clean, count, percent, ratio, scale, shorten

SUBJECT = "Step times"
FAR = 2.0  # a step longer than this many times the median is an outlier
HALF = 0.5  # a cause must cover this fraction of the excess over the median to explain it
MAX_MARKS, MAX_OUTLIERS, MAX_ROWS, MAX_VECTORS = 2000, 400, 39, 300
LOG_FROM = 20.0  # longest over median: log scale from here
UNEXPLAINED = "unexplained"
# Colour and marker of each cause; the ledger's colour if it has one.
_MARKS = {
    "warm-up": ("launch", "s"),
    "garbage collection": ("alloc", "v"),
    "compilation": ("glue", "D"),
    "start of an epoch": ("sync", ">"),
    "waiting for a batch": ("loader", "^"),
    "pause": ("python", "P"),
    UNEXPLAINED: ("", "X"),
}


@dataclass(frozen=True)
class _Outliers:
    """Steps that take more than FAR times the median, and their causes."""

    index: Ints
    why: tuple[str, ...]  # a key of _MARKS for each step
    pause: str  # what runs during the pauses, if samples show it


def step_times(run: Run) -> Chart:
    """Show the time of each step over the run; steps of more than twice the median are marked with their cause.

    From gpulab.analysis.steps.detection, pauses and stalls, and the marks. A cause is named if it covers at least half
    of the excess over the median. Steps that no recorded event explains are "unexplained".
    """
    run_steps = find_steps(run)
    if run_steps.detected_by == WHOLE_RUN or len(run_steps) < 2:
        fix = "record a loop of at least twelve steps, or call gpulab.step() once per step"
        return missing_data_chart(run, SUBJECT, "no steps were found in this run", fix)
    dur = run_steps.dur_ns
    middle = typical_ns(dur, run_steps.burst)
    if middle <= 0:
        return missing_data_chart(run, SUBJECT, "most of the recorded steps have no duration")
    out = _outliers(run, run_steps, middle)
    unit = scale(float(middle), figures=3)

    def draw(axes: Axes) -> None:
        _marks(axes, run_steps, out)
        _style_axes(axes, run_steps, middle, unit)

    return single_plot(
        _answer(run_steps, out, middle, unit),
        draw,
        source=run,
        alt=_alt(run_steps, out, middle, unit),
        table=_table(run_steps, out, middle, unit),
        height_in=3.3,
    )


# Outliers and their causes.


def _outliers(run: Run, run_steps: Steps, middle: int) -> _Outliers:
    dur = run_steps.dur_ns
    index = np.flatnonzero(dur > FAR * middle)
    start, end = run_steps.start_ns[index], run_steps.end_ns[index]
    beyond = np.maximum(dur[index] - middle, 1)
    run_pauses, epochs = find_pauses(run, run_steps), pass_start_cost(run, run_steps)
    causes = (
        ("garbage collection", covered_ns(stall_spans(run, StallKind.GC), start, end)),
        ("compilation", covered_ns(stall_spans(run, StallKind.COMPILE), start, end)),
        ("start of an epoch", _passes_ns(epochs, start, end)),
        ("waiting for a batch", _waited_ns(run, start, end) - _usual_wait_ns(run, run_steps)),
        (
            "pause",
            _paused_ns(run_pauses if _pause_activity(run_pauses) else None, start, end),
        ),  # without samples a pause is no explanation
    )
    why = np.full(len(index), UNEXPLAINED, object)
    for name, ns in reversed(causes):
        why[ns >= HALF * beyond] = name
    early = (index < WARM_UP_STEPS) & (why == UNEXPLAINED)
    why[early] = "warm-up"
    return _Outliers(index, tuple(why.tolist()), _pause_activity(run_pauses))


def _passes_ns(epochs: PassStarts | None, start: Ints, end: Ints) -> Ints:
    return covered_ns(epochs.spans, start, end) if epochs else np.zeros(len(start), np.int64)


def _paused_ns(paused: Pauses | None, start: Ints, end: Ints) -> Ints:
    return covered_ns(paused.spans, start, end) if paused else np.zeros(len(start), np.int64)


def _waited_ns(run: Run, start: Ints, end: Ints) -> Ints:
    calls = run.mark_rows.of_kind(MarkKind.NEXT)
    return covered_ns(union(calls["start_ns"], calls["end_ns"]), start, end)


def _usual_wait_ns(run: Run, run_steps: Steps) -> int:
    return int(np.median(_waited_ns(run, run_steps.start_ns, run_steps.end_ns)))


def _pause_activity(paused: Pauses | None) -> str:
    """Return what most samples of the pauses show: the call into a library, else the user's line."""
    return clean(shorten(paused.library_call or paused.frame or "", 40)) if paused else ""


# Drawing.


def _marks(axes: Axes, run_steps: Steps, out: _Outliers) -> None:
    dur, number = run_steps.dur_ns.astype(np.float64), np.arange(1, len(run_steps) + 1)
    usual = np.ones(len(run_steps), bool)
    usual[out.index] = False
    if usual.sum() > MAX_MARKS:
        _band(axes, number[usual], dur[usual])
    else:
        recorded: Mask = run_steps.recorded
        marker_style: Style = {"linestyle": "none", "markersize": 4.5, "rasterized": usual.sum() > MAX_VECTORS}
        several = recorded.any() and not recorded.all()
        for mask, face, name in ((recorded, colour("matmul"), "recorded"), (~recorded, BACKGROUND, "not recorded")):
            if (mask & usual).any():
                label = f"{name} with events" if several else None
                edge: Style = {"markerfacecolor": face, "markeredgecolor": colour("matmul"), "label": label}
                axes.plot(number[mask & usual], dur[mask & usual], marker="o", **marker_style, **edge)
    why = np.array(out.why, object)
    for name, (key, marker) in _MARKS.items():
        indices = out.index[why == name]
        if not len(indices):
            continue
        longest = indices if len(indices) <= MAX_OUTLIERS else indices[np.argsort(-dur[indices])[:MAX_OUTLIERS]]
        label = f"{out.pause or name} ({len(indices)})" if name == "pause" else f"{name} ({len(indices)})"
        style: Style = {
            "markerfacecolor": colour(key),
            "markeredgecolor": TEXT_COLOUR,
            "markeredgewidth": 0.6,
            "label": label,
        }
        axes.plot(number[longest], dur[longest], marker=marker, markersize=7, linestyle="none", **style)


def _band(axes: Axes, number: Ints, dur: NDArray[np.float64]) -> None:
    """Draw very many steps as groups: the median, minimum and maximum of each group."""
    parts = np.array_split(np.arange(len(number)), 400)
    centres = [float(number[part].mean()) for part in parts]
    low, middle, high = (
        [float(value) for value in values]
        for values in zip(*(np.percentile(dur[part], (0, 50, 100)) for part in parts), strict=True)
    )
    axes.fill_between(centres, low, high, color=colour("kernels"), alpha=0.45, linewidth=0, label="minimum to maximum")
    axes.plot(centres, middle, color=colour("matmul"), linewidth=1.4, label=f"median of {len(parts[0])} steps")


def _style_axes(axes: Axes, run_steps: Steps, middle: int, unit: Scale) -> None:
    longest = float(run_steps.dur_ns.max())
    axes.axhline(middle, color=TEXT_COLOUR, linewidth=1.0)
    axes.annotate(
        f"median\n{unit(middle)}", (1, middle), xycoords=("axes fraction", "data"), xytext=(4, 0),
        textcoords="offset points", va="center", fontsize=8.5,
    )  # fmt: skip
    if longest > FAR * middle:
        axes.axhline(FAR * middle, color=SOFT_COLOUR, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.annotate(
            "2x median", (1, FAR * middle), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="bottom", fontsize=8.5, color=SOFT_COLOUR,
        )  # fmt: skip
    if longest > LOG_FROM * middle:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit.unit_ns:g}"))
        axes.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    else:
        axes.set_ylim(0, longest * 1.08)
        label_time_axis(axes.yaxis, unit, 6)
    log = ", log scale" if longest > LOG_FROM * middle else ""
    axes.set_ylabel(f"{unit.unit} per step{log}")
    axes.set_xlabel(f"step ({clean(how_detected(run_steps), 75)})")
    axes.margins(x=0.02)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    handles, names = axes.get_legend_handles_labels()
    if handles:
        position: Style = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
        axes.legend(handles, names, ncols=3, **position, columnspacing=1.4, handletextpad=0.5)


# Title, description and table.


def _reasons(out: _Outliers) -> str:
    counts = Counter(out.why)
    return ", ".join(f"{counts[name]} {name}" for name in _MARKS if counts[name])


def _answer(run_steps: Steps, out: _Outliers, middle: int, unit: Scale) -> str:
    if not len(out.index):
        low, high = int(run_steps.dur_ns.min()), int(run_steps.dur_ns.max())
        limits = unit.range(low, high)
        spread = f"range {limits} {unit.unit}" if "-" in limits else f"all take {limits} {unit.unit}"
        return f"None of {count(len(run_steps), 'step')} takes more than twice the median ({unit(middle)}); {spread}"
    verb = "takes" if len(out.index) == 1 else "take"
    answer = f"{len(out.index):,} of {count(len(run_steps), 'step')} {verb} more than twice the median ({unit(middle)})"
    reason, frequency = Counter(out.why).most_common(1)[0]
    cause = out.pause if reason == "pause" else reason
    if reason == UNEXPLAINED:
        return answer if frequency < len(out.why) else f"{answer}, and no recorded event explains it"
    if frequency == len(out.why):
        return f"{answer}: {cause}"
    return f"{answer}; {frequency:,} of them: {cause}"


def _alt(run_steps: Steps, out: _Outliers, middle: int, unit: Scale) -> str:
    total = int(run_steps.dur_ns.sum())
    text = f"The time of each of {count(len(run_steps), 'step')} in order; the median is {unit(middle)}"
    if run_steps.burst > 1:
        text += f" (of means over groups of {run_steps.burst} steps)"
    if not len(out.index):
        return text
    extra = int((run_steps.dur_ns[out.index] - middle).sum())
    longest = int(run_steps.dur_ns.argmax())
    text += (
        f". The longest is step {longest + 1:,}, {unit(int(run_steps.dur_ns[longest]))} "
        f"({ratio(run_steps.dur_ns[longest] / middle)} the median). Causes: {_reasons(out)}. The excess of these steps "
        f"over the median is {percent(extra / total, 1)} of all step time"
    )
    return text + (f". During the pauses: {out.pause}" if out.pause else "")


def _table(run_steps: Steps, out: _Outliers, middle: int, unit: Scale) -> TableBlock:
    dur = run_steps.dur_ns
    order = np.argsort(-dur[out.index], kind="stable")[:MAX_ROWS]
    listed = out.index[order] if len(out.index) else np.argsort(-dur, kind="stable")[:10]
    why = [out.why[index] for index in order] if len(out.index) else [""] * len(listed)
    rows = [
        Row((f"step {index + 1:,}", reason, unit.number(int(dur[index])), ratio(dur[index] / middle)))
        for index, reason in zip(listed.tolist(), why, strict=True)
    ]
    rows.append(Row((f"median of {len(run_steps):,}", "", unit.number(middle), ratio(1.0)), kind="total"))
    left = len(out.index) - len(order)
    caption = "Steps of more than twice the median, longest first" if len(out.index) else "The ten longest steps"
    caption += f"; {left:,} more are not listed." if left > 0 else "."
    return TableBlock(
        header=("", "cause", unit.unit, "of the median"), rows=tuple(rows), text_columns=2, caption=caption
    )
