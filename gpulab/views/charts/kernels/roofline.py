"""Each operator's kernels against what the GPU can do: arithmetic over memory traffic, below the roof of both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.ticker import FuncFormatter

from gpulab.analysis.kernels.interior import interior
from gpulab.analysis.kernels.roofline import MOST, Utilisation, Work, utilisation, works
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.hardware.precision import Precision, peak_flops_per_s
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.steps_and_ledger import accounted, without_events
from gpulab.views.charts.drawing.style import INK, PAPER, SOFT, Dress
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import clean, count, metric, number, percent, scale, shorten

SUBJECT = "Roofline"
MOST_ROWS, MOST_NAMED = 39, 4
MOSTLY_TOLD_FRAC = 0.8  # of matrix work: with less of it known nothing is said of the whole step
# Of each precision: its name, its colour (one of the ledger's), its mark, and the dashes of its roof.
PRECISIONS = {
    Precision.HALF: ("half", "copies", "s", (0, (1, 1.5))),
    Precision.TF32: ("TF32", "communication", "D", (0, (5, 2))),
    Precision.FLOAT32: ("float32", "loader", "o", "-"),
    Precision.FLOAT64: ("float64", "python", "^", "-"),
    Precision.UNKNOWN: ("precision not told", "", "X", "-"),
}


@dataclass(frozen=True)
class _Point:
    """One kind of work below the roof."""

    work: Work
    intensity: float  # floating-point operations per byte
    rate: float  # floating-point operations per second
    step_frac: float  # of the time of all interior kernels
    roof: float  # what the GPU could do at this intensity

    @property
    def of_roof(self) -> float:
        """Of what is possible."""
        return self.rate / self.roof if self.roof else float("nan")


def roofline(run: Run) -> Chart:
    """Matrix work by arithmetic intensity and rate reached, below the GPU's peaks of memory and arithmetic.

    From gpulab.analysis.kernels.roofline and gpulab.hardware, over the interior steps. Bytes are the least that must
    move, so a point may lie right of where it should. It cannot show operators without matrix work, or whose sizes
    were not recorded.
    """
    found, accounts = accounted(run)
    if accounts is None:
        return without_events(run, SUBJECT)
    kernels = interior(run, found, accounts)
    if kernels is None:
        why = "no GPU kernels were recorded in the steps"
        return nothing_to_draw(run, SUBJECT, why, "profile on a machine with a GPU, or on gpulab.virtual_gpu")
    spec = spec_of(kernels.gpu)
    if spec is None:
        name = clean(kernels.gpu.name if kernels.gpu else run.source.device, 60)
        return nothing_to_draw(
            run, SUBJECT, f"the peaks of this GPU ({name}) are not known", "gpulab.hardware.gpus lists some"
        )
    seen = works(kernels)
    total_ns = float(kernels["dur_ns"][kernels.begun].sum())
    points = _points(seen, spec, total_ns)
    if not points:
        why = "no matrix work with known sizes was recorded" if len(run.shape_rows) else "sizes were not recorded"
        return nothing_to_draw(run, SUBJECT, why, "record with shapes, as %%gpuprofile does on a GPU")
    used = utilisation(kernels, found.traced_ns or 1, seen)
    return chart(
        _answer(points, used, spec),
        lambda axes: _draw(axes, points, spec),
        source=run,
        alt=_alt(points, used, spec),
        table=_table(points, spec),
        height_in=4.2,
    )


def _points(seen: Sequence[Work], spec: GpuSpec, total_ns: float) -> list[_Point]:
    points = []
    for work in seen:
        rate = work.flops_per_s
        if not work.flops or not work.bytes or not rate:
            continue
        intensity = work.flops / work.bytes
        roof = min(_peak(spec, work.precision), spec.memory_bytes_per_s * intensity)
        points.append(_Point(work, intensity, rate, work.total_ns / max(1.0, total_ns), roof))
    return points


def _peak(spec: GpuSpec, precision: Precision) -> float:
    return peak_flops_per_s(spec, precision) or spec.float32_flops_per_s


def _roofs(points: Sequence[_Point], spec: GpuSpec) -> list[tuple[float, list[Precision]]]:
    """The peaks of arithmetic of the precisions that were used, the highest first; those that are equal as one."""
    used = {point.work.precision for point in points} - {Precision.UNKNOWN}
    by: dict[float, list[Precision]] = {}
    for precision in PRECISIONS:
        peak = peak_flops_per_s(spec, precision)
        if peak and precision in used | {Precision.FLOAT32}:
            by.setdefault(peak, []).append(precision)
    return sorted(by.items(), key=lambda each: -each[0])


def _draw(axes: Axes, points: Sequence[_Point], spec: GpuSpec) -> None:
    roofs = _roofs(points, spec)
    highest, knee = roofs[0][0], roofs[0][0] / spec.memory_bytes_per_s
    low = min(0.4 * min(point.intensity for point in points), knee / 10)
    high = max(4 * max(point.intensity for point in points), knee * 20)
    bottom = min(0.3 * min(point.rate for point in points), 0.3 * spec.memory_bytes_per_s * low)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, highest * 2.5))
    _draw_roofs(axes, roofs, spec, low, high)
    for precision, (name, key, marker, _) in PRECISIONS.items():
        mine = [point for point in points if point.work.precision is precision]
        if mine:
            sizes = [20 + 700 * point.step_frac for point in mine]
            axes.scatter(
                [point.intensity for point in mine], [point.rate for point in mine], s=sizes, marker=marker,
                color=colour(key), edgecolor=PAPER, linewidth=0.6, alpha=0.85, label=name, rasterized=True,
            )  # fmt: skip
    _number(axes, points[:MOST_NAMED])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: metric(value, "FLOP/s")))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_xlabel("floating-point operations per byte that must move (log scale)")
    axes.set_ylabel("arithmetic reached (log scale)")
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, borderaxespad=0.1, alignment="left",
        title="size: share of kernel time; the largest are numbered as in the table", title_fontsize=8.5,
    )  # fmt: skip
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([40])


def _draw_roofs(
    axes: Axes, roofs: Sequence[tuple[float, list[Precision]]], spec: GpuSpec, low: float, high: float
) -> None:
    highest, memory = roofs[0][0], spec.memory_bytes_per_s
    knee = highest / memory
    axes.plot([low, knee], [memory * low, highest], color=INK, linewidth=1.6)
    at = low ** (1 / 3) * knee ** (2 / 3)
    offset: Dress = {"textcoords": "offset points", "ha": "right", "fontsize": 8.5, "color": INK}
    axes.annotate(f"memory {metric(memory, 'B/s')}", (at, memory * at), xytext=(-8, 2), **offset)
    above, aside = float("inf"), False
    for peak, precisions in roofs:
        # Two roofs less than half a decade apart leave no room for two labels above one another.
        aside = not aside and peak * 3 > above
        above = peak
        names = ", ".join(PRECISIONS[each][0] for each in precisions)
        axes.plot([peak / memory, high], [peak, peak], color=INK, linewidth=1.6, linestyle=PRECISIONS[precisions[0]][3])
        axes.annotate(f"{names} {metric(peak, 'FLOP/s')}", (high, peak), xytext=(-120 if aside else -4, 3), **offset)


def _number(axes: Axes, largest: Sequence[_Point]) -> None:
    """The largest numbered, beside their marks, each where no other number stands."""
    size_pt = [inches * 72 for inches in (5.6, 2.6)]  # about the plot's
    ends = [(np.log10(low), np.log10(high)) for low, high in (axes.get_xlim(), axes.get_ylim())]
    taken: list[tuple[float, float]] = []
    for place, point in enumerate(largest, start=1):
        x, y = (
            (np.log10(value) - low) / (high - low) * size
            for value, (low, high), size in zip((point.intensity, point.rate), ends, size_pt, strict=True)
        )
        reach = 4 + 12 * point.step_frac**0.5
        right, up = 7 + reach, 0.0
        while any(abs(x + right - other) < 13 and abs(y + up - height) < 13 for other, height in taken):
            right += 14
        taken.append((x + right, y + up))
        axes.annotate(
            f"{place}", (point.intensity, point.rate), xytext=(right, up), textcoords="offset points", ha="center",
            va="center", fontsize=8, color=INK, zorder=6,
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": PAPER, "edgecolor": SOFT, "linewidth": 0.6},
        )  # fmt: skip


def _answer(points: Sequence[_Point], used: Utilisation | None, spec: GpuSpec) -> str:
    if used is None:
        first = points[0]
        return f"The largest matrix work reaches {percent(first.of_roof)} of what the {spec.name} allows it"
    kind = PRECISIONS[used.precision][0].replace("half", "half precision")
    reached = f"{percent(used.kernel_frac)} of the {spec.name}'s {metric(used.peak, 'FLOP/s')} in {kind}"
    if used.told_frac < MOSTLY_TOLD_FRAC:
        return f"The {percent(used.told_frac)} of matrix work whose sizes are known reaches {reached}"
    return f"Matrix work reaches {reached}; over the whole step that is {percent(used.step_frac)}"


def _named(work: Work) -> str:
    sizes = " x ".join("[" + ", ".join(map(str, shape)) + "]" for shape in work.given.shapes[:2] if shape)
    return clean(shorten(f"{work.op.removeprefix('aten::')} {sizes}".strip(), 70))


def _alt(points: Sequence[_Point], used: Utilisation | None, spec: GpuSpec) -> str:
    bound = sum(point.step_frac for point in points if point.roof < _peak(spec, point.work.precision))
    told = "; ".join(
        f"{_named(point.work)}: {metric(point.rate, 'FLOP/s')}, {percent(point.of_roof)} of its roof, "
        f"{percent(point.step_frac)} of kernel time"
        for point in points[:MOST_NAMED]
    )
    all_frac = sum(point.step_frac for point in points)
    share = f" Matrix work whose arithmetic is known: {percent(used.told_frac)}." if used else ""
    return (
        f"{count(len(points), 'kind')} of matrix work, {percent(all_frac)} of kernel time, below the roof of memory "
        f"({metric(spec.memory_bytes_per_s, 'B/s')}) and arithmetic. {percent(bound)} of kernel time lies where memory "
        f"is the limit. The largest: {told}.{share} Peaks from {spec.peaks_source}"
    )


def _table(points: Sequence[_Point], spec: GpuSpec) -> Table:
    shown = points[:MOST_ROWS]
    unit = scale(float(max(point.work.total_ns for point in shown)))
    rows = [
        Row(
            (
                f"{place}. {_named(point.work)}", PRECISIONS[point.work.precision][0], f"{point.work.count:,}",
                unit.number(point.work.total_ns), number(point.intensity), number(point.rate / 1e12),
                percent(point.of_roof, 1),
            ),
            key=PRECISIONS[point.work.precision][1] or "rest",
        )
        for place, point in enumerate(shown, start=1)
    ]  # fmt: skip
    header = ("work", "precision", "calls", unit.unit, "FLOP/byte", "TFLOP/s", "of its roof")
    caption = f"In the interior steps. Peaks of the {spec.name}: {spec.peaks_source}."
    left = len(points) - len(shown)
    caption += f" {left:,} kinds of work are left out." if left else ""
    caption += f" Only the {MOST} largest kinds were looked at." if len(points) >= MOST else ""
    return Table(header=header, rows=tuple(rows), left=2, caption=caption)
