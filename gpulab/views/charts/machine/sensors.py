"""What the sensors said over the run: the GPU's, with what held its clocks down, or else the host's."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from gpulab.analysis.host.cpu_contention import in_the_loop
from gpulab.analysis.machine.clocks import (
    BRAKE,
    HEAT,
    POWER,
    SLOWDOWN,
    Clocks,
    clocks,
    median,
    of_the_loop,
    sensed_device,
)
from gpulab.analysis.steps.detection import steps
from gpulab.columns import Column, Display
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Gpu, Machine, Run
from gpulab.views import sensor_columns
from gpulab.views.charts.drawing.chart import Chart, nothing_to_draw, panels
from gpulab.views.charts.drawing.steps_and_ledger import by, in_unit, thinned
from gpulab.views.charts.drawing.style import INK, SOFT, Dress
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import count, number, percent, quantity, scale, size

SUBJECT = "Sensors"
MOST_POINTS = 1200
HELD_FRAC = 0.2  # of the samples under load: held down so often is the answer
CLOCK = "sm_clock_mhz"  # its plot has the marks of throttling
RECORDED = "#59626B"
COLOURS = ("matmul", "copies", "loader", "communication", "python", "alloc", "sync", "launch")  # of the lines, in turn


@dataclass(frozen=True)
class _Panel:
    """One plot: a sensor's column, its readings, and the limit drawn as a line."""

    column: Column
    at_ns: Ints
    values: NDArray[np.float64]
    key: str  # of its colour
    limit: float | None

    @property
    def show(self) -> sensor_columns.Format:
        """How one of its values is written."""
        return sensor_columns.formatter(self.column)


def sensors(run: Run) -> Chart:
    """Utilisation, memory, power and clocks of the GPU that worked most over the run; without a GPU, the host's load.

    From the run's samples, gpulab.analysis.machine.clocks and contention. Shaded: where events were recorded. Marked:
    samples in which something held the clocks down. Utilisation is the driver's word for "a kernel was resident": it
    cannot show how much of the GPU a kernel used.
    """
    device = sensed_device(run)
    rows = run.gpu_rows.where(run.gpu_rows["device"] == device)
    on_gpu = len(rows) > 1
    gpu = run.machine.gpus[device] if 0 <= device < len(run.machine.gpus) else None
    drawn = _panels(rows, gpu) if on_gpu else _panels(run.host_rows, run.machine) if len(run.host_rows) > 1 else []
    if not drawn:
        why, fix = "no sensor was read during this run", "record it here with %%gpuprofile: a trace has no sensors"
        if run.source.how == "virtual":
            why, fix = "a virtual GPU has no sensors", "a recording on a machine tells them"
        return nothing_to_draw(run, SUBJECT, why, fix)
    seen = clocks(run, steps(run)) if on_gpu else None
    unit = scale(float(run.span_ns))

    def draw(plots: Sequence[Axes]) -> None:
        for axes, panel in zip(plots, drawn, strict=True):
            _draw(axes, run, panel)
            if panel.column.name == CLOCK:
                _mark_held(axes, rows)
        _windows_named(plots[0], run)
        in_unit(plots[-1].xaxis, unit)
        plots[-1].set_xlabel(f"{unit.unit} from the start of the run")

    answer = _gpu_answer(run, rows, seen) if on_gpu else _host_answer(run)
    return panels(
        answer,
        draw,
        len(drawn),
        source=run,
        alt=_alt(run, drawn, rows if on_gpu else None),
        table=_table(drawn, rows if on_gpu else None),
        height_in=1.35 + 0.95 * len(drawn),
    )


# What there is to draw.


def _panels(rows: Rows, owner: Gpu | Machine | None) -> list[_Panel]:
    """A plot for each sensor that answered; one that did not is left out, and never drawn as zero."""
    panels = []
    for column, key in zip(rows.table.displayed(Display.CHART), itertools.cycle(COLOURS), strict=False):
        at, values = sensor_columns.readings(rows, column)
        counts_nothing = column.unit.format == "count" and not np.nan_to_num(values).any()
        if np.isfinite(values).any() and not counts_nothing:
            panels.append(_Panel(column, at, values, key, sensor_columns.limit(column, owner)))
    return panels


# How it is drawn.


def _draw(axes: Axes, run: Run, panel: _Panel) -> None:
    for start, end in run.recording.windows_ns:
        axes.axvspan(start, end, facecolor=RECORDED, alpha=0.14, linewidth=0)
    at, values = thinned(panel.at_ns, panel.values, MOST_POINTS)
    axes.plot(at, values, color=colour(panel.key), linewidth=1.3, rasterized=len(at) > 500)
    highest = max(float(np.nanmax(values)), 1.0 if panel.column.is_share else 0.0)
    near = panel.limit is not None and highest >= 0.3 * panel.limit
    if panel.limit is not None and near:
        axes.axhline(panel.limit, color=INK, linewidth=0.9, linestyle=(0, (5, 2)))
        highest = max(highest, panel.limit)
        aside: Dress = {"textcoords": "offset points", "fontsize": 8, "color": SOFT, "va": "center"}
        named = f"{panel.column.limit.label if panel.column.limit else ''}\n{panel.show(panel.limit)}"
        axes.annotate(named, (1, panel.limit), xycoords=("axes fraction", "data"), xytext=(4, -3), **aside)
    axes.set_ylim(0, 1.1 * highest or 1.0)
    unit, symbol = sensor_columns.axis_unit(panel.column, highest)
    by(axes.yaxis, unit, 3)
    axes.set_title(sensor_columns.axis_label(panel.column, symbol), loc="left", fontsize=8.5, color=SOFT, pad=3)


