"""The kernels that take most time, each with its family, and all others together."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gpulab.analysis.kernels.classification import Family, family_of
from gpulab.analysis.kernels.interior import short
from gpulab.analysis.kernels.table import kernel_table
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import Kind
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.lettering import fitting
from gpulab.views.charts.drawing.steps_and_ledger import bar_rows, beside, in_unit
from gpulab.views.charts.drawing.style import INK, PAPER, Dress
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import Scale, clean, count, percent, scale, shorten

SUBJECT = "Kernels"
SHOWN, MOST_ROWS = 12, 38
NAME_IN = 2.5
LONGEST_REST = 2  # times the first bar: a longer one would leave no room for the others
MOST_READ = 4000  # characters of a name
# Kernels that do what they are given as a template, what they are called here, and how such templates are named.
_GENERAL = {
    "vectorized_elementwise_kernel": "elementwise",
    "unrolled_elementwise_kernel": "elementwise",
    "elementwise_kernel": "elementwise",
    "reduce_kernel": "reduce",
    "multi_tensor_apply_kernel": "multi_tensor_apply",
}
_DOES = re.compile(r"\b(?:launch_)?(\w*?)(?:_?[Ff]unctor|_kernel_cuda|_kernel_impl|_scalar)\b")
# Of each family: its name, its colour (one of the ledger's), and a hatch, so that no colour stands alone.
FAMILIES = {
    Family.MATRIX: ("matrix", "matmul", ""),
    Family.STREAM: ("elementwise", "kernels", ""),
    Family.OPTIMIZER: ("optimizer", "python", "\\\\\\\\"),
    Family.LAYOUT: ("layout", "loader", "...."),
    Family.SCATTERED: ("indexing", "sync", "----"),
    Family.COMPILED: ("compiled", "copies", "xxxx"),
    Family.COLLECTIVE: ("communication", "communication", "////"),
    Family.OTHER: ("other", "", ""),
}


@dataclass(frozen=True)
class _Kernel:
    """One line of the table of kernels."""

    name: str
    family: Family
    count: int
    total_ns: int
    share_frac: float
    median_ns: int


def kernels(run: Run) -> Chart:
    """The dozen kernels that took most time in all that was recorded, their family, and the rest together.

    From gpulab.analysis.kernel_table. Times of kernels that ran beside one another both count: this is not idle or
    busy time. It cannot show why a kernel is slow: `roofline` does, where sizes were recorded.
    """
    table = kernel_table(run)
    if not len(table):
        why = "no GPU work was recorded in this run"
        return nothing_to_draw(run, SUBJECT, why, "profile on a machine with a GPU, or on gpulab.virtual_gpu")
    found = _read(table, min(MOST_ROWS, len(table)))
    total_ns, names = int(table["total_ns"].sum()), len(table)
    shown = found[:SHOWN]
    unit = scale(float(max(shown[0].total_ns, 1)))
    rest_ns = total_ns - sum(each.total_ns for each in shown)

    def draw(axes: Axes) -> None:
        _draw(axes, shown, rest_ns, total_ns, names, unit)

    return chart(
        _answer(shown, total_ns, names),
        draw,
        source=run,
        alt=_alt(shown, rest_ns, total_ns, names, unit),
        table=_table(found, table, total_ns),
        height_in=1.75 + 0.25 * (len(shown) + (rest_ns > 0)),
    )


def _read(table: Rows, count: int) -> list[_Kernel]:
    words = table.words("name")
    columns = (table[name][:count].tolist() for name in ("kind", "count", "total_ns", "share_frac", "median_ns"))
    return [
        _Kernel(
            words[row] or "a kernel without a name",
            Family.COLLECTIVE if kind == Kind.COLLECTIVE else family_of(words[row] or ""),
            often,
            total,
            share,
            middle,
        )
        for row, (kind, often, total, share, middle) in enumerate(zip(*columns, strict=True))
    ]


def called(name: str) -> str:
    """A kernel's name for a picture: without its templates, but with the one that tells what a general kernel does."""
    bare = name[:MOST_READ]
    if "enable_if<" in bare:  # a return type before the name
        bare = bare.partition(">::type ")[2] or bare
    told = short(bare)
    does = next((each for each in _DOES.findall(bare) if each not in told), "") if told in _GENERAL else ""
    return clean(shorten(f"{_GENERAL[told]}: {does}" if does else told, 90)) or "?"


