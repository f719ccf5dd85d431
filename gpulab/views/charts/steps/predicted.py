"""Chart of a prediction and its measurement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes

from gpulab import comparison
from gpulab.comparison import Comparison
from gpulab.comparison.sides import Runs
from gpulab.errors import GpulabError
from gpulab.questions import predict
from gpulab.replay.history import MeasuredPrediction
from gpulab.rules.engine.evidence import gain_from_prediction
from gpulab.rules.engine.finding import Gain
from gpulab.run import Run
from gpulab.views.charts.drawing.axes import bar_rows
from gpulab.views.charts.drawing.chart import Chart, combined_source, missing_data_chart
from gpulab.views.charts.drawing.shades import pale_shade
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT, SOFT_COLOUR, TEXT_COLOUR, chart_style
from gpulab.views.sheet.palette import MEASURED, NEUTRAL, PREDICTED
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, clean, count, ratio, scale, sentence

MAX_PAST = 12
_KEY = "   (hatched: predicted range; whisker: 95 % interval)"
_NEED = "Apply the fix, record the loop again, and pass both runs: gpulab.charts.predicted(before, after)"


def predicted(
    before: Runs | Comparison,
    after: Runs | None = None,
    *,
    rewrites: str | None = None,
    rule: str | None = None,
    history: Sequence[MeasuredPrediction] = (),
) -> Chart:
    """Show the step time before, the predicted one with range and bound, and the measured one with 95 % interval.

    From the comparison of two runs, each a run or several recordings of the same program. The prediction is that of the
    first finding, of `rule`, or of `rewrites` as in gpulab.whatif. `history`: earlier predictions on this machine, such
    as gpulab.user_data.predictions.read_measured_predictions(), shown in a second plot. gpulab.compare explains why a
    prediction was wrong.
    """
    if isinstance(before, Comparison):
        return _figure(before, history)
    if after is None:
        why = "only one run was passed; a second run measures the prediction of the first"
        return missing_data_chart(_runs(before), "Predicted against measured", why, _NEED)
    try:
        gain = gain_from_prediction(predict(_runs(before)[0], rewrites)) if rewrites else None
        compared = comparison.compare(before, after, rule, predicted=gain)
    except GpulabError as error:
        why = f"{error.problem.rstrip('.')}: {error.why}" if error.why else error.problem
        return missing_data_chart([*_runs(before), *_runs(after)], "Predicted against measured", why, error.fix)
    return _figure(compared, history)


def _runs(recordings: Runs) -> list[Run]:
    return [recordings] if isinstance(recordings, Run) else list(recordings)


def _figure(compared: Comparison, history: Sequence[MeasuredPrediction]) -> Chart:
    past = list(history)[-MAX_PAST:]
    source = combined_source([compared.before.run, compared.after.run])
    with chart_style():
        figure = Chart(
            _answer(compared),
            source=source,
            alt=_alt(compared, past),
            table=_table(compared, past),
            height_in=max(2.6, 1.6 + 0.17 * len(past)),
        )
        if past:
            left, right = figure.subplots(1, 2, width_ratios=(3, 2))
            _draw_past(right, past)
        else:
            left = figure.add_subplot()
        _draw(left, compared)
    return figure


def _answer(compared: Comparison) -> str:
    gain = compared.predicted
    if gain is None:
        unit = scale(max(compared.before_ns, compared.after_ns))
        span = f"{unit.number(compared.before_ns)} to {unit(compared.after_ns)} per step"
        return f"No prediction; measured {span}" + ("" if compared.conclusive else ", which is not judged")
    unit = scale(gain.step_ns)
    span = f"{unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}"
    times = f"Predicted {span} per step, {_origin(compared)} {unit(compared.measured_ns)}"
    if not compared.conclusive:
        return f"{times}: not judged"
    return (
        f"{times}: {'inside' if compared.in_predicted_range else 'outside'} the range ({ratio(compared.ratio)} as fast)"
    )


def _origin(compared: Comparison) -> str:
    return "estimated" if compared.after.run.source.how == "virtual" else "measured"


def _interval(compared: Comparison, gain: Gain | None) -> tuple[float, float]:
    """Return the 95 % interval of the step time after the change, from the interval of the ratio."""
    start_ns = gain.step_ns / gain.work_ratio if gain is not None else float(compared.before_ns)
    return start_ns / compared.ratio_high, start_ns / compared.ratio_low


def _draw(axes: Axes, compared: Comparison) -> None:
    gain = compared.predicted
    step_ns = gain.step_ns if gain is not None else compared.before_ns
    low, high = _interval(compared, gain)
    longest = max(step_ns, compared.measured_ns, high, gain.worst_ns if gain is not None else 0)
    unit = scale(longest)
    names = [f"before: {clean(compared.sides[0].name, 18)}", f"after: {clean(compared.sides[1].name, 18)}"]
    _bar(axes, 0, step_ns, unit, NEUTRAL, unit(step_ns))
    if gain is not None:
        names.insert(1, "predicted")
        best, worst = gain.best_ns / unit.unit_ns, gain.worst_ns / unit.unit_ns
        axes.barh(1, best, height=0.56, color=PREDICTED)
        style: dict[str, Any] = {
            "facecolor": pale_shade(PREDICTED, 0.25),
            "edgecolor": PREDICTED,
            "hatch": "////",
            "linewidth": 1,
        }
        axes.barh(1, worst - best, left=best, height=0.56, **style)
        _label_end(axes, 1, worst, f"{unit.range(gain.best_ns, gain.worst_ns)} {unit.unit}")
        floor = gain.floor_ns / unit.unit_ns
        axes.plot([floor, floor], [0.62, 1.38], color=TEXT_COLOUR, linewidth=1.4)
        axes.annotate(
            f"bound {unit(gain.floor_ns)}",
            (floor, 1.4),
            (3, -1),
            textcoords="offset points",
            fontsize=SMALL_PT,
            va="top",
        )
    row = len(names) - 1
    _bar(axes, row, compared.measured_ns, unit, MEASURED, "")
    axes.errorbar(
        compared.measured_ns / unit.unit_ns,
        row,
        xerr=[[(compared.measured_ns - low) / unit.unit_ns], [(high - compared.measured_ns) / unit.unit_ns]],
        color=TEXT_COLOUR,
        capsize=4,
        linewidth=1.2,
    )
    _label_end(
        axes,
        row,
        max(high, compared.measured_ns) / unit.unit_ns,
        f"{unit(compared.measured_ns)} ({unit.range(low, high)})",
    )
    bar_rows(axes, names, 1.42 * longest / unit.unit_ns)
    work = " for the work of one step before" if gain is not None and gain.work_ratio != 1 else " per step"
    axes.set_xlabel(f"{unit.unit}{work}{_KEY}")


def _bar(axes: Axes, row: int, ns: float, unit: Scale, shade: str, text: str) -> None:
    axes.barh(row, ns / unit.unit_ns, height=0.56, color=shade)
    if text:
        _label_end(axes, row, ns / unit.unit_ns, text)


def _label_end(axes: Axes, row: int, x: float, text: str) -> None:
    axes.annotate(text, (x, row), (7, 0), textcoords="offset points", va="center", fontweight="bold", fontsize=8.5)


def _draw_past(axes: Axes, past: Sequence[MeasuredPrediction]) -> None:
    """Draw measured over predicted time, one row per prediction, with its range as a bar; above 1 is slower."""
    for row, prediction in enumerate(past):
        likely = prediction.predicted_ns
        axes.plot(
            [prediction.best_ns / likely, prediction.worst_ns / likely],
            [row, row],
            color=pale_shade(PREDICTED, 0.6),
            linewidth=5,
            solid_capstyle="butt",
        )
        inside = prediction.best_ns <= prediction.measured_ns <= prediction.worst_ns
        face = MEASURED if inside else BACKGROUND
        axes.plot(
            prediction.measured_ns / likely,
            row,
            "o" if inside else "X",
            color=TEXT_COLOUR,
            markerfacecolor=face,
            markersize=5.5,
        )
    axes.axvline(1, color=SOFT_COLOUR, linewidth=1, linestyle="--")
    axes.set_yticks(range(len(past)), [clean(each.kind, 16) for each in past], fontsize=SMALL_PT)
    axes.set_ylim(len(past) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlabel("measured / predicted, earlier")


def _alt(compared: Comparison, past: Sequence[MeasuredPrediction]) -> str:
    gain, unit = compared.predicted, scale(max(compared.before_ns, compared.after_ns))
    low, high = _interval(compared, gain)
    start = unit(gain.step_ns if gain else compared.before_ns)
    interval = f"95 % interval {unit.range(low, high)} {unit.unit}"
    times = f"before {start}, after {unit(compared.measured_ns)}, {interval}"
    text = f"Bars: {times}. "
    if gain is not None:
        text += f"Predicted by {gain.basis}. The bound is {unit(gain.floor_ns)}. "
    if compared.why:
        text += f"{sentence(compared.why)} "
    if past:
        inside = sum(each.best_ns <= each.measured_ns <= each.worst_ns for each in past)
        text += f"Of {count(len(past), 'earlier prediction')}, {inside} were inside the range."
    return text


def _table(compared: Comparison, past: Sequence[MeasuredPrediction]) -> TableBlock:
    gain = compared.predicted
    unit = scale(max(compared.before_ns, compared.after_ns, compared.measured_ns))
    low, high = _interval(compared, gain)
    step_ns = gain.step_ns if gain is not None else compared.before_ns
    rows = [Row((f"before: {clean(compared.sides[0].name, 60)}", unit.number(step_ns), ""))]
    if gain is not None:
        rows.append(
            Row(("predicted", unit.number((gain.best_ns + gain.worst_ns) / 2), unit.range(gain.best_ns, gain.worst_ns)))
        )
        rows.append(Row(("bound", unit.number(gain.floor_ns), "")))
    rows.append(
        Row((f"after: {clean(compared.sides[1].name, 60)}", unit.number(compared.measured_ns), unit.range(low, high)))
    )
    for prediction in past:
        span = unit.range(prediction.best_ns, prediction.worst_ns)
        rows.append(
            Row(
                (
                    f"earlier, {clean(prediction.kind, 40)}, {clean(prediction.date, 20)}",
                    unit.number(prediction.measured_ns),
                    f"predicted {span}",
                )
            )
        )
    return TableBlock(
        header=("", f"step, {unit.unit}", "range"),
        rows=tuple(rows),
        caption="The range of the measured step is its 95 % interval.",
    )
