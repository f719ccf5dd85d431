"""Roofline chart: the matrix work of each operator against the peaks of memory bandwidth and arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.ticker import FuncFormatter

from gpulab.analysis.kernels.interior_kernels import interior_kernels
from gpulab.analysis.kernels.roofline import (
    MAX_KINDS_OF_WORK,
    FlopsUtilisation,
    OperatorWork,
    flops_utilisation,
    operator_work,
)
from gpulab.hardware.gpu_spec import GpuSpec
from gpulab.hardware.lookup import spec_of
from gpulab.hardware.precision import Precision, peak_flops_per_s
from gpulab.run import Run
from gpulab.views.charts.drawing.axes import missing_events_chart, steps_and_ledger
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SOFT_COLOUR, TEXT_COLOUR, Style
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import clean, count, metric, number, percent, scale, shorten

SUBJECT = "Roofline"
MAX_ROWS, MAX_LABELLED = 39, 4
MOSTLY_KNOWN_FRAC = 0.8  # of matrix work: with less the title is not about the whole step
# Name, colour (one of the ledger's), marker and line style of the roof of each precision.
PRECISIONS = {
    Precision.HALF: ("half", "copies", "s", (0, (1, 1.5))),
    Precision.TF32: ("TF32", "communication", "D", (0, (5, 2))),
    Precision.FLOAT32: ("float32", "loader", "o", "-"),
    Precision.FLOAT64: ("float64", "python", "^", "-"),
    Precision.UNKNOWN: ("unknown precision", "", "X", "-"),
}


@dataclass(frozen=True)
class _Point:
    """One kind of work in the chart."""

    work: OperatorWork
    intensity: float  # floating-point operations per byte
    rate: float  # floating-point operations per second
    step_frac: float  # of the time of all kernels in interior steps
    roof: float  # peak of the GPU at this intensity

    @property
    def of_roof(self) -> float:
        """Fraction of the roof."""
        return self.rate / self.roof if self.roof else float("nan")


def roofline(run: Run) -> Chart:
    """Show matrix work by arithmetic intensity and achieved rate, below the GPU's peaks of bandwidth and arithmetic.

    From gpulab.analysis.kernels.roofline and gpulab.hardware, over the interior steps. Bytes are the minimum traffic,
    so the true intensity may be lower. Operators without matrix work, or without recorded shapes, are not shown.
    """
    run_steps, accounts = steps_and_ledger(run)
    if accounts is None:
        return missing_events_chart(run, SUBJECT)
    kernels = interior_kernels(run, run_steps, accounts)
    if kernels is None:
        why = "no GPU kernels were recorded in the steps"
        return missing_data_chart(run, SUBJECT, why, "record on a machine with a GPU, or with gpulab.virtual_gpu")
    spec = spec_of(kernels.gpu)
    if spec is None:
        name = clean(kernels.gpu.name if kernels.gpu else run.source.device, 60)
        return missing_data_chart(
            run, SUBJECT, f"the peaks of this GPU ({name}) are unknown", "see gpulab.hardware.gpus for the known GPUs"
        )
    matrix_work = operator_work(kernels)
    total_ns = float(kernels["dur_ns"][kernels.started_inside].sum())
    points = _points(matrix_work, spec, total_ns)
    if not points:
        why = "no matrix work with known shapes was recorded" if len(run.shape_rows) else "shapes were not recorded"
        return missing_data_chart(run, SUBJECT, why, "record with %%gpuprofile --level deep")
    used = flops_utilisation(kernels, run_steps.traced_ns or 1, matrix_work)
    return single_plot(
        _answer(points, used, spec),
        lambda axes: _draw(axes, points, spec),
        source=run,
        alt=_alt(points, used, spec),
        table=_table(points, spec),
        height_in=4.2,
    )


def _points(matrix_work: Sequence[OperatorWork], spec: GpuSpec, total_ns: float) -> list[_Point]:
    points = []
    for work in matrix_work:
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
    """Return the arithmetic peaks of the precisions in use, highest first; precisions with equal peaks together."""
    used = {point.work.precision for point in points} - {Precision.UNKNOWN}
    precisions_by_peak: dict[float, list[Precision]] = {}
    for precision in PRECISIONS:
        peak = peak_flops_per_s(spec, precision)
        if peak and precision in used | {Precision.FLOAT32}:
            precisions_by_peak.setdefault(peak, []).append(precision)
    return sorted(precisions_by_peak.items(), key=lambda pair: -pair[0])


def _draw(axes: Axes, points: Sequence[_Point], spec: GpuSpec) -> None:
    roofs = _roofs(points, spec)
    highest, knee = roofs[0][0], roofs[0][0] / spec.memory_bytes_per_s
    low = min(0.4 * min(point.intensity for point in points), knee / 10)
    high = max(4 * max(point.intensity for point in points), knee * 20)
    bottom = min(0.3 * min(point.rate for point in points), 0.3 * spec.memory_bytes_per_s * low)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, highest * 2.5))
    _draw_roofs(axes, roofs, spec, low, high)
    for precision, (name, key, marker, _) in PRECISIONS.items():
        selected = [point for point in points if point.work.precision is precision]
        if selected:
            sizes = [20 + 700 * point.step_frac for point in selected]
            axes.scatter(
                [point.intensity for point in selected], [point.rate for point in selected], s=sizes, marker=marker,
                color=colour(key), edgecolor=BACKGROUND, linewidth=0.6, alpha=0.85, label=name, rasterized=True,
            )  # fmt: skip
    _label_largest(axes, points[:MAX_LABELLED])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: metric(value, "FLOP/s")))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))
    axes.set_xlabel("arithmetic intensity, FLOP/byte (log scale)")
    axes.set_ylabel("achieved arithmetic (log scale)")
    legend = axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=5, borderaxespad=0.1, alignment="left",
        title="area: share of kernel time; numbers as in the table", title_fontsize=8.5,
    )  # fmt: skip
    for handle in legend.legend_handles:
        if isinstance(handle, PathCollection):
            handle.set_sizes([40])


def _draw_roofs(
    axes: Axes, roofs: Sequence[tuple[float, list[Precision]]], spec: GpuSpec, low: float, high: float
) -> None:
    highest, memory = roofs[0][0], spec.memory_bytes_per_s
    knee = highest / memory
    axes.plot([low, knee], [memory * low, highest], color=TEXT_COLOUR, linewidth=1.6)
    x = low ** (1 / 3) * knee ** (2 / 3)
    offset: Style = {"textcoords": "offset points", "ha": "right", "fontsize": 8.5, "color": TEXT_COLOUR}
    axes.annotate(f"memory {metric(memory, 'B/s')}", (x, memory * x), xytext=(-8, 2), **offset)
    previous_peak, shifted = float("inf"), False
    for peak, precisions in roofs:
        # Labels of roofs less than half a decade apart would overlap: shift every other one.
        shifted = not shifted and peak * 3 > previous_peak
        previous_peak = peak
        names = ", ".join(PRECISIONS[each][0] for each in precisions)
        axes.plot(
            [peak / memory, high],
            [peak, peak],
            color=TEXT_COLOUR,
            linewidth=1.6,
            linestyle=PRECISIONS[precisions[0]][3],
        )
        axes.annotate(f"{names} {metric(peak, 'FLOP/s')}", (high, peak), xytext=(-120 if shifted else -4, 3), **offset)


def _label_largest(axes: Axes, largest: Sequence[_Point]) -> None:
    """Number the largest points next to their marks, without overlaps."""
    size_pt = [inches * 72 for inches in (5.6, 2.6)]  # about the size of the plot
    ends = [(np.log10(low), np.log10(high)) for low, high in (axes.get_xlim(), axes.get_ylim())]
    positions: list[tuple[float, float]] = []
    for rank, point in enumerate(largest, start=1):
        x, y = (
            (np.log10(value) - low) / (high - low) * size
            for value, (low, high), size in zip((point.intensity, point.rate), ends, size_pt, strict=True)
        )
        reach = 4 + 12 * point.step_frac**0.5
        right, up = 7 + reach, 0.0
        while any(abs(x + right - other) < 13 and abs(y + up - height) < 13 for other, height in positions):
            right += 14
        positions.append((x + right, y + up))
        axes.annotate(
            f"{rank}", (point.intensity, point.rate), xytext=(right, up), textcoords="offset points", ha="center",
            va="center", fontsize=8, color=TEXT_COLOUR, zorder=6,
            bbox={"boxstyle": "circle,pad=0.15", "facecolor": BACKGROUND, "edgecolor": SOFT_COLOUR, "linewidth": 0.6},
        )  # fmt: skip


def _answer(points: Sequence[_Point], used: FlopsUtilisation | None, spec: GpuSpec) -> str:
    if used is None:
        first = points[0]
        return f"The largest matrix work reaches {percent(first.of_roof)} of the roof of the {spec.name}"
    kind = PRECISIONS[used.precision][0].replace("half", "half precision")
    reached = f"{percent(used.kernel_frac)} of the {spec.name}'s {metric(used.peak, 'FLOP/s')} in {kind}"
    if used.known_frac < MOSTLY_KNOWN_FRAC:
        return f"The {percent(used.known_frac)} of matrix work with known shapes reach {reached}"
    return f"Matrix work reaches {reached}; {percent(used.step_frac)} over the whole step"


def _work_name(work: OperatorWork) -> str:
    sizes = " x ".join("[" + ", ".join(map(str, shape)) + "]" for shape in work.inputs.shapes[:2] if shape)
    return clean(shorten(f"{work.op.removeprefix('aten::')} {sizes}".strip(), 70))


def _alt(points: Sequence[_Point], used: FlopsUtilisation | None, spec: GpuSpec) -> str:
    memory_bound = sum(point.step_frac for point in points if point.roof < _peak(spec, point.work.precision))
    largest = "; ".join(
        f"{_work_name(point.work)}: {metric(point.rate, 'FLOP/s')}, {percent(point.of_roof)} of its roof, "
        f"{percent(point.step_frac)} of kernel time"
        for point in points[:MAX_LABELLED]
    )
    all_frac = sum(point.step_frac for point in points)
    share = f" Matrix work with known arithmetic: {percent(used.known_frac)}." if used else ""
    return (
        f"{count(len(points), 'kind')} of matrix work, {percent(all_frac)} of kernel time, below the roof of memory "
        f"({metric(spec.memory_bytes_per_s, 'B/s')}) and arithmetic. {percent(memory_bound)} of kernel time is memory-"
        f"bound. The largest: {largest}.{share} Peaks from {spec.peaks_source}"
    )


def _table(points: Sequence[_Point], spec: GpuSpec) -> TableBlock:
    listed = points[:MAX_ROWS]
    unit = scale(float(max(point.work.total_ns for point in listed)))
    rows = [
        Row(
            (
                f"{rank}. {_work_name(point.work)}", PRECISIONS[point.work.precision][0], f"{point.work.count:,}",
                unit.number(point.work.total_ns), number(point.intensity), number(point.rate / 1e12),
                percent(point.of_roof, 1),
            ),
            key=PRECISIONS[point.work.precision][1] or "rest",
        )
        for rank, point in enumerate(listed, start=1)
    ]  # fmt: skip
    header = ("work", "precision", "calls", unit.unit, "FLOP/byte", "TFLOP/s", "of roof")
    caption = f"In the complete steps. Peaks of the {spec.name}: {spec.peaks_source}."
    omitted = len(points) - len(listed)
    caption += f" {omitted:,} kinds of work are not listed." if omitted else ""
    caption += f" Only the {MAX_KINDS_OF_WORK} largest kinds were analysed." if len(points) >= MAX_KINDS_OF_WORK else ""
    return TableBlock(header=header, rows=tuple(rows), text_columns=2, caption=caption)
