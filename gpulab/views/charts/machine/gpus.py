"""The same step on several virtual GPUs: samples a second, time, and what a thousand samples cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes

from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, nothing_to_draw
from gpulab.views.charts.drawing.lettering import width_in as width_in_of
from gpulab.views.charts.drawing.shades import pale
from gpulab.views.charts.drawing.style import SMALL_PT, SOFT, dressed
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.views.virtual_gpu.compare_gpus import GpusView
from gpulab.views.virtual_gpu.phrases import unit_of_work
from gpulab.virtual.memory_fit.fitting import Candidate, GpuComparison
from gpulab.virtual.memory_fit.measuring import TOO_LARGE
from gpulab.wording import UNKNOWN, number, percent, scale, size

MOST_GPUS = 24  # drawn; the table has those beyond, up to forty
_MOST_ROWS = 40
_NEED = 'Compare GPUs, and give what comes of it: gpulab.virtual.compare_gpus(step, ["h100", "a100", "t4"], batch=32)'
_WIDTHS_IN = (2.3, 1.55, 1.55)  # of the three plots, about
_RATE, _TIME, _COST, _ENERGY = "matmul", "copies", "python", "dispatch"

Bounds = tuple[float, float]


def gpu_comparison(compared: GpuComparison | GpusView | Run) -> Chart:
    """Rate, step time, and cost (or energy, where no price was given), each from its least to its most.

    From gpulab.virtual.compare_gpus: all of it is estimated, and a bar is solid to what a GPU gives at least. A GPU on
    which the step does not fit has no bars. What a real GPU shares with others, and its storage, this does not know.
    """
    if isinstance(compared, Run):
        return nothing_to_draw(compared, "Comparison of GPUs", "a run tells of the one GPU it is of", _NEED)
    told = compared.compared if isinstance(compared, GpusView) else compared
    running = [each for each in told.candidates if each.measured.verdict != TOO_LARGE]
    drawn = list(told.candidates)[:MOST_GPUS]
    priced = any(each.cost is not None for each in running)
    with dressed():
        made = Chart(
            _answer(told, running),
            source=_source(told),
            alt=_words(told, running, priced),
            table=_table(told, priced),
            height_in=1.7 + 0.27 * len(drawn),
        )
        _draw(made.subplots(1, 3, sharey=True, width_ratios=(3, 2, 2)), drawn, priced)
    return made


def _source(told: GpuComparison) -> str:
    names = list(dict.fromkeys(each.measured.spec.name for each in told.candidates))
    return "; ".join(f"virtual {name}, estimated" for name in names[:6]) + ("; ..." if len(names) > 6 else "")


def _answer(told: GpuComparison, running: Sequence[Candidate]) -> str:
    if not running:
        least = min((each.measured for each in told.candidates), key=lambda each: each.needed_bytes)
        return f"The step fits on none of these GPUs: it needs {size(least.needed_bytes)}"
    first, work = running[0].measured, unit_of_work(running[0].measured)
    answer = f"The {first.spec.name} gives most, {number(first.per_s)} {work}s/s"
    if len(running) > 1 and _rate(running[1])[1] >= _rate(running[0])[0]:
        answer += f", though the {running[1].measured.spec.name} may give as much"
    priced = [(each.cost, each) for each in running if each.cost is not None]
    if priced:
        cost, cheapest = min(priced, key=lambda each: each[0])
        many, many_words = _many(running)
        price = f"{number(cost * many / 1000)} for {many_words} {work}s"
        same = cheapest is running[0]
        answer += f", and costs least, {price}" if same else f"; the {cheapest.measured.spec.name} costs least, {price}"
    return answer


def _rate(each: Candidate) -> Bounds:
    return each.measured.per_s_range or (each.measured.per_s, each.measured.per_s)


def _ms(each: Candidate) -> Bounds:
    low, high = each.measured.range_ns or (each.measured.step_ns, each.measured.step_ns)
    return low / 1e6, high / 1e6


def _cost(each: Candidate) -> Bounds | None:
    if each.cost is None:
        return None
    return each.cost_range or (each.cost, each.cost)


def _kilojoules(each: Candidate) -> Bounds | None:
    if each.joules_range is None:
        return None
    return each.joules_range[0] / 1e3, each.joules_range[1] / 1e3


def _draw(axes: Sequence[Axes], drawn: Sequence[Candidate], priced: bool) -> None:
    work = unit_of_work(drawn[0].measured)
    columns: tuple[tuple[str, Callable[[Candidate], Bounds | None], str], ...] = (
        (f"{work}s/s (hatched: perhaps)", _rate, _RATE),
        ("step, ms", _ms, _TIME),
        (_third_words(drawn, priced), _third(drawn, priced), _COST if priced else _ENERGY),
    )
    for plot, (label, ask, key), width_in in zip(axes, columns, _WIDTHS_IN, strict=True):
        _bars(plot, drawn, ask, colour(key), width_in)
        plot.set_title(label, fontsize=8.5, color=SOFT, loc="left")
        plot.set_xticks([])  # each bar has its figures beside it
        plot.grid(False)
        plot.spines["bottom"].set_visible(False)
        plot.tick_params(axis="y", length=0)
    first = axes[0]
    first.set_yticks(range(len(drawn)), [each.measured.spec.name for each in drawn])
    first.set_ylim(len(drawn) - 0.4, -0.6)


def _third(drawn: Sequence[Candidate], priced: bool) -> Callable[[Candidate], Bounds | None]:
    """What the last column tells: cost or energy."""
    if not priced:
        return _kilojoules
    times = _many(drawn)[0] / 1000

    def price(each: Candidate) -> Bounds | None:
        bounds = _cost(each)
        return None if bounds is None else (bounds[0] * times, bounds[1] * times)

    return price


def _third_words(drawn: Sequence[Candidate], priced: bool) -> str:
    work = unit_of_work(drawn[0].measured)
    return f"price of {_many(drawn)[1]} {work}s" if priced else f"kJ for 1000 {work}s"


def _many(drawn: Sequence[Candidate]) -> tuple[int, str]:
    """How many samples a price is told of: so many that it can be read."""
    dearest = max((each.cost for each in drawn if each.cost is not None), default=1.0)
    sizes = ((1000, "1000"), (10**6, "a million"), (10**9, "a billion"))
    return next((each for each in sizes if dearest * each[0] / 1000 >= 0.01), sizes[-1])


def _bars(
    plot: Axes, drawn: Sequence[Candidate], ask: Callable[[Candidate], Bounds | None], shade: str, width_in: float
) -> None:
    """Solid to the least, pale and hatched to the most; in words where there is no bar."""
    told = {place: ask(each) for place, each in enumerate(drawn) if each.measured.verdict != TOO_LARGE}
    longest = max((bounds[1] for bounds in told.values() if bounds is not None), default=1.0)
    reach = longest
    for place in range(len(drawn)):
        bounds = told.get(place)
        if bounds is None:
            words = "not told" if place in told else "does not fit"
            plot.annotate(
                words, (0, place), (5, 0), textcoords="offset points", va="center", fontsize=SMALL_PT, color=SOFT
            )
            plot.plot([0, 0], [place - 0.3, place + 0.3], color=NEUTRAL, linewidth=1.5)
            continue
        low, high = bounds
        plot.barh(place, low, height=0.62, color=shade)
        style: dict[str, Any] = {"facecolor": pale(shade, 0.3), "edgecolor": shade, "hatch": "////", "linewidth": 0.8}
        plot.barh(place, high - low, left=low, height=0.62, **style)
        words = number(low) if low == high else f"{number(low)}-{number(high)}"
        plot.annotate(words, (high, place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL_PT)
        reach = max(reach, high / max(0.2, 1 - (width_in_of(words, SMALL_PT) + 0.12) / width_in))
    plot.set_xlim(0, reach)


def _words(told: GpuComparison, running: Sequence[Candidate], priced: bool) -> str:
    def one(each: Candidate) -> str:
        low, high = _rate(each)
        return f"{each.measured.spec.name} {number(low)}-{number(high)}"

    without = [each.measured.spec.name for each in told.candidates if each not in running]
    work = unit_of_work(told.candidates[0].measured)
    batch = f" of {told.batch:,} samples" if told.batch else ""
    words = (
        f"Bars for each GPU, a step{batch}. {work.capitalize()}s a second: {', '.join(map(one, running)) or 'none'}. "
    )
    words += f"It does not fit on {', '.join(without)}. " if without else ""
    return words + ("" if priced else "No price was given, so energy stands in place of cost.")


def _table(told: GpuComparison, priced: bool) -> Table:
    unit = scale(max(each.measured.step_ns for each in told.candidates))
    ask, rows = _third(told.candidates, priced), []
    for each in told.candidates[:_MOST_ROWS]:
        measured = each.measured
        if measured.verdict == TOO_LARGE:
            rows.append(Row((measured.spec.name, f"{TOO_LARGE}, {percent(measured.used_frac)}", "", "", "", "")))
            continue
        third = ask(each)
        span = unit.range(*measured.range_ns) if measured.range_ns else UNKNOWN
        memory = f"{measured.verdict}, {percent(measured.used_frac)}"
        rows.append(
            Row((measured.spec.name, memory, number(measured.per_s), unit.number(measured.step_ns), span, _span(third)))
        )
    work = unit_of_work(told.candidates[0].measured)
    left_out = len(told.candidates) - len(rows)
    header = ("GPU", "memory", f"{work}s/s", f"step, {unit.unit}", "range", _third_words(told.candidates, priced))
    return Table(header=header, rows=tuple(rows), left=2, caption=f"{left_out:,} more left out." if left_out else "")


def _span(bounds: Bounds | None) -> str:
    if bounds is None:
        return UNKNOWN
    return number(bounds[0]) if bounds[0] == bounds[1] else f"{number(bounds[0])}-{number(bounds[1])}"
