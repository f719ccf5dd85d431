"""What the sensors said over the run: the GPU's, with what held its clocks down, or else the host's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, nothing_to_draw, panels
from gpulab.views.charts.drawing.steps_and_ledger import by, in_unit, thinned
from gpulab.views.charts.drawing.style import INK, SOFT, Dress
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.views.wording import counted, percent, quantity, scale, size

WHAT = "Sensors"
MOST_POINTS = 1200
HELD_FRAC = 0.2  # of the samples under load: held down so often is the answer
MEBIBYTE, GIBIBYTE = 1024.0**2, 1024.0**3
RECORDED = "#59626B"
Show = Callable[[float | None], str]
Wanted = tuple[str, float, str, str, Show, float | None, str, float | None]  # as _Panel has it, its column third


@dataclass(frozen=True)
class _Panel:
    """One plot: its label, what a unit of its axis is, its line, and the limit drawn beside it."""

    label: str
    unit: float
    at_ns: Ints
    values: NDArray[np.float64]
    key: str
    show: Show
    limit: float | None = None
    limit_name: str = ""
    whole: float | None = None  # the axis reaches to this at least


def sensors(run: Run) -> Chart:
    """Utilisation, memory, power and clocks of the GPU that worked most over the run; without a GPU, the host's load.

    From the run's samples, gpulab.analysis.machine.clocks and contention. Shaded: where events were recorded. Marked:
    samples in which something held the clocks down. Utilisation is the driver's word for "a kernel was resident": it
    cannot show how much of the GPU a kernel used.
    """
    device = sensed_device(run)
    rows = run.gpu_rows.where(run.gpu_rows["device"] == device)
    drawn = _gpu_panels(run, rows, device) if len(rows) > 1 else _host_panels(run)
    if not drawn:
        why, fix = "no sensor was read during this run", "record it here with %%gpuprofile: a trace has no sensors"
        if run.source.how == "virtual":
            why, fix = "a virtual GPU has no sensors", "a recording on a machine tells them"
        return nothing_to_draw(run, WHAT, why, fix)
    on_gpu = len(rows) > 1
    seen = clocks(run, steps(run)) if on_gpu else None
    unit = scale(float(run.span_ns))

    def draw(plots: Sequence[Axes]) -> None:
        for axes, panel in zip(plots, drawn, strict=True):
            _draw(axes, run, panel)
            if panel.key == "clock":
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


def _gpu_panels(run: Run, rows: Rows, device: int) -> list[_Panel]:
    gpu = run.machine.gpus[device] if 0 <= device < len(run.machine.gpus) else None
    memory, power = (gpu.memory_bytes, gpu.power_limit_w) if gpu else (None, None)
    clock = gpu.sm_clock_max_mhz if gpu else None
    told: tuple[Wanted, ...] = (
        ("utilisation, %", 0.01, "util_frac", "matmul", percent, None, "", 1.0),
        ("memory in use, GiB", GIBIBYTE, "memory_used_bytes", "copies", size, memory, "the GPU has", None),
        ("power, W", 1.0, "power_w", "loader", lambda value: quantity(value, "W"), power, "limit", None),
        ("SM clock, MHz", 1.0, "sm_clock_mhz", "clock", lambda value: quantity(value, "MHz"), clock, "highest", None),
    )
    return _told(rows, told)


def _host_panels(run: Run) -> list[_Panel]:
    rows = run.host_rows
    if len(rows) < 2:
        return []
    workers = rows["workers"]
    told: list[Wanted] = [
        ("load of all cores, %", 0.01, "cpu_frac", "matmul", percent, None, "", 1.0),
        ("this process, MiB", MEBIBYTE, "rss_bytes", "copies", size, None, "", None),
    ]
    if np.nanmax(workers, initial=0.0) > 0:
        told.append(("DataLoader workers", 1.0, "workers", "loader", lambda value: f"{value:.3g}", None, "", None))
    return _told(rows, told)


def _told(rows: Rows, wanted: Sequence[Wanted]) -> list[_Panel]:
    """The panels whose sensor answered; what was not told is left out, and never drawn as zero."""
    found = []
    for label, unit, column, key, show, limit, name, whole in wanted:
        values = np.asarray(rows[column], np.float64)
        if np.isfinite(values).any():
            found.append(_Panel(label, unit, rows["at_ns"], values, key, show, limit, name, whole))
    return found


# How it is drawn.


def _draw(axes: Axes, run: Run, panel: _Panel) -> None:
    for start, end in run.recording.windows_ns:
        axes.axvspan(start, end, facecolor=RECORDED, alpha=0.14, linewidth=0)
    at, values = thinned(panel.at_ns, panel.values, MOST_POINTS)
    hue = colour("communication" if panel.key == "clock" else panel.key)
    axes.plot(at, values, color=hue, linewidth=1.3, rasterized=len(at) > 500)
    highest = max(float(np.nanmax(values)), panel.whole or 0.0)
    near = panel.limit is not None and highest >= 0.3 * panel.limit
    if panel.limit is not None and near:
        axes.axhline(panel.limit, color=INK, linewidth=0.9, linestyle=(0, (5, 2)))
        highest = max(highest, panel.limit)
        aside: Dress = {"textcoords": "offset points", "fontsize": 8, "color": SOFT, "va": "center"}
        named = f"{panel.limit_name}\n{panel.show(panel.limit)}"
        axes.annotate(named, (1, panel.limit), xycoords=("axes fraction", "data"), xytext=(4, -3), **aside)
    axes.set_ylim(0, 1.1 * highest or 1.0)
    by(axes.yaxis, panel.unit, 3)
    axes.set_title(panel.label, loc="left", fontsize=8.5, color=SOFT, pad=3)


def _mark_held(axes: Axes, rows: Rows) -> None:
    """Where the driver named a reason for lower clocks."""
    reasons = _held(rows)
    for (name, marker, key), mask in reasons:
        at, values = rows["at_ns"][mask], rows["sm_clock_mhz"][mask]
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
                of = f" of {seen.free_mhz:,.0f}" if seen.free_mhz else ""
                when = "of the time" if counted_frac is not None else "of the samples under load"
                held = f"{name[:1].upper()}{name[1:]} holds the clocks down for {percent(share)} {when}"
                return f"{held}: {seen.clock_mhz:,.0f}{of} MHz"
        if seen.brake_frac and seen.brake_frac >= HELD_FRAC:
            held = f"The hardware slows its clocks down in {percent(seen.brake_frac)} of the samples under load"
            return f"{held}: {seen.clock_mhz:,.0f} MHz"
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
        f"{panel.label.partition(',')[0]} {panel.show(_mean(panel.values))} in the mean, "
        f"{panel.show(float(np.nanmin(panel.values)))} to {panel.show(float(np.nanmax(panel.values)))}"
        for panel in drawn
    )
    held = [f"{name} in {percent(float(mask.mean()))} of samples" for (name, _, _), mask in _held(rows)] if rows else []
    windows = len(run.recording.windows_ns)
    shaded = f" Events were recorded in {counted(windows, 'window')}, shaded." if windows else ""
    return f"{counted(len(drawn), 'plot')} over the run: {told}{'; clocks ' + ', '.join(held) if held else ''}.{shaded}"


def _table(drawn: Sequence[_Panel], rows: Rows | None) -> Table:
    body = [
        Row(
            (
                panel.label.partition(",")[0], panel.show(_mean(panel.values)),
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