def _draw(axes: Axes, shown: list[_Kernel], rest_ns: int, total_ns: int, names: int, unit: Scale) -> None:
    for place, each in enumerate(shown):
        _, key, hatch = FAMILIES[each.family]
        axes.barh(place, each.total_ns, height=0.74, facecolor=colour(key), edgecolor=PAPER, hatch=hatch, linewidth=0)
        told = f"{unit(each.total_ns)}  {percent(each.share_frac)}  {count(each.count, 'run')}"
        beside(axes, each.total_ns, place, told)
    drawn = 0
    labels = [fitting(called(each.name), NAME_IN, 8.5) for each in shown]
    if rest_ns > 0:
        place = len(shown)
        drawn = min(rest_ns, LONGEST_REST * shown[0].total_ns)
        axes.barh(place, drawn, height=0.74, facecolor="none", edgecolor=NEUTRAL, linewidth=1.0)
        more = " (bar cut)" if rest_ns > drawn else ""
        beside(axes, drawn, place, f"{unit(rest_ns)}  {percent(rest_ns / total_ns)}{more}")
        labels.append(f"{names - len(shown):,} others")
    bar_rows(axes, labels, 1.38 * max(shown[0].total_ns, drawn))
    in_unit(axes.xaxis, unit)
    axes.set_xlabel(f"{unit.unit} in all that was recorded")
    families = [family for family in FAMILIES if any(each.family is family for each in shown)]
    keys = [
        Patch(facecolor=colour(FAMILIES[each][1]), edgecolor=PAPER, hatch=FAMILIES[each][2], linewidth=0)
        for each in families
    ]
    names_of = [FAMILIES[each][0] for each in families]
    where: Dress = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
    axes.legend(keys, names_of, ncols=4, **where, columnspacing=1.2, handletextpad=0.5, labelcolor=INK)


def _answer(shown: list[_Kernel], total_ns: int, names: int) -> str:
    first = shown[0]
    took = sum(each.total_ns for each in shown) / max(1, total_ns)
    most = f"{fitting(called(first.name), 3.2, 11)} takes {percent(first.share_frac)} of kernel time"
    if names <= len(shown):
        return f"{most}, the most of {count(names, 'kernel')}"
    return f"{most}; the {len(shown)} largest of {count(names, 'kernel')} take {percent(took)}"


def _families(shown: list[_Kernel], total_ns: int) -> str:
    by: dict[Family, int] = {}
    for each in shown:
        by[each.family] = by.get(each.family, 0) + each.total_ns
    ranked = sorted(by.items(), key=lambda each: -each[1])
    return ", ".join(f"{FAMILIES[family][0]} {percent(ns / max(1, total_ns))}" for family, ns in ranked)


def _alt(shown: list[_Kernel], rest_ns: int, total_ns: int, names: int, unit: Scale) -> str:
    told = "; ".join(
        f"{shorten(called(each.name), 50)} {unit(each.total_ns)}, {count(each.count, 'run')}" for each in shown[:5]
    )
    rest = f" The other {names - len(shown):,} take {percent(rest_ns / max(1, total_ns))}." if rest_ns > 0 else ""
    by = _families(shown, total_ns)
    return f"A bar for each kernel, most time first: {told}. By family, of those shown: {by}.{rest}"


def _table(found: list[_Kernel], table: Rows, total_ns: int) -> Table:
    unit = scale(float(max(found[0].total_ns, 1)))
    each_unit = scale(float(np.max(table["median_ns"][: len(found)], initial=1)))
    rows = [
        Row(
            (
                clean(each.name, 160), FAMILIES[each.family][0], f"{each.count:,}", unit.number(each.total_ns),
                percent(each.share_frac, 1), each_unit.number(each.median_ns),
            ),
            key=FAMILIES[each.family][1] or "rest",
        )
        for each in found
    ]  # fmt: skip
    left = len(table) - len(found)
    if left:
        rest = total_ns - sum(each.total_ns for each in found)
        count = int(table["count"].sum()) - sum(each.count for each in found)
        rows.append(
            Row((f"{left:,} others", "", f"{count:,}", unit.number(rest), percent(rest / max(1, total_ns), 1), ""))
        )
    rows.append(
        Row(("together", "", f"{int(table['count'].sum()):,}", unit.number(total_ns), "100.0 %", ""), kind="total")
    )
    header = ("kernel", "family", "runs", f"{unit.unit}", "share", f"median, {each_unit.unit}")
    return Table(header=header, rows=tuple(rows), left=2)
