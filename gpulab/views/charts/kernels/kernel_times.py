"""Chart of the kernels with most time, each with its family, and the sum of all others."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from gpulab.analysis.kernels.classification import KernelFamily, kernel_family
from gpulab.analysis.kernels.interior_kernels import short_kernel_name
from gpulab.analysis.kernels.kernel_table import kernel_table
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import EventKind
from gpulab.views.charts.drawing.axes import bar_rows, label_bar_end, label_time_axis
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, TEXT_COLOUR, Style
from gpulab.views.charts.drawing.text_layout import shorten_to_width
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import Scale, clean, count, percent, scale, shorten

SUBJECT = "Kernels"
MAX_BARS, MAX_ROWS = 12, 38
NAME_IN = 2.5
LONGEST_REST = 2  # times the first bar: a longer bar is cut
MAX_NAME = 4000  # characters
# Generic kernels, whose operation is a template argument: their short names, and the pattern of the operation.
_GENERIC = {
    "vectorized_elementwise_kernel": "elementwise",
    "unrolled_elementwise_kernel": "elementwise",
    "elementwise_kernel": "elementwise",
    "reduce_kernel": "reduce",
    "multi_tensor_apply_kernel": "multi_tensor_apply",
}
_OPERATION = re.compile(r"\b(?:launch_)?(\w*?)(?:_?[Ff]unctor|_kernel_cuda|_kernel_impl|_scalar)\b")
# Name, colour (one of the ledger's) and hatch of each family; the hatch distinguishes it without colour.
FAMILIES = {
    KernelFamily.MATRIX: ("matrix", "matmul", ""),
    KernelFamily.STREAM: ("elementwise", "kernels", ""),
    KernelFamily.OPTIMIZER: ("optimizer", "python", "\\\\\\\\"),
    KernelFamily.LAYOUT: ("layout", "loader", "++++"),
    KernelFamily.GATHER_SCATTER: ("indexing", "sync", "----"),
    KernelFamily.COMPILED: ("compiled", "copies", "xxxx"),
    KernelFamily.COLLECTIVE: ("communication", "communication", "////"),
    KernelFamily.OTHER: ("other", "", ""),
}


@dataclass(frozen=True)
class _Kernel:
    """One row of the table of kernels."""

    name: str
    family: KernelFamily
    count: int
    total_ns: int
    share_frac: float
    median_ns: int


def kernels(run: Run) -> Chart:
    """Show the twelve kernels with most time in the whole recording, their families, and the sum of all others.

    From gpulab.analysis.kernel_table. Overlapping kernels both count, so the sum is not the busy time of the GPU. For
    how close a kernel is to the limits of the GPU, see `roofline`, if shapes were recorded.
    """
    table = kernel_table(run)
    if not len(table):
        why = "no GPU work was recorded in this run"
        return missing_data_chart(run, SUBJECT, why, "record on a machine with a GPU, or with gpulab.virtual_gpu")
    rows = _read(table, min(MAX_ROWS, len(table)))
    total_ns, names = int(table["total_ns"].sum()), len(table)
    largest = rows[:MAX_BARS]
    unit = scale(float(max(largest[0].total_ns, 1)))
    rest_ns = total_ns - sum(each.total_ns for each in largest)

    def draw(axes: Axes) -> None:
        _draw(axes, largest, rest_ns, total_ns, names, unit)

    return single_plot(
        _answer(largest, total_ns, names),
        draw,
        source=run,
        alt=_alt(largest, rest_ns, total_ns, names, unit),
        table=_table(rows, table, total_ns),
        height_in=1.75 + 0.25 * (len(largest) + (rest_ns > 0)),
    )


def _read(table: Rows, count: int) -> list[_Kernel]:
    kernel_names = table.text("name")
    columns = (table[name][:count].tolist() for name in ("kind", "count", "total_ns", "share_frac", "median_ns"))
    return [
        _Kernel(
            kernel_names[row] or "unnamed kernel",
            KernelFamily.COLLECTIVE if kind == EventKind.COLLECTIVE.value else kernel_family(kernel_names[row] or ""),
            launches,
            total,
            share,
            median,
        )
        for row, (kind, launches, total, share, median) in enumerate(zip(*columns, strict=True))
    ]


def kernel_label(name: str) -> str:
    """Return the short name of a kernel: without template arguments, except the operation of a generic kernel."""
    name = name[:MAX_NAME]
    if "enable_if<" in name:  # a return type before the name
        name = name.partition(">::type ")[2] or name
    short_name = short_kernel_name(name)
    operation = ""
    if short_name in _GENERIC:
        operation = next((match for match in _OPERATION.findall(name) if match not in short_name), "")
    return clean(shorten(f"{_GENERIC[short_name]}: {operation}" if operation else short_name, 90)) or "?"


def _draw(axes: Axes, largest: list[_Kernel], rest_ns: int, total_ns: int, names: int, unit: Scale) -> None:
    for row, kernel in enumerate(largest):
        _, key, hatch = FAMILIES[kernel.family]
        axes.barh(
            row, kernel.total_ns, height=0.74, facecolor=colour(key), edgecolor=BACKGROUND, hatch=hatch, linewidth=0
        )
        label = f"{unit(kernel.total_ns)}  {percent(kernel.share_frac)}  {count(kernel.count, 'launch')}"
        label_bar_end(axes, kernel.total_ns, row, label)
    rest_bar_ns = 0
    labels = [shorten_to_width(kernel_label(each.name), NAME_IN, 8.5) for each in largest]
    if rest_ns > 0:
        rest_bar_ns = min(rest_ns, LONGEST_REST * largest[0].total_ns)
        axes.barh(len(largest), rest_bar_ns, height=0.74, facecolor="none", edgecolor=NEUTRAL, linewidth=1.0)
        cut = " (bar cut)" if rest_ns > rest_bar_ns else ""
        label_bar_end(axes, rest_bar_ns, len(largest), f"{unit(rest_ns)}  {percent(rest_ns / total_ns)}{cut}")
        labels.append(f"{names - len(largest):,} others")
    bar_rows(axes, labels, 1.62 * max(largest[0].total_ns, rest_bar_ns))
    label_time_axis(axes.xaxis, unit)
    axes.set_xlabel(f"{unit.unit} in the whole recording")
    families = [family for family in FAMILIES if any(each.family is family for each in largest)]
    keys = [
        Patch(facecolor=colour(FAMILIES[each][1]), edgecolor=BACKGROUND, hatch=FAMILIES[each][2], linewidth=0)
        for each in families
    ]
    family_names = [FAMILIES[each][0] for each in families]
    position: Style = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.2}
    axes.legend(keys, family_names, ncols=4, **position, columnspacing=1.2, handletextpad=0.5, labelcolor=TEXT_COLOUR)


def _answer(largest: list[_Kernel], total_ns: int, names: int) -> str:
    first = largest[0]
    share = sum(each.total_ns for each in largest) / max(1, total_ns)
    first_share = (
        f"{shorten_to_width(kernel_label(first.name), 3.2, 11)} takes {percent(first.share_frac)} of kernel time"
    )
    if names <= len(largest):
        return f"{first_share}, the longest of {count(names, 'kernel')}"
    return f"{first_share}; the {len(largest)} longest of {count(names, 'kernel')} take {percent(share)}"


def _families(largest: list[_Kernel], total_ns: int) -> str:
    ns_by_family: dict[KernelFamily, int] = {}
    for kernel in largest:
        ns_by_family[kernel.family] = ns_by_family.get(kernel.family, 0) + kernel.total_ns
    ranked = sorted(ns_by_family.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{FAMILIES[family][0]} {percent(ns / max(1, total_ns))}" for family, ns in ranked)


def _alt(largest: list[_Kernel], rest_ns: int, total_ns: int, names: int, unit: Scale) -> str:
    kernels = "; ".join(
        f"{shorten(kernel_label(each.name), 50)} {unit(each.total_ns)}, {count(each.count, 'launch')}"
        for each in largest[:5]
    )
    rest = f" The other {names - len(largest):,} take {percent(rest_ns / max(1, total_ns))}." if rest_ns > 0 else ""
    families = _families(largest, total_ns)
    return f"A bar for each kernel, longest first: {kernels}. By family, of the kernels shown: {families}.{rest}"


def _table(kernels: list[_Kernel], table: Rows, total_ns: int) -> TableBlock:
    unit = scale(float(max(kernels[0].total_ns, 1)))
    launch_unit = scale(float(np.max(table["median_ns"][: len(kernels)], initial=1)))
    rows = [
        Row(
            (
                clean(each.name, 160), FAMILIES[each.family][0], f"{each.count:,}", unit.number(each.total_ns),
                percent(each.share_frac, 1), launch_unit.number(each.median_ns),
            ),
            key=FAMILIES[each.family][1] or "rest",
        )
        for each in kernels
    ]  # fmt: skip
    omitted = len(table) - len(kernels)
    if omitted:
        rest = total_ns - sum(each.total_ns for each in kernels)
        count = int(table["count"].sum()) - sum(each.count for each in kernels)
        rows.append(
            Row((f"{omitted:,} others", "", f"{count:,}", unit.number(rest), percent(rest / max(1, total_ns), 1), ""))
        )
    rows.append(
        Row(("total", "", f"{int(table['count'].sum()):,}", unit.number(total_ns), "100.0 %", ""), kind="total")
    )
    header = ("kernel", "family", "launches", f"{unit.unit}", "share", f"median, {launch_unit.unit}")
    return TableBlock(header=header, rows=tuple(rows), text_columns=2)
