"""Charts of memory: the peak in each phase of a step, and memory over the run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes

from gpulab.analysis.machine.clocks import sensed_device
from gpulab.analysis.memory.allocator import capacity_bytes, gpu_memory
from gpulab.analysis.memory.step_phases import phase_peaks
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.interior import WARM_UP_STEPS
from gpulab.analysis.steps.ledger import main_device
from gpulab.intervals import Ints
from gpulab.rows import Rows
from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS
from gpulab.views.charts.drawing.axes import bar_rows, label_bar_end, label_bytes_axis, label_time_axis, reduce_points
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SOFT_COLOUR, TEXT_COLOUR
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import count, percent, scale, size

HOST = -1
CAPACITY = "GPU capacity"
PHASES_WHAT, TIME_WHAT = "Memory by phase", "Memory over the run"
MAX_POINTS, MAX_ROWS = 1500, 40
# Colour (one of the ledger's) and hatch of each phase.
PHASES = {"forward": ("matmul", ""), "backward": ("kernels", "////"), "optimizer": ("python", "++++")}
MEMORY_NOTE = {
    True: "host memory, counted from the start of the profiler",
    False: "allocated by PyTorch's CUDA allocator",
}
RISES_FRAC = 0.1  # of the peak: a smaller increase after the warm-up is not mentioned
NEAR_FRAC = 0.15  # of the GPU's memory: with less in use the capacity is not drawn, because the lines would be flat


def memory_phases(run: Run) -> Chart:
    """Show the peak memory allocated by PyTorch in forward, backward and the optimizer step, and the capacity.

    From gpulab.analysis.memory.step_phases: recorded steps with memory events (`--level deep`, virtual GPUs). Memory
    outside PyTorch's allocator is not included, and host memory only if it was allocated while the profiler was on.
    """
    run_steps = find_steps(run)
    device = memory_device(run)
    peaks = phase_peaks(run, run_steps, device)
    if not peaks:
        fix = "record with %%gpuprofile --level deep, or with gpulab.virtual_gpu"
        return missing_data_chart(run, PHASES_WHAT, "allocations were not recorded as events", fix)
    lines = [*peaks.items(), *_capacity_lines(run, device)]
    peak_phase = max(peaks, key=lambda phase: peaks[phase])
    highest_bytes = max(value for _, value in lines)

    def draw(axes: Axes) -> None:
        for row, (name, value) in enumerate(lines):
            key, hatch = PHASES.get(name, ("", ""))
            outline = {"facecolor": "none", "edgecolor": NEUTRAL, "linewidth": 1.2}
            style = {"facecolor": colour(key), "edgecolor": BACKGROUND, "hatch": hatch, "linewidth": 0}
            axes.barh(row, value, height=0.62, **(style if name in PHASES else outline))  # type: ignore[arg-type]
            label_bar_end(axes, value, row, size(value), fontweight="bold" if name == peak_phase else "normal")
        bar_rows(axes, [name for name, _ in lines], highest_bytes * 1.18)
        axes.set_xlabel(f"{label_bytes_axis(axes.xaxis, highest_bytes)} ({MEMORY_NOTE[device == HOST]})")

    return single_plot(
        _phase_answer(peaks, peak_phase, lines),
        draw,
        source=run,
        alt=_phase_alt(lines, device),
        table=_size_table(lines),
        height_in=1.5 + 0.32 * len(lines),
    )


def memory_device(run: Run) -> int:
    """Return the device to show: the busiest GPU, else the GPU of the memory records, else the host."""
    if run.event_rows.is_kind(*DEVICE_KINDS).any():
        return main_device(run)
    devices = run.memory_rows["device"]
    gpus = devices[devices >= 0]
    if len(gpus):
        return int(np.bincount(gpus).argmax())
    return int(run.allocator_rows["device"][0]) if len(run.allocator_rows) else HOST


def _capacity_lines(run: Run, device: int) -> list[tuple[str, int]]:
    """Return the memory reserved by PyTorch, and the capacity of the GPU unless it is far larger."""
    rows = run.memory_rows.select(run.memory_rows["device"] == device)
    reserved = int(rows["reserved_bytes"].max(initial=0))
    allocated = int(rows["allocated_bytes"].max(initial=0))
    lines = [("reserved by PyTorch", reserved)] if reserved > 0 and device != HOST else []
    capacity = capacity_bytes(run, device)
    if capacity and max(reserved, allocated) >= NEAR_FRAC * capacity:
        lines.append((CAPACITY, capacity))
    return lines


def _phase_answer(peaks: dict[str, int], peak_phase: str, lines: Sequence[tuple[str, int]]) -> str:
    capacity = dict(lines).get(CAPACITY)
    share = f" of {size(capacity)} ({percent(peaks[peak_phase] / capacity)})" if capacity else ""
    return f"Memory peaks in {peak_phase}: {size(peaks[peak_phase])}{share}"


def _phase_alt(lines: Sequence[tuple[str, int]], device: int) -> str:
    peaks = ", ".join(f"{name} {size(count)}" for name, count in lines)
    return f"A bar for the peak memory in each phase of a step: {peaks}; {MEMORY_NOTE[device == HOST]}"


def _size_table(lines: Sequence[tuple[str, int]]) -> TableBlock:
    rows = tuple(
        Row((name, size(count), f"{count:,}"), key=PHASES.get(name, ("",))[0] or None) for name, count in lines
    )
    return TableBlock(header=("", "peak", "bytes"), rows=rows)


# Over the run.


def memory_over_time(run: Run) -> Chart:
    """Show allocated and reserved memory over the run: from memory events if recorded, else at the start of each step.

    From the run's allocator and memory tables, gpulab.analysis.memory.allocator, and the sensors. Without memory events
    changes between two readings are not visible.
    """
    run_steps, device = find_steps(run), memory_device(run)
    lines = _curves(run, device)
    if not lines:
        fix = "record on a machine with a GPU, or with --level deep"
        return missing_data_chart(run, TIME_WHAT, "memory was not read in this run", fix)
    capacity = capacity_bytes(run, device)
    highest = max(float(values.max()) for _, _, _, values in lines)
    drawn_limit = capacity if capacity and highest >= NEAR_FRAC * capacity else None
    unit = scale(float(run.span_ns))

    def draw(axes: Axes) -> None:
        for name, key, at_ns, values in lines:
            axes.plot(*reduce_points(at_ns, values, MAX_POINTS), color=colour(key), label=name, **_LINES[name])  # type: ignore[arg-type]
        if drawn_limit:
            axes.axhline(drawn_limit, color=TEXT_COLOUR, linewidth=1.0)
            axes.annotate(
                f"GPU capacity {size(drawn_limit)}", (0.0, drawn_limit), xycoords=("axes fraction", "data"),
                xytext=(4, -4), textcoords="offset points", va="top", fontsize=8.5, color=SOFT_COLOUR,
            )  # fmt: skip
        axes.set_ylim(0, 1.08 * max(highest, drawn_limit or 0) or 1.0)
        axes.set_ylabel(label_bytes_axis(axes.yaxis, highest, 6))
        label_time_axis(axes.xaxis, unit)
        axes.set_xlabel(f"{unit.unit} from the start of the run")
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1.0), ncols=3, borderaxespad=0.2)

    return single_plot(
        _time_answer(run, run_steps, device, lines, capacity),
        draw,
        source=run,
        alt=_time_alt(lines, capacity),
        table=_time_table(lines),
        height_in=3.1,
    )


_LINES: dict[str, dict[str, object]] = {
    "reserved by PyTorch": {"linewidth": 1.4, "linestyle": (0, (5, 2)), "drawstyle": "steps-post"},
    "allocated": {"linewidth": 1.6, "drawstyle": "steps-post"},
    "peak allocated so far": {"linewidth": 1.2, "linestyle": (0, (1, 1.5)), "drawstyle": "steps-post"},
    "used by all processes": {"linewidth": 1.2, "linestyle": (0, (6, 2, 1, 2))},
    "memory of this process": {"linewidth": 1.4},
}
_Curve = tuple[str, str, Ints, np.ndarray]


def _curves(run: Run, device: int) -> list[_Curve]:
    """Return name, colour, times and bytes of each line."""
    lines: list[_Curve] = []
    rows = run.memory_rows.select((run.memory_rows["device"] == device) & (run.memory_rows["allocated_bytes"] >= 0))
    columns: tuple[tuple[str, str, str], ...] = (
        ("reserved by PyTorch", "communication", "reserved_bytes"),
        ("allocated", "matmul", "allocated_bytes"),
    )
    if not len(rows):
        rows = run.allocator_rows.select(run.allocator_rows["device"] == device)
        columns = (*columns, ("peak allocated so far", "loader", "peak_allocated_bytes"))
    lines += [line for name, key, column in columns if (line := _curve(rows, name, key, column))]
    if device != HOST:
        samples = run.gpu_rows.select(run.gpu_rows["device"] == sensed_device(run))
        line = _curve(samples, "used by all processes", "python", "memory_used_bytes")
    else:
        line = _curve(run.host_rows, "memory of this process", "python", "rss_bytes")
    return [*lines, line] if line else lines


def _curve(rows: Rows, name: str, key: str, column: str) -> _Curve | None:
    values = rows[column].astype(np.float64)
    valid = np.isfinite(values) & (values >= 0)
    if name == "reserved by PyTorch" and not (values > 0).any():
        valid[:] = False  # PyTorch does not cache host memory
    return (name, key, rows["at_ns"][valid], values[valid]) if valid.sum() > 1 else None


def _time_answer(run: Run, run_steps: Steps, device: int, lines: Sequence[_Curve], capacity: int | None) -> str:
    name, _, at_ns, values = next((line for line in lines if line[0] == "allocated"), lines[0])
    peak = float(values.max())
    allocator_peak = (
        next((each for each in gpu_memory(run, run_steps) if each.device == device), None)
        if len(run.allocator_rows)
        else None
    )
    if allocator_peak is not None and allocator_peak.allocated_bytes > peak:
        peak = float(allocator_peak.allocated_bytes)
    share = f" of {size(capacity)} ({percent(peak / capacity)})" if capacity and device != HOST else ""
    titles = {"allocated": "Peak allocated memory", "memory of this process": "Peak memory of this process"}
    later = values[at_ns >= (run_steps.start_ns[min(WARM_UP_STEPS, len(run_steps) - 1)] if len(run_steps) else 0)]
    growth = float(later[-1] - later[0]) if len(later) else 0.0
    rise = f"; it grows by {size(growth)} after the warm-up" if growth > RISES_FRAC * values.max() else ""
    return f"{titles.get(name, f'Peak memory {name}')}: {size(peak)}{share}{rise}"


def _time_alt(lines: Sequence[_Curve], capacity: int | None) -> str:
    curves = "; ".join(
        f"{name}: first {size(float(values[0]))}, peak {size(float(values.max()))}, "
        f"last {size(float(values[-1]))} ({count(len(values), 'reading')})"
        for name, _, _, values in lines
    )
    return f"Memory over the run: {curves}" + (f". GPU capacity {size(capacity)}" if capacity else "")


def _time_table(lines: Sequence[_Curve]) -> TableBlock:
    """Return a table with the values of all lines at some times of the main line."""
    _, _, at_ns, _ = next((line for line in lines if line[0] == "allocated"), lines[0])
    unit = scale(float(at_ns.max(initial=1)))
    indices = np.unique(np.linspace(0, len(at_ns) - 1, min(MAX_ROWS - 4, len(at_ns))).astype(int))
    rows = [Row((unit(int(at_ns[index])), *(_at(line, int(at_ns[index])) for line in lines))) for index in indices]
    rows.append(Row(("peak", *(size(float(each.max())) for _, _, _, each in lines)), kind="total"))
    caption = f"{len(indices)} of {len(at_ns):,} readings." if len(indices) < len(at_ns) else ""
    return TableBlock(header=("time", *(name for name, _, _, _ in lines)), rows=tuple(rows), caption=caption)


def _at(line: _Curve, time_ns: int) -> str:
    """Return the value of a line at a time: its last reading until then."""
    _, _, at_ns, values = line
    index = int(np.searchsorted(at_ns, time_ns, side="right")) - 1
    return size(float(values[index])) if index >= 0 else ""
