"""Differences between two runs other than step time: kernels or operators, memory, energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpulab.analysis.kernels.flops import parse_inputs
from gpulab.analysis.kernels.interior_kernels import short_kernel_name
from gpulab.analysis.kernels.matching import ADDED, CHANGED, REMOVED, SAME, Match, WorkChanges
from gpulab.comparison import Comparison
from gpulab.hardware.prices import Prices, user_prices
from gpulab.rules.engine.phrases import sentences
from gpulab.views.report.energy_table import MONTH_H, price_per_hour
from gpulab.views.sheet.sheet import Block, Line, Row, Section, TableBlock
from gpulab.wording import UNKNOWN, Scale, count, metric, money, number, percent, quantity, scale, shorten, size

MAX_ROWS = 12
_THOUSAND, _HOUR_NS = 1000, 3.6e12
NAME_WIDTH, SIZES_WIDTH = 36, 18  # of a name with its sizes, and of the sizes: such a table fits the lines of a text


def work_section(compared: Comparison) -> Section | None:
    """Return kernels or operators that were added, removed or changed; None if they cannot be compared."""
    matched = compared.device_work_changes
    if matched is None or not matched.matches:
        return None
    differences = [each for each in matched.matches if each.status != SAME]
    counts = ", ".join(f"{len(matched.of_status(status))} {status}" for status in (ADDED, REMOVED, CHANGED))
    title = f"{matched.unit.capitalize()}: {counts}, {len(matched.of_status(SAME))} with little or no change"
    if not differences:
        same = f"Both runs execute the same {matched.unit}, equally often and equally fast."
        return Section(title, (Line(same),), folded=True)
    return Section(title, tuple(_work(matched, differences)), folded=True)


def _work(matched: WorkChanges, differences: list[Match]) -> Iterator[Block]:
    unit = scale(max(matched.before_ns, matched.after_ns), figures=4)
    largest, rest = differences[:MAX_ROWS], differences[MAX_ROWS:]
    rows = [_row(_name(each, matched.unit), each.status, [each], unit) for each in largest]
    if rest:
        rows.append(_row(count(len(rest), "more difference"), "", rest, unit))
    same = matched.of_status(SAME)
    if same:
        rows.append(_row(f"{count(len(same), 'other')}, little changed", "", list(same), unit))
    rows.append(_row(f"all {matched.unit}", "", list(matched.matches), unit, kind="total"))
    sizes = "input shapes" if any(each.sizes.startswith("[") for each in matched.matches) else "grid"
    criterion = "name" if not any(each.sizes for each in matched.matches) else f"name and {sizes}"
    self_times = "Times are self times: they exclude the operators that each one calls."
    caption = sentences(
        f"{matched.unit.capitalize()} are matched by {criterion}.",
        self_times if matched.unit == "operators" else "",
        "Largest differences first; columns sum to the last row.",
    )
    yield TableBlock(
        header=("per step", "change", "count before", "after", f"{unit.unit} before", "after", "difference"),
        rows=tuple(rows),
        text_columns=2,
        caption=caption,
    )


def _row(name: str, status: str, matches: list[Match], unit: Scale, kind: str = "plain") -> Row:
    counts = [sum(each.before_count for each in matches), sum(each.after_count for each in matches)]
    before, after = sum(each.before_ns for each in matches), sum(each.after_ns for each in matches)
    cells = (name, status, *(number(times) for times in counts), unit.number(before), unit.number(after))
    return Row((*cells, unit.signed_number(after - before)), kind=kind)


def _name(match: Match, on: str) -> str:
    sizes = shorten(_sizes(match.sizes), SIZES_WIDTH)
    name = short_kernel_name(match.name) if on == "kernels" else match.name
    return f"{shorten(name, NAME_WIDTH - len(sizes))} {sizes}".rstrip()


def _sizes(recorded: str) -> str:
    """Format tensor shapes as 32x512x7x7, without scalar inputs; a grid is left unchanged."""
    shapes = parse_inputs(recorded, None).shapes if recorded.startswith("[") else ()
    return " ".join("x".join(map(str, shape)) for shape in shapes if shape) or recorded


def usage_section(compared: Comparison) -> Section | None:
    """Return a table of memory and energy; None if neither run measured them."""
    before, after = compared.usage
    rows = [
        _usage_row("peak GPU memory allocated", before.allocated_bytes, after.allocated_bytes, size),
        _usage_row("peak GPU memory reserved", before.reserved_bytes, after.reserved_bytes, size),
        _usage_row("peak memory of the main process", before.rss_bytes, after.rss_bytes, size),
        _usage_row("energy per step", before.step_j, after.step_j, _joule),
        _usage_row("mean GPU power", before.power_w, after.power_w, _watt),
        *_cost_rows(compared),
    ]
    measured = tuple(row for row in rows if row is not None)
    if not measured:
        return None
    kinds = (_kind(row.cells[0]) for row in measured)
    *others, last = dict.fromkeys(kinds)
    title = " and ".join(filter(None, (", ".join(others), last))).capitalize()
    names = (side.name for side in compared.sides)
    saving = _saving(compared)
    table = TableBlock(header=("", *names, "difference"), rows=measured)
    return Section(title, (table, *((Line(saving, soft=True),) if saving else ())))


def _kind(label: str) -> str:
    return next((kind for kind in ("memory", "cost") if kind in label), "energy")


def _cost_rows(compared: Comparison) -> Iterator[Row | None]:
    """Rows of what a thousand steps cost, if the GPUs of both sides have a price."""
    prices = user_prices()
    costs = [
        None if price is None else price * side_ns * _THOUSAND / _HOUR_NS
        for price, side_ns in zip(_prices_per_hour(compared, prices), _step_times_ns(compared), strict=True)
    ]
    yield _usage_row("cost of a thousand steps", costs[0], costs[1], lambda value: money(value, prices.currency))


def _saving(compared: Comparison) -> str:
    """Say what the change saves in a month, as measured and as predicted; "" without a price."""
    prices = user_prices()
    price = _prices_per_hour(compared, prices)[0]
    if price is None or compared.before_ns <= 0:
        return ""
    monthly = price * MONTH_H
    saved = monthly * (1 - 1 / compared.ratio)
    verb = "saves" if saved >= 0 else "costs"
    text = (
        f"At {money(price, prices.currency)} per hour ({prices.source}), the change {verb} "
        f"{money(abs(saved), prices.currency)} per month of training ({number(MONTH_H)} h)"
    )
    if compared.predicted is None:
        return f"{text}."
    speedups = (compared.predicted.worst_speedup, compared.predicted.best_speedup)
    low, high = (monthly * (1 - 1 / speedup) for speedup in speedups)
    return f"{text}; predicted: {money(low, prices.currency)} to {money(high, prices.currency)}."


def _prices_per_hour(compared: Comparison, prices: Prices) -> list[float | None]:
    return [price_per_hour(side.typical.run, prices) for side in compared.sides]


def _step_times_ns(compared: Comparison) -> tuple[float, float]:
    return compared.before_ns, compared.after_ns


def _usage_row(label: str, before: float | None, after: float | None, show: Callable[[float], str]) -> Row | None:
    if before is None and after is None:
        return None
    cells = (UNKNOWN if value is None else show(value) for value in (before, after))
    return Row((label, *cells, _change(before, after)))


def _change(before: float | None, after: float | None) -> str:
    if before is None or after is None or not before:
        return ""
    share = after / before - 1
    sign = "+" if share > 0 else "-" if share < 0 else ""
    return sign + percent(abs(share), 1)


def _joule(value: float) -> str:
    return metric(value, "J")


def _watt(value: float) -> str:
    return quantity(value, "W")
