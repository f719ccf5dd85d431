"""Chart of memory by category at the peak; after an out-of-memory error, of what holds the memory."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes

from gpulab.analysis.memory.holders import MemoryHolders, memory_holders
from gpulab.analysis.memory.lifetimes import (
    BEFORE_STEP,
    BY_OPTIMIZER,
    FOR_BACKWARD,
    FOR_OPTIMIZER,
    TEMPORARY,
    Peak,
    memory_at_peak,
)
from gpulab.analysis.steps.detection import find_steps
from gpulab.run import Failure, Run
from gpulab.views.charts.drawing.axes import WHOLE_RUN, bar_rows, label_bar_end, label_bytes_axis
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, Style
from gpulab.views.charts.memory.memory_over_time import HOST, MEMORY_NOTE, memory_device
from gpulab.views.report.memory_holders import KIND_LABELS as HOLDERS
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import clean, percent, size

SUBJECT = "Memory by category"
PARAMETERS, STATE = "parameters and buffers", "optimizer state and other, from before"
FREE, UNUSED, OTHERS = "free", "cached by PyTorch, not in use", "other processes"
_PHASES = ("forward", "backward", "the optimizer")
# Colour (one of the ledger's) and hatch of each category.
_LOOKS = {
    PARAMETERS: ("matmul", ""),
    BEFORE_STEP: ("communication", "////"),
    STATE: ("communication", "////"),
    FOR_BACKWARD: ("copies", ""),
    FOR_OPTIMIZER: ("kernels", "++++"),
    BY_OPTIMIZER: ("python", "xxxx"),
    TEMPORARY: ("dispatch", "\\\\\\\\"),
    "parameters": ("matmul", ""),
    "gradients": ("kernels", "++++"),
    "optimizer state": ("communication", "////"),
    "variables": ("copies", ""),
    "values of earlier cells": ("sync", "xxxx"),
    "errors of earlier cells": ("loader", "----"),
    "saved for backward()": ("python", "||||"),
}
_PLURALS = {
    "variable": "variables",
    "value of an earlier cell": "values of earlier cells",
    "error of an earlier cell": "errors of earlier cells",
    "": "other tensors",
}
Line = tuple[str, int]


def memory_kinds(run: Run) -> Chart:
    """Show memory by category: at the peak or, after an out-of-memory error, by what held it.

    From gpulab.analysis.memory.holders after an out-of-memory error. Otherwise allocations are classified by lifetime,
    from the memory events: allocated in forward and freed in backward is an activation, whatever the model. Optimizer
    state and gradients that exist before the recording cannot be distinguished.
    """
    if run.failure is not None and len(run.holder_rows):
        return _out_of_memory(run, run.failure)
    device = memory_device(run)
    run_steps = find_steps(run)
    peak = memory_at_peak(run, run_steps, device)
    if peak is None:
        fix = "record with %%gpuprofile --level deep, or with gpulab.virtual_gpu"
        return missing_data_chart(run, SUBJECT, "allocations were not recorded in complete steps", fix)
    lines = _lines(run, peak, device)
    if not lines or peak.total_bytes <= 0:
        return missing_data_chart(run, SUBJECT, "no allocation with a known size was recorded", "record the run again")
    phase = f"in {_PHASES[peak.phase]}" + ("" if run_steps.detected_by == WHOLE_RUN else f" of step {peak.step + 1}")
    first = max(lines, key=lambda line: line[1])
    return single_plot(
        f"Peak memory {size(peak.total_bytes)}, {phase}; largest part: {first[0]} "
        f"({percent(first[1] / peak.total_bytes)})",
        lambda axes: _draw(axes, lines, peak.total_bytes, MEMORY_NOTE[device == HOST]),
        source=run,
        alt=f"A bar for each category of the memory allocated {phase}: {_shares(lines, peak.total_bytes)}",
        table=_table(lines, peak.total_bytes, "allocated"),
        height_in=1.5 + 0.32 * (len(lines) + 1),
    )


def _lines(run: Run, peak: Peak, device: int) -> list[Line]:
    """Return the categories; memory from before is split into parameters and the rest if it includes them."""
    lines = list(peak.by_kind.items())
    model_bytes = [model.bytes or 0 for model in run.models if (model.device == "cpu") is (device == HOST)]
    parameters, before = sum(model_bytes), peak.by_kind.get(BEFORE_STEP, 0)
    # Host memory is counted from the start of the profiler, so it excludes the model created before.
    if device == HOST or not 0 < parameters <= before:
        return lines
    split = [(PARAMETERS, parameters)] + ([(STATE, before - parameters)] if before > parameters else [])
    return [*split, *((name, count) for name, count in lines if name != BEFORE_STEP)]


def _out_of_memory(run: Run, failure: Failure) -> Chart:
    lines = _held_lines(memory_holders(run), failure)
    if not lines:
        return missing_data_chart(run, SUBJECT, "the sizes of what held the memory are unknown")
    total_bytes = failure.capacity_bytes or sum(count for _, count in lines)
    tensors = [line for line in lines if line[0] not in (FREE, UNUSED, OTHERS)] or lines
    first = max(tensors, key=lambda line: line[1])
    memory = "Host memory" if failure.device is None else f"The {size(total_bytes)} of GPU {failure.device}"
    return single_plot(
        f"{memory} ran out; largest part: {first[0]}, {size(first[1])} ({percent(first[1] / total_bytes)})",
        lambda axes: _draw(axes, lines, total_bytes, "at the out-of-memory error"),
        source=run,
        alt=f"A bar for each category of memory at the out-of-memory error: {_shares(lines, total_bytes)}",
        table=_table(lines, total_bytes, "held"),
        height_in=1.5 + 0.32 * (len(lines) + 1),
    )


def _held_lines(memory_held: MemoryHolders, failure: Failure) -> list[Line]:
    sizes: dict[str, int] = {}
    for holding in memory_held.holders:
        label = HOLDERS.get(holding.kind, clean(holding.kind, 40))
        name = _PLURALS.get(label, label)
        sizes[name] = sizes.get(name, 0) + holding.bytes
    sizes |= {UNUSED: memory_held.unused_bytes or 0, OTHERS: failure.others_bytes or 0, FREE: failure.free_bytes or 0}
    return sorted(((name, count) for name, count in sizes.items() if count > 0), key=lambda line: -line[1])


def _draw(axes: Axes, lines: Sequence[Line], total_bytes: int, note: str) -> None:
    x = 0.0
    last = len(lines)
    for row, (name, count) in enumerate(lines):
        key, hatch = _LOOKS.get(name, ("", ""))
        style: Style = {"facecolor": colour(key) if key else NEUTRAL, "edgecolor": BACKGROUND, "hatch": hatch}
        if name == FREE:
            style = {"facecolor": "none", "edgecolor": NEUTRAL}
        for bar_row in (row, last):
            axes.barh(bar_row, count, left=x, height=0.68, linewidth=1 if name == FREE else 0, **style)
        x += count
        label_bar_end(axes, x, row, f"{size(count)}  {percent(count / total_bytes)}")
    label_bar_end(axes, x, last, size(x), fontweight="bold")
    bar_rows(axes, [*(name for name, _ in lines), "total"], x * 1.25)
    axes.set_xlabel(f"{label_bytes_axis(axes.xaxis, x)} ({note})")


def _shares(lines: Sequence[Line], total_bytes: int) -> str:
    return ", ".join(f"{name} {size(count)} ({percent(count / total_bytes)})" for name, count in lines)


def _table(lines: Sequence[Line], total_bytes: int, column: str) -> TableBlock:
    rows = [
        Row((name, size(count), percent(count / total_bytes, 1)), key=_LOOKS.get(name, ("rest", ""))[0])
        for name, count in lines
    ]
    total = sum(count for _, count in lines)
    rows.append(Row(("total", size(total), percent(total / total_bytes, 1)), kind="total"))
    return TableBlock(header=("", column, "share"), rows=tuple(rows))
