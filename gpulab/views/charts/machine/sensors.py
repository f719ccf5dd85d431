"""Chart of sensor readings over the run: of the GPU, with clock throttling, or else of the host."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from gpulab.analysis.host.cpu_contention import host_samples_in_loop
from gpulab.analysis.machine.clocks import (
    BRAKE,
    HEAT,
    POWER,
    SLOWDOWN,
    Clocks,
    clocks_under_load,
    gpu_samples_in_loop,
    known_median,
    sensed_device,
)
from gpulab.analysis.steps.detection import find_steps
from gpulab.columns import Column, Display
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Gpu, Machine, Run
from gpulab.views import sensor_columns
from gpulab.views.charts.drawing.axes import label_axis, label_time_axis, reduce_points
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, stacked_plots
from gpulab.views.charts.drawing.style import SOFT_COLOUR, TEXT_COLOUR, Style
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import count, number, percent, quantity, scale, size

SUBJECT = "Sensors"
MAX_POINTS = 1200
THROTTLED_FRAC = 0.2  # of the samples under load: from here the title is about throttling
CLOCK = "sm_clock_mhz"  # throttling is marked in its plot
RECORDED = "#59626B"
COLOURS = ("matmul", "copies", "loader", "communication", "python", "alloc", "sync", "launch")  # of the lines


@dataclass(frozen=True)
class _Panel:
    """One plot: the column of a sensor, its readings, and its limit, drawn as a line."""

    column: Column
    at_ns: Ints
    values: NDArray[np.float64]
    key: str  # of its colour
    limit: float | None

    @property
    def show(self) -> sensor_columns.Format:
        """The formatter of its values."""
        return sensor_columns.formatter(self.column)


def sensors(run: Run) -> Chart:
    """Show utilisation, memory, power and clocks of the busiest GPU over the run; without a GPU, the load of the host.

    From the run's samples, gpulab.analysis.machine.clocks and contention. Recording windows are shaded, samples with
    throttled clocks are marked. The driver's utilisation means that a kernel was resident, not how much of the GPU it
    used.
    """
    device = sensed_device(run)
    rows = run.gpu_rows.select(run.gpu_rows["device"] == device)
    on_gpu = len(rows) > 1
    gpu = run.machine.gpus[device] if 0 <= device < len(run.machine.gpus) else None
    plots = _panels(rows, gpu) if on_gpu else _panels(run.host_rows, run.machine) if len(run.host_rows) > 1 else []
    if not plots:
        why, fix = "no sensor was read during this run", "record with %%gpuprofile; a trace file has no sensors"
        if run.source.how == "virtual":
            why, fix = "a virtual GPU has no sensors", "record on a real GPU"
        return missing_data_chart(run, SUBJECT, why, fix)
    throttling = clocks_under_load(run, find_steps(run)) if on_gpu else None
    unit = scale(float(run.span_ns))

    def draw(all_axes: Sequence[Axes]) -> None:
        for axes, panel in zip(all_axes, plots, strict=True):
            _draw(axes, run, panel)
            if panel.column.name == CLOCK:
                _mark_throttling(axes, rows)
        _explain_shading(all_axes[0], run)
        label_time_axis(all_axes[-1].xaxis, unit)
        all_axes[-1].set_xlabel(f"{unit.unit} from the start of the run")

    answer = _gpu_answer(run, rows, throttling) if on_gpu else _host_answer(run)
    return stacked_plots(
        answer,
        draw,
        len(plots),
        source=run,
        alt=_alt(run, plots, rows if on_gpu else None),
        table=_table(plots, rows if on_gpu else None),
        height_in=1.35 + 0.95 * len(plots),
    )


# Data.


def _panels(rows: Rows, owner: Gpu | Machine | None) -> list[_Panel]:
    """Return a plot for each sensor with readings; sensors without readings are omitted, not drawn as zero."""
    panels = []
    for column, key in zip(rows.table.displayed(Display.CHART), itertools.cycle(COLOURS), strict=False):
        at_ns, values = sensor_columns.readings(rows, column)
        all_zero_count = column.unit.format == "count" and not np.nan_to_num(values).any()
        if np.isfinite(values).any() and not all_zero_count:
            panels.append(_Panel(column, at_ns, values, key, sensor_columns.limit(column, owner)))
    return panels


# Drawing.


def _draw(axes: Axes, run: Run, panel: _Panel) -> None:
    for start, end in run.recording.windows_ns:
        axes.axvspan(start, end, facecolor=RECORDED, alpha=0.14, linewidth=0)
    x, values = reduce_points(panel.at_ns, panel.values, MAX_POINTS)
    axes.plot(x, values, color=colour(panel.key), linewidth=1.3, rasterized=len(x) > 500)
    highest = max(float(np.nanmax(values)), 1.0 if panel.column.is_share else 0.0)
    near = panel.limit is not None and highest >= 0.3 * panel.limit
    if panel.limit is not None and near:
        axes.axhline(panel.limit, color=TEXT_COLOUR, linewidth=0.9, linestyle=(0, (5, 2)))
        highest = max(highest, panel.limit)
        style: Style = {"textcoords": "offset points", "fontsize": 8, "color": SOFT_COLOUR, "va": "center"}
        label = f"{panel.column.limit.label if panel.column.limit else ''}\n{panel.show(panel.limit)}"
        axes.annotate(label, (1, panel.limit), xycoords=("axes fraction", "data"), xytext=(4, -3), **style)
    axes.set_ylim(0, 1.1 * highest or 1.0)
    unit, symbol = sensor_columns.axis_unit(panel.column, highest)
    label_axis(axes.yaxis, unit, 3)
    axes.set_title(sensor_columns.axis_label(panel.column, symbol), loc="left", fontsize=8.5, color=SOFT_COLOUR, pad=3)


def _mark_throttling(axes: Axes, rows: Rows) -> None:
    """Mark samples in which the driver reported a reason for lower clocks."""
    reasons = _throttling(rows)
    for (name, marker, key), mask in reasons:
        x, values = rows["at_ns"][mask], rows[CLOCK][mask]
        stride = max(1, len(x) // 300)
        style: Style = {"marker": marker, "linestyle": "none", "markersize": 5, "markeredgecolor": TEXT_COLOUR}
        axes.plot(x[::stride], values[::stride], color=colour(key), markeredgewidth=0.4, label=name, zorder=4, **style)
    if reasons:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0, fontsize=8, handletextpad=0.2)


_REASONS = (
    (POWER, ("throttled by the power limit", "v", "loader")),
    (HEAT, ("throttled by temperature", "^", "python")),
    (BRAKE | SLOWDOWN, ("hardware slowdown", "D", "alloc")),
)


def _throttling(rows: Rows) -> list[tuple[tuple[str, str, str], NDArray[np.bool_]]]:
    bits = rows["throttle_bits"]
    known_bits = np.where(np.isnan(bits), 0, bits).astype(np.int64)
    return [(style, mask) for reason_bits, style in _REASONS if (mask := (known_bits & reason_bits) != 0).any()]


def _explain_shading(axes: Axes, run: Run) -> None:
    if run.recording.windows_ns:
        axes.set_title("shaded: events recorded", loc="right", fontsize=8, color=SOFT_COLOUR, pad=3)


# Title, description and table.


def _gpu_answer(run: Run, rows: Rows, throttling: Clocks | None) -> str:
    if throttling is not None and throttling.clock_mhz:
        shares = (
            ("power limit", throttling.power_throttled_frac, throttling.power_frac),
            ("temperature", throttling.heat_throttled_frac, throttling.heat_frac),
        )
        for name, counted_frac, sampled_frac in shares:
            share = counted_frac if counted_frac is not None else sampled_frac
            if share and share >= THROTTLED_FRAC:
                normal = f" of {number(throttling.unthrottled_mhz)}" if throttling.unthrottled_mhz else ""
                counted = f"for {percent(share)} of the time"
                sampled = f"in {percent(share)} of the samples under load"
                when = counted if counted_frac is not None else sampled
                return f"Clocks are throttled by the {name} {when}: {number(throttling.clock_mhz)}{normal} MHz"
        if throttling.brake_frac and throttling.brake_frac >= THROTTLED_FRAC:
            brake_share = f"{percent(throttling.brake_frac)} of the samples under load"
            return f"Hardware slowdown of the clocks in {brake_share}: {quantity(throttling.clock_mhz, 'MHz')}"
    loop_rows = gpu_samples_in_loop(run, find_steps(run), sensed_device(run))
    samples = loop_rows if len(loop_rows) else rows
    facts = []
    if _has_values(samples["util_frac"]):
        facts.append(f"Mean GPU utilisation {percent(_mean(samples['util_frac']))}")
    if (power := known_median(samples["power_w"])) is not None:
        facts.append(f"median power {quantity(power, 'W')}")
    if (used := known_median(samples["memory_used_bytes"])) is not None:
        facts.append(f"{size(used)} in use")
    return ", ".join(facts) or "Few readings from the GPU's sensors"


def _host_answer(run: Run) -> str:
    rows = host_samples_in_loop(run, find_steps(run))
    rows = rows if len(rows) else run.host_rows
    facts = [f"Mean load of all cores {percent(_mean(rows['cpu_frac']))}"] if _has_values(rows["cpu_frac"]) else []
    if _has_values(rows["rss_bytes"]):
        facts.append(f"peak memory of this process {size(float(np.nanmax(rows['rss_bytes'])))}")
    text = ", ".join(facts) or "Few readings from the host's sensors"
    return f"{text[:1].upper()}{text[1:]}"


def _has_values(values: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(values).any())


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.nanmean(values))


def _alt(run: Run, plots: Sequence[_Panel], rows: Rows | None) -> str:
    readings = "; ".join(
        f"{panel.column.label.partition(',')[0]} mean {panel.show(_mean(panel.values))}, "
        f"range {panel.show(float(np.nanmin(panel.values)))} to {panel.show(float(np.nanmax(panel.values)))}"
        for panel in plots
    )
    throttling = (
        [f"{name} in {percent(float(mask.mean()))} of samples" for (name, _, _), mask in _throttling(rows)]
        if rows
        else []
    )
    windows = len(run.recording.windows_ns)
    shaded = f" Events were recorded in {count(windows, 'window')}, shaded." if windows else ""
    clock_text = f"; clocks {', '.join(throttling)}" if throttling else ""
    return f"{count(len(plots), 'plot')} over the run: {readings}{clock_text}.{shaded}"


def _table(plots: Sequence[_Panel], rows: Rows | None) -> TableBlock:
    body = [
        Row(
            (
                panel.column.label, panel.show(_mean(panel.values)),
                panel.show(float(np.nanmin(panel.values))), panel.show(float(np.nanmax(panel.values))),
                panel.show(panel.limit) if panel.limit else "",
            )
        )
        for panel in plots
    ]  # fmt: skip
    for (name, _, _), mask in _throttling(rows) if rows else ():
        body.append(Row((f"clocks {name}", f"{percent(float(mask.mean()))} of samples", "", "", "")))
    caption = f"Over {len(plots[0].values):,} samples of the whole run."
    return TableBlock(header=("", "mean", "min", "max", "limit"), rows=tuple(body), caption=caption)
