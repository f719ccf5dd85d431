"""Chart of the same step on several virtual GPUs: samples/s, step time, and the cost of the samples."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart
from gpulab.views.charts.drawing.shades import pale_shade
from gpulab.views.charts.drawing.style import SMALL_PT, SOFT_COLOUR, chart_style
from gpulab.views.charts.drawing.text_layout import text_width_in as width_in_of
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.views.virtual_gpu.compare_gpus import GpusView
from gpulab.views.virtual_gpu.phrases import unit_of_work
from gpulab.virtual.memory_fit.fitting import GpuCandidate, GpuComparison
from gpulab.virtual.memory_fit.step_estimate import TOO_LARGE
from gpulab.wording import UNKNOWN, number, percent, scale, size

MAX_GPUS = 24  # candidates; the table has up to MAX_ROWS
MAX_ROWS = 40
_NEED = 'Compare GPUs and pass the result: gpulab.virtual.compare_gpus(step, ["h100", "a100", "t4"], batch=32)'
_WIDTHS_IN = (2.3, 1.55, 1.55)  # approximate, of the three plots
_RATE, _TIME, _COST, _ENERGY = "matmul", "copies", "python", "dispatch"

Bounds = tuple[float, float]


def gpu_comparison(compared: GpuComparison | GpusView | Run) -> Chart:
    """Show rate, step time and cost (energy without prices) of each GPU, with ranges.

    From gpulab.virtual.compare_gpus: all values are estimates; bars are solid up to the lowest estimate. A GPU on which
    the step does not fit has no bars. Sharing of a real GPU, and its storage, are not modelled.
    """
    if isinstance(compared, Run):
        return missing_data_chart(compared, "Comparison of GPUs", "a run has measurements of one GPU only", _NEED)
    result = compared.comparison if isinstance(compared, GpusView) else compared
    running = [each for each in result.candidates if each.estimate.verdict != TOO_LARGE]
    candidates = list(result.candidates)[:MAX_GPUS]
    priced = any(each.cost is not None for each in running)
    with chart_style():
        figure = Chart(
            _answer(result, running),
            source=_source(result),
            alt=_alt(result, running, priced),
            table=_table(result, priced),
            height_in=1.7 + 0.27 * len(candidates),
        )
        _draw(figure.subplots(1, 3, sharey=True, width_ratios=(3, 2, 2)), candidates, priced)
    return figure


def _source(result: GpuComparison) -> str:
    names = list(dict.fromkeys(each.estimate.spec.name for each in result.candidates))
    return "; ".join(f"virtual {name}, estimated" for name in names[:6]) + ("; ..." if len(names) > 6 else "")


def _answer(result: GpuComparison, running: Sequence[GpuCandidate]) -> str:
    if not running:
        smallest = min((each.estimate for each in result.candidates), key=lambda estimate: estimate.needed_bytes)
        return f"The step fits on none of these GPUs: it needs {size(smallest.needed_bytes)}"
    first, work = running[0].estimate, unit_of_work(running[0].estimate)
    answer = f"The {first.spec.name} is fastest, {number(first.per_s)} {work}s/s"
    if len(running) > 1 and _rate(running[1])[1] >= _rate(running[0])[0]:
        answer += f", but the range of the {running[1].estimate.spec.name} overlaps"
    priced = [(each.cost, each) for each in running if each.cost is not None]
    if priced:
        cost, cheapest = min(priced, key=lambda pair: pair[0])
        amount, amount_text = _priced_amount(running)
        price = f"{number(cost * amount / 1000)} for {amount_text} {work}s"
        same = cheapest is running[0]
        answer += f", and cheapest, {price}" if same else f"; the {cheapest.estimate.spec.name} is cheapest, {price}"
    return answer


def _rate(candidate: GpuCandidate) -> Bounds:
    estimate = candidate.estimate
    return estimate.per_s_range or (estimate.per_s, estimate.per_s)


def _ms(candidate: GpuCandidate) -> Bounds:
    estimate = candidate.estimate
    low, high = estimate.step_range_ns or (estimate.step_ns, estimate.step_ns)
    return low / 1e6, high / 1e6


def _cost(candidate: GpuCandidate) -> Bounds | None:
    if candidate.cost is None:
        return None
    return candidate.cost_range or (candidate.cost, candidate.cost)


def _kilojoules(candidate: GpuCandidate) -> Bounds | None:
    joules = candidate.joules_range
    return None if joules is None else (joules[0] / 1e3, joules[1] / 1e3)


def _draw(axes: Sequence[Axes], candidates: Sequence[GpuCandidate], priced: bool) -> None:
    work = unit_of_work(candidates[0].estimate)
    columns: tuple[tuple[str, Callable[[GpuCandidate], Bounds | None], str], ...] = (
        (f"{work}s/s (hatched: uncertain)", _rate, _RATE),
        ("step, ms", _ms, _TIME),
        (_third_label(candidates, priced), _third(candidates, priced), _COST if priced else _ENERGY),
    )
    for plot, (label, value, key), width_in in zip(axes, columns, _WIDTHS_IN, strict=True):
        _bars(plot, candidates, value, colour(key), width_in)
        plot.set_title(label, fontsize=8.5, color=SOFT_COLOUR, loc="left")
        plot.set_xticks([])  # each bar is labelled with its values
        plot.grid(False)
        plot.spines["bottom"].set_visible(False)
        plot.tick_params(axis="y", length=0)
    first = axes[0]
    first.set_yticks(range(len(candidates)), [each.estimate.spec.name for each in candidates])
    first.set_ylim(len(candidates) - 0.4, -0.6)


def _third(candidates: Sequence[GpuCandidate], priced: bool) -> Callable[[GpuCandidate], Bounds | None]:
    """Return the function for the last column: cost or energy."""
    if not priced:
        return _kilojoules
    factor = _priced_amount(candidates)[0] / 1000

    def price(candidate: GpuCandidate) -> Bounds | None:
        bounds = _cost(candidate)
        return None if bounds is None else (bounds[0] * factor, bounds[1] * factor)

    return price


def _third_label(candidates: Sequence[GpuCandidate], priced: bool) -> str:
    work = unit_of_work(candidates[0].estimate)
    return f"price of {_priced_amount(candidates)[1]} {work}s" if priced else f"kJ for 1,000 {work}s"


def _priced_amount(candidates: Sequence[GpuCandidate]) -> tuple[int, str]:
    """Return the number of samples that prices are for, so that the highest price is at least 0.01."""
    highest = max((each.cost for each in candidates if each.cost is not None), default=1.0)
    sizes = ((1000, "1,000"), (10**6, "a million"), (10**9, "a billion"))
    return next((each for each in sizes if highest * each[0] / 1000 >= 0.01), sizes[-1])


def _bars(
    plot: Axes,
    candidates: Sequence[GpuCandidate],
    value: Callable[[GpuCandidate], Bounds | None],
    shade: str,
    width_in: float,
) -> None:
    """Draw bars, solid up to the lowest and hatched up to the highest estimate; text if there is no estimate."""
    values = {row: value(each) for row, each in enumerate(candidates) if each.estimate.verdict != TOO_LARGE}
    right = max((bounds[1] for bounds in values.values() if bounds is not None), default=1.0)
    for row in range(len(candidates)):
        bounds = values.get(row)
        if bounds is None:
            label = "unknown" if row in values else "does not fit"
            plot.annotate(
                label, (0, row), (5, 0), textcoords="offset points", va="center", fontsize=SMALL_PT, color=SOFT_COLOUR
            )
            plot.plot([0, 0], [row - 0.3, row + 0.3], color=NEUTRAL, linewidth=1.5)
            continue
        low, high = bounds
        plot.barh(row, low, height=0.62, color=shade)
        style: dict[str, Any] = {
            "facecolor": pale_shade(shade, 0.3),
            "edgecolor": shade,
            "hatch": "////",
            "linewidth": 0.8,
        }
        plot.barh(row, high - low, left=low, height=0.62, **style)
        label = number(low) if low == high else f"{number(low)}-{number(high)}"
        plot.annotate(label, (high, row), (4, 0), textcoords="offset points", va="center", fontsize=SMALL_PT)
        right = max(right, high / max(0.2, 1 - (width_in_of(label, SMALL_PT) + 0.12) / width_in))
    plot.set_xlim(0, right)


def _alt(result: GpuComparison, running: Sequence[GpuCandidate], priced: bool) -> str:
    def rate(candidate: GpuCandidate) -> str:
        low, high = _rate(candidate)
        return f"{candidate.estimate.spec.name} {number(low)}-{number(high)}"

    too_small = [each.estimate.spec.name for each in result.candidates if each not in running]
    work = unit_of_work(result.candidates[0].estimate)
    batch = f" of {result.batch:,} samples" if result.batch else ""
    rates = ", ".join(map(rate, running)) or "none"
    text = f"Bars for each GPU, one step{batch}. {work.capitalize()}s per second: {rates}. "
    text += f"It does not fit on {', '.join(too_small)}. " if too_small else ""
    return text + ("" if priced else "Energy is shown instead of cost, because no prices were passed.")


def _table(result: GpuComparison, priced: bool) -> TableBlock:
    unit = scale(max(each.estimate.step_ns for each in result.candidates))
    last_column, rows = _third(result.candidates, priced), []
    for candidate in result.candidates[:MAX_ROWS]:
        measured = candidate.estimate
        if measured.verdict == TOO_LARGE:
            rows.append(Row((measured.spec.name, f"{TOO_LARGE}, {percent(measured.used_frac)}", "", "", "", "")))
            continue
        cost_or_energy = last_column(candidate)
        span = unit.range(*measured.step_range_ns) if measured.step_range_ns else UNKNOWN
        memory = f"{measured.verdict}, {percent(measured.used_frac)}"
        rows.append(
            Row(
                (
                    measured.spec.name,
                    memory,
                    number(measured.per_s),
                    unit.number(measured.step_ns),
                    span,
                    _span(cost_or_energy),
                )
            )
        )
    work = unit_of_work(result.candidates[0].estimate)
    omitted = len(result.candidates) - len(rows)
    header = ("GPU", "memory", f"{work}s/s", f"step, {unit.unit}", "range", _third_label(result.candidates, priced))
    return TableBlock(
        header=header, rows=tuple(rows), text_columns=2, caption=f"{omitted:,} more are not listed." if omitted else ""
    )


def _span(bounds: Bounds | None) -> str:
    if bounds is None:
        return UNKNOWN
    return number(bounds[0]) if bounds[0] == bounds[1] else f"{number(bounds[0])}-{number(bounds[1])}"
