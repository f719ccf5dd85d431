"""How much memory is given out at most in each phase of a step, and how it went over the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from gpulab.analysis.machine.clocks import sensed_device
from gpulab.analysis.memory.allocator import capacity_bytes, rooms
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.analysis.steps.detection import WARM_UP, Steps, steps
from gpulab.analysis.steps.ledger import main_device
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw
from gpulab.views.charts.drawing.steps_and_ledger import bar_rows, beside, in_bytes, in_unit, thinned
from gpulab.views.charts.drawing.style import INK, SOFT
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import count, percent, scale, size

HOST = -1
PHASES_WHAT, TIME_WHAT = "Memory by phase", "Memory over the run"
MOST_POINTS, MOST_ROWS = 1500, 40
# Of each phase: its colour (one of the ledger's) and the hatch of its bar.
PHASES = {"forward": ("matmul", ""), "backward": ("kernels", "////"), "optimizer": ("python", "....")}
WHERE = {True: "host memory, counted from when the profiler began", False: "given out by PyTorch's CUDA allocator"}
RISES_FRAC = 0.1  # of the most: a smaller rise after the warm-up is not worth a word
NEAR_FRAC = 0.15  # less than this of the GPU's memory in use: its size would squeeze the picture


def memory_phases(run: Run) -> Chart:
    """The most memory that PyTorch gave out in forward, backward and the optimizer's step, against what there is.

    From gpulab.analysis.memory.step_phases: of recorded steps, where memory was recorded (`--level deep`, virtual
    GPUs). It cannot show memory outside PyTorch's allocator, and of host memory only what was asked for while the
    profiler was on.
    """
    found = steps(run)
    device = device_of(run)
    peaks = phase_peaks(run, found, device)
    if not peaks:
        fix = "record with %%gpuprofile --level deep, or on gpulab.virtual_gpu"
        return nothing_to_draw(run, PHASES_WHAT, "what PyTorch gave out was not recorded event by event", fix)
    lines = [*peaks.items(), *_room(run, device)]
    most = max(peaks, key=lambda phase: peaks[phase])
    most_bytes = max(held_bytes for _, held_bytes in lines)

    def draw(axes: Axes) -> None:
        for place, (name, held_bytes) in enumerate(lines):
            key, hatch = PHASES.get(name, ("", ""))
            outline = {"facecolor": "none", "edgecolor": NEUTRAL, "linewidth": 1.2}
            look = {"facecolor": colour(key), "edgecolor": "white", "hatch": hatch, "linewidth": 0}
            axes.barh(place, held_bytes, height=0.62, **(look if name in PHASES else outline))  # type: ignore[arg-type]
            beside(axes, held_bytes, place, size(held_bytes), fontweight="bold" if name == most else "normal")
        bar_rows(axes, [name for name, _ in lines], most_bytes * 1.18)
        axes.set_xlabel(f"{in_bytes(axes.xaxis, most_bytes)} ({WHERE[device == HOST]})")

    return chart(
        _phase_answer(peaks, most, lines),
        draw,
        source=run,
        alt=_phase_alt(lines, device),
        table=_size_table(lines),
        height_in=1.5 + 0.32 * len(lines),
    )


def device_of(run: Run) -> int:
    """The device whose memory is asked about: the GPU that worked most, else that of the records, else the host."""
    if np.isin(run.event_rows["kind"], DEVICE_KINDS).any():
        return main_device(run)
    told = run.memory_rows["device"]
    gpus = told[told >= 0]
    if len(gpus):
        return int(np.bincount(gpus).argmax())
    return int(run.allocator_rows["device"][0]) if len(run.allocator_rows) else HOST


def _room(run: Run, device: int) -> list[tuple[str, int]]:
    """What PyTorch held, and what the GPU has, where that does not squeeze the rest."""
    rows = run.memory_rows.where(run.memory_rows["device"] == device)
    reserved = int(rows["reserved_bytes"].max(initial=0))
    allocated = int(rows["allocated_bytes"].max(initial=0))
    lines = [("held by PyTorch", reserved)] if reserved > 0 and device != HOST else []
    has = capacity_bytes(run, device)
    if has and max(reserved, allocated) >= NEAR_FRAC * has:
        lines.append(("the GPU has", has))
    return lines


def _phase_answer(peaks: dict[str, int], most: str, lines: Sequence[tuple[str, int]]) -> str:
    has = dict(lines).get("the GPU has")
    of = f" of {size(has)} ({percent(peaks[most] / has)})" if has else ""
    return f"Most memory is given out in {most}: {size(peaks[most])}{of}"


def _phase_alt(lines: Sequence[tuple[str, int]], device: int) -> str:
    told = ", ".join(f"{name} {size(count)}" for name, count in lines)
    return f"A bar for each phase of a step, memory given out at most: {told}; {WHERE[device == HOST]}"


def _size_table(lines: Sequence[tuple[str, int]]) -> Table:
    rows = tuple(
        Row((name, size(count), f"{count:,}"), key=PHASES.get(name, ("",))[0] or None) for name, count in lines
    )
    return Table(header=("", "at most", "bytes"), rows=rows)


# Over the run.


def memory_over_time(run: Run) -> Chart:
    """Memory given out and held over the run: event by event where that was recorded, else where each step began.

    From the run's allocator and memory tables, gpulab.analysis.memory.allocator, and the sensors beside them. Between
    two readings it cannot show what came and went, unless memory was recorded event by event.
    """
    found, device = steps(run), device_of(run)
    lines = _curves(run, device)
    if not lines:
        fix = "profile here on a machine with a GPU, or with --level deep"
        return nothing_to_draw(run, TIME_WHAT, "memory was not read in this run", fix)
    has = capacity_bytes(run, device)
    most = max(float(values.max()) for _, _, _, values in lines)
    drawn_limit = has if has and most >= NEAR_FRAC * has else None
    unit = scale(float(run.span_ns))

    def draw(axes: Axes) -> None:
        for name, key, at, values in lines:
            axes.plot(*thinned(at, values, MOST_POINTS), color=colour(key), label=name, **_LINES[name])  # type: ignore[arg-type]
        if drawn_limit:
            axes.axhline(drawn_limit, color=INK, linewidth=1.0)
            axes.annotate(
                f"the GPU has {size(drawn_limit)}", (0.0, drawn_limit), xycoords=("axes fraction", "data"),
                xytext=(4, -4), textcoords="offset points", va="top", fontsize=8.5, color=SOFT,
            )  # fmt: skip
        axes.set_ylim(0, 1.08 * max(most, drawn_limit or 0))
        axes.set_ylabel(in_bytes(axes.yaxis, most, 6))
        in_unit(axes.xaxis, unit)
        axes.set_xlabel(f"{unit.unit} from the start of the run")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)

    return chart(
        _time_answer(run, found, device, lines, has),
        draw,
        source=run,
        alt=_time_alt(lines, has),
        table=_time_table(lines),
        height_in=3.1,
    )


_LINES: dict[str, dict[str, object]] = {
    "held by PyTorch": {"linewidth": 1.4, "linestyle": (0, (5, 2)), "drawstyle": "steps-post"},
    "given out": {"linewidth": 1.6, "drawstyle": "steps-post"},
    "most given out so far": {"linewidth": 1.2, "linestyle": (0, (1, 1.5)), "drawstyle": "steps-post"},
    "in use, all processes": {"linewidth": 1.2, "linestyle": (0, (6, 2, 1, 2))},
    "memory of this process": {"linewidth": 1.4},
}
_Curve = tuple[str, str, Ints, np.ndarray]


def _curves(run: Run, device: int) -> list[_Curve]:
    """Name, colour, times and bytes of each line."""
    lines: list[_Curve] = []
    rows = run.memory_rows.where((run.memory_rows["device"] == device) & (run.memory_rows["allocated_bytes"] >= 0))
    columns: tuple[tuple[str, str, str], ...] = (
        ("held by PyTorch", "communication", "reserved_bytes"),
        ("given out", "matmul", "allocated_bytes"),
    )
    if not len(rows):
        rows = run.allocator_rows.where(run.allocator_rows["device"] == device)
        columns = (*columns, ("most given out so far", "loader", "peak_allocated_bytes"))
    lines += [line for name, key, column in columns if (line := _curve(rows, name, key, column))]
    if device != HOST:
        sensed = run.gpu_rows.where(run.gpu_rows["device"] == sensed_device(run))
        line = _curve(sensed, "in use, all processes", "python", "memory_used_bytes")
    else:
        line = _curve(run.host_rows, "memory of this process", "python", "rss_bytes")
    return [*lines, line] if line else lines


def _curve(rows: Rows, name: str, key: str, column: str) -> _Curve | None:
    values = rows[column].astype(np.float64)
    told = np.isfinite(values) & (values >= 0)
    if name == "held by PyTorch" and not (values > 0).any():
        told[:] = False  # PyTorch holds no host memory back
    return (name, key, rows["at_ns"][told], values[told]) if told.sum() > 1 else None


def _time_answer(run: Run, found: Steps, device: int, lines: Sequence[_Curve], has: int | None) -> str:
    name, _, at, values = next((line for line in lines if line[0] == "given out"), lines[0])
    peak = float(values.max())
    room = (
        next((each for each in rooms(run, found) if each.device == device), None) if len(run.allocator_rows) else None
    )
    if room is not None and room.allocated_bytes > peak:
        peak = float(room.allocated_bytes)
    of = f" of {size(has)} ({percent(peak / has)})" if has and device != HOST else ""
    what = {"given out": "Most given out at once", "memory of this process": "This process holds at most"}
    later = values[at >= (found.start_ns[min(WARM_UP, len(found) - 1)] if len(found) else 0)]
    grew = float(later[-1] - later[0]) if len(later) else 0.0
    rose = f"; after the warm-up it rises by {size(grew)}" if grew > RISES_FRAC * values.max() else ""
    return f"{what.get(name, f'{name.capitalize()}, at most')}: {size(peak)}{of}{rose}"


def _time_alt(lines: Sequence[_Curve], has: int | None) -> str:
    told = "; ".join(
        f"{name}: {size(float(values[0]))} at first, {size(float(values.max()))} at most, "
        f"{size(float(values[-1]))} at last ({count(len(values), 'reading')})"
        for name, _, _, values in lines
    )
    return f"Memory over the run: {told}" + (f". The GPU has {size(has)}" if has else "")


def _time_table(lines: Sequence[_Curve]) -> Table:
    """A row for each of some moments of the line that tells most."""
    _, _, at, _ = next((line for line in lines if line[0] == "given out"), lines[0])
    unit = scale(float(at.max(initial=1)))
    places = np.unique(np.linspace(0, len(at) - 1, min(MOST_ROWS - 4, len(at))).astype(int))
    rows = [Row((unit(int(at[place])), *(_at(line, int(at[place])) for line in lines))) for place in places]
    rows.append(Row(("at most", *(size(float(each.max())) for _, _, _, each in lines)), kind="total"))
    left = len(at) - len(places)
    caption = f"{len(places)} of {len(at):,} readings." if left else ""
    return Table(header=("at", *(name for name, _, _, _ in lines)), rows=tuple(rows), caption=caption)


def _at(line: _Curve, at_ns: int) -> str:
    """What a line was at a moment: its last reading until then."""
    _, _, at, values = line
    place = int(np.searchsorted(at, at_ns, side="right")) - 1
    return size(float(values[place])) if place >= 0 else ""