def _mark_held(axes: Axes, rows: Rows) -> None:
    """Where the driver named a reason for lower clocks."""
    reasons = _held(rows)
    for (name, marker, key), mask in reasons:
        at, values = rows["at_ns"][mask], rows[CLOCK][mask]
        many = max(1, len(at) // 300)
        look: Dress = {"marker": marker, "linestyle": "none", "markersize": 5, "markeredgecolor": INK}
        axes.plot(at[::many], values[::many], color=colour(key), markeredgewidth=0.4, label=name, zorder=4, **look)
    if reasons:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0, fontsize=8, handletextpad=0.2)


_REASONS = (
    (POWER, ("held by the power limit", "v", "loader")),
    (HEAT, ("held by heat", "^", "python")),
    (BRAKE | SLOWDOWN, ("slowed by the hardware", "D", "alloc")),
)


def _held(rows: Rows) -> list[tuple[tuple[str, str, str], NDArray[np.bool_]]]:
    bits = rows["throttle_bits"]
    told = np.where(np.isnan(bits), 0, bits).astype(np.int64)
    return [(look, mask) for wanted, look in _REASONS if (mask := (told & wanted) != 0).any()]


def _windows_named(axes: Axes, run: Run) -> None:
    if run.recording.windows_ns:
        axes.set_title("shaded: events recorded", loc="right", fontsize=8, color=SOFT, pad=3)


# The same in words.


def _gpu_answer(run: Run, rows: Rows, seen: Clocks | None) -> str:
    if seen is not None and seen.clock_mhz:
        shares = (("the power limit", seen.held_by_power, seen.power_frac), ("heat", seen.held_by_heat, seen.heat_frac))
        for name, counted_frac, sampled_frac in shares:
            share = counted_frac if counted_frac is not None else sampled_frac
            if share and share >= HELD_FRAC:
                of = f" of {number(seen.free_mhz)}" if seen.free_mhz else ""
                when = "of the time" if counted_frac is not None else "of the samples under load"
                held = f"{name[:1].upper()}{name[1:]} holds the clocks down for {percent(share)} {when}"
                return f"{held}: {number(seen.clock_mhz)}{of} MHz"
        if seen.brake_frac and seen.brake_frac >= HELD_FRAC:
            held = f"The hardware slows its clocks down in {percent(seen.brake_frac)} of the samples under load"
            return f"{held}: {quantity(seen.clock_mhz, 'MHz')}"
    mine = of_the_loop(run, steps(run), sensed_device(run))
    mine = mine if len(mine) else rows
    told = [f"GPU utilisation {percent(_mean(mine['util_frac']))} in the mean"] if _told_any(mine["util_frac"]) else []
    if (power := median(mine["power_w"])) is not None:
        told.append(f"{quantity(power, 'W')} in the median")
    if (used := median(mine["memory_used_bytes"])) is not None:
        told.append(f"{size(used)} in use")
    return ", ".join(told) or "The GPU's sensors told little"


def _host_answer(run: Run) -> str:
    rows = in_the_loop(run, steps(run))
    rows = rows if len(rows) else run.host_rows
    told = [f"All cores {percent(_mean(rows['cpu_frac']))} busy in the mean"] if _told_any(rows["cpu_frac"]) else []
    if _told_any(rows["rss_bytes"]):
        told.append(f"this process holds at most {size(float(np.nanmax(rows['rss_bytes'])))}")
    text = ", ".join(told) or "The host's sensors told little"
    return f"{text[:1].upper()}{text[1:]}"


def _told_any(values: NDArray[np.float64]) -> bool:
    return bool(np.isfinite(values).any())


def _mean(values: NDArray[np.float64]) -> float:
    return float(np.nanmean(values))


def _alt(run: Run, drawn: Sequence[_Panel], rows: Rows | None) -> str:
    told = "; ".join(
        f"{panel.column.label.partition(',')[0]} {panel.show(_mean(panel.values))} in the mean, "
        f"{panel.show(float(np.nanmin(panel.values)))} to {panel.show(float(np.nanmax(panel.values)))}"
        for panel in drawn
    )
    held = [f"{name} in {percent(float(mask.mean()))} of samples" for (name, _, _), mask in _held(rows)] if rows else []
    windows = len(run.recording.windows_ns)
    shaded = f" Events were recorded in {count(windows, 'window')}, shaded." if windows else ""
    return f"{count(len(drawn), 'plot')} over the run: {told}{'; clocks ' + ', '.join(held) if held else ''}.{shaded}"


def _table(drawn: Sequence[_Panel], rows: Rows | None) -> Table:
    body = [
        Row(
            (
                panel.column.label, panel.show(_mean(panel.values)),
                panel.show(float(np.nanmin(panel.values))), panel.show(float(np.nanmax(panel.values))),
                panel.show(panel.limit) if panel.limit else "",
            )
        )
        for panel in drawn
    ]  # fmt: skip
    for (name, _, _), mask in _held(rows) if rows else ():
        body.append(Row((f"clocks {name}", f"{percent(float(mask.mean()))} of samples", "", "", "")))
    caption = f"Over {len(drawn[0].values):,} samples of the whole run."
    return Table(header=("", "mean", "smallest", "largest", "limit"), rows=tuple(body), caption=caption)
