"""What two sides ran and what they took beside time: kernels, memory, energy."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpulab.analysis.kernels.flops import inputs
from gpulab.analysis.kernels.interior import short
from gpulab.analysis.kernels.matching import ADDED, CHANGED, REMOVED, SAME, Match, Matched
from gpulab.comparison import Comparison
from gpulab.views.sheet.sheet import Block, Line, Row, Section, Table
from gpulab.wording import UNKNOWN, Scale, metric, number, percent, quantity, scale, shorten, size

MOST_ROWS = 12
NAME_WIDTH, SIZES_WIDTH = 38, 18  # together what a line of text has room for


def work(compared: Comparison) -> Section | None:
    """The kernels or operators that were added, removed or changed; None where they cannot be compared."""
    seen = compared.work
    if seen is None or not seen.matches:
        return None
    moved = [each for each in seen.matches if each.status != SAME]
    counts = ", ".join(f"{len(seen.of(status))} {status}" for status in (ADDED, REMOVED, CHANGED, SAME))
    title = f"{seen.on.capitalize()}: {counts}"
    if not moved:
        return Section(title, (Line(f"The same {seen.on} ran on both sides, as often and for as long."),), folded=True)
    return Section(title, tuple(_work(seen, moved)), folded=True)


def _work(seen: Matched, moved: list[Match]) -> Iterator[Block]:
    unit = scale(max(seen.before_ns, seen.after_ns), figures=4)
    shown, rest = moved[:MOST_ROWS], moved[MOST_ROWS:]
    rows = [_row(_name(each, seen.on), each.status, [each], unit) for each in shown]
    if rest:
        rows.append(_row(f"{len(rest)} more of these", "", rest, unit))
    same = seen.of(SAME)
    if same:
        rows.append(_row(f"{len(same)} others", SAME, list(same), unit))
    rows.append(_row(f"all {seen.on}", "", list(seen.matches), unit, kind="total"))
    matched = "sizes of their inputs" if any(each.sizes.startswith("[") for each in seen.matches) else "grid"
    by = "name" if not any(each.sizes for each in seen.matches) else f"name and {matched}"
    own = "; each by its own time, without the operators it calls" if seen.on == "operators" else ""
    yield Table(
        header=("per step", "", "times before", "after", f"{unit.unit} before", "after", "difference"),
        rows=tuple(rows),
        left=2,
        caption=f"Matched by {by}{own}. The largest differences first; the column sums to its last row.",
    )


def _row(name: str, status: str, matches: list[Match], unit: Scale, kind: str = "plain") -> Row:
    counts = [sum(each.before_count for each in matches), sum(each.after_count for each in matches)]
    before, after = sum(each.before_ns for each in matches), sum(each.after_ns for each in matches)
    cells = (name, status, *(number(times) for times in counts), unit.number(before), unit.number(after))
    return Row((*cells, signed(unit, after - before)), kind=kind)


def _name(match: Match, on: str) -> str:
    sizes = shorten(_sizes(match.sizes), SIZES_WIDTH)
    name = short(match.name) if on == "kernels" else match.name
    return f"{shorten(name, NAME_WIDTH - len(sizes))} {sizes}".rstrip()


def _sizes(told: str) -> str:
    """Sizes of tensors as 32x512x7x7, without the inputs that are none; a grid as it is."""
    shapes = inputs(told, None).shapes if told.startswith("[") else ()
    return " ".join("x".join(map(str, shape)) for shape in shapes if shape) or told


def taken(compared: Comparison) -> Section | None:
    """Memory and energy where a side was measured; None where neither was."""
    one, other = compared.usage
    rows = [
        _taken("GPU memory given out at most", one.allocated_bytes, other.allocated_bytes, size),
        _taken("GPU memory held by PyTorch at most", one.reserved_bytes, other.reserved_bytes, size),
        _taken("memory of the process at most", one.rss_bytes, other.rss_bytes, size),
        _taken("energy of a step", one.step_j, other.step_j, _joule),
        _taken("mean power of the GPU", one.power_w, other.power_w, _watt),
    ]
    told = tuple(row for row in rows if row is not None)
    if not told:
        return None
    names = (side.name for side in compared.sides)
    return Section("Memory and energy", (Table(header=("", *names, "difference"), rows=told),))


def _taken(label: str, before: float | None, after: float | None, words: Callable[[float], str]) -> Row | None:
    if before is None and after is None:
        return None
    cells = (UNKNOWN if value is None else words(value) for value in (before, after))
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


def signed(unit: Scale, ns: int) -> str:
    """A difference with its sign."""
    return f"+{unit.number(ns)}" if ns > 0 else unit.number(ns)
