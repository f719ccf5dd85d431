"""Chart of the launch queue of the GPU: launched and unfinished work over time, and when the queue is empty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gpulab.analysis.events.device_work import devices, missing_work_reason
from gpulab.analysis.host.launch_delays import LaunchDelays, launch_delays
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.interior import longest_part
from gpulab.analysis.steps.ledger import main_device
from gpulab.intervals import Coverage, Ints
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, stacked_plots
from gpulab.views.charts.drawing.shades import pale_shade
from gpulab.views.charts.drawing.style import SOFT_COLOUR
from gpulab.views.charts.host.queue_depth_values import QueueDepth, queue_depths
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import count, percent, scale

MAX_POINTS, BINS = 2000, 400  # more changes are drawn as bins
MAX_ROWS, MAX_LINES = 40, 60
_DEPTH, _EMPTY = "matmul", "loader"


def queue_depth(run: Run) -> Chart:
    """Show launched and unfinished GPU work over the interior steps, and when the GPU idles with an empty queue.

    From launch calls and their device work, joined by correlation ID, on the busiest GPU; copies and memsets count
    like kernels. A queue of one or two short kernels is nearly empty: the next launch must arrive in time. Work whose
    launch was not recorded is not in the curve, but does not count as idle time.
    """
    if not devices(run):
        why = missing_work_reason(run) or "no GPU work was recorded"
        fix = "Record on a machine with a GPU, or on a virtual one: %%gpuprofile --virtual h100"
        return missing_data_chart(run, "GPU queue", why, fix)
    run_steps, delays = find_steps(run), launch_delays(run, main_device(run))
    if delays is None or not len(delays.rows) or not run_steps.interior.any():
        why = "the trace does not link GPU work to the calls that launched it"
        return missing_data_chart(run, "GPU queue", why, "Record CPU and GPU activity together")
    run_steps = replace(run_steps, interior=longest_part(run_steps.interior))  # without time that was not recorded
    queue = queue_depths(run, run_steps, delays, main_device(run))
    return stacked_plots(
        _answer(run_steps, queue),
        lambda axes: _draw(axes, run_steps, queue),
        2,
        source=run,
        alt=_alt(queue, delays),
        table=_table(run_steps, queue),
        heights=(3, 1),
    )


def _answer(run_steps: Steps, queue: QueueDepth) -> str:
    step_count = int(run_steps.interior.sum())
    scope = f"{step_count} complete steps" if step_count > 1 else "the one complete step"
    if not queue.empty.total_ns:
        half = f"the median depth is {count(queue.median, 'kernel or copy', 'kernels or copies')}"
        return f"The GPU's queue is never empty in {scope}: {half}"
    unit = scale(queue.window.total_ns / step_count)
    empty = unit.number(queue.empty.total_ns / step_count)
    time = f"{empty} of {unit(queue.window.total_ns / step_count)}{' per step' * (step_count > 1)}"
    return f"The GPU's queue is empty {percent(queue.empty_frac)} of {scope}: {time}"


def _draw(axes: Sequence[Axes], run_steps: Steps, queue: QueueDepth) -> None:
    depth_axes, empty_axes = axes
    first, last = int(queue.window.start_ns[0]), int(queue.window.end_ns[-1])
    unit = scale(last - first)
    inside = np.flatnonzero((queue.at_ns > first) & (queue.at_ns < last))
    edges = _edges(first, last)
    middle = (edges - first) / unit.unit_ns
    if len(inside) <= MAX_POINTS:
        at_ns = np.concatenate([[first], queue.at_ns[inside], [last]])
        depth = queue.depth[np.searchsorted(queue.at_ns, at_ns, side="right") - 1]
        x = (at_ns - first) / unit.unit_ns
        depth_axes.fill_between(x, depth, step="post", color=pale_shade(colour(_DEPTH), 0.35), linewidth=0)
        depth_axes.step(x, depth, where="post", color=colour(_DEPTH), linewidth=1)
    else:
        deepest, mean = queue.deepest(edges[:-1], edges[1:]), queue.mean(edges[:-1], edges[1:])
        depth_axes.stairs(deepest, middle, fill=True, color=pale_shade(colour(_DEPTH), 0.35), label="maximum")
        depth_axes.stairs(mean, middle, color=colour(_DEPTH), linewidth=1.3, label="mean")
        depth_axes.legend(loc="upper right", ncols=2, borderaxespad=0.1)
        depth_axes.set_ylim(top=max(1, int(deepest.max())) * 1.2)
    depth_axes.set_ylim(bottom=0)
    depth_axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    depth_axes.set_ylabel("kernels and copies\nin the queue")
    share = 100 * Coverage.of(queue.empty).covered_ns(edges[:-1], edges[1:]) / np.diff(edges)
    empty_axes.stairs(share, middle, fill=True, color=colour(_EMPTY))
    empty_axes.set_ylim(0, 100)
    empty_axes.set_yticks([0, 50, 100])
    empty_axes.set_ylabel("queue empty,\n% of time")
    empty_axes.set_xlim(0, (last - first) / unit.unit_ns)
    empty_axes.set_xlabel(f"{unit.unit} from the start of the first complete step")
    starts = run_steps.start_ns[run_steps.interior]
    if len(starts) <= MAX_LINES:
        for plot in axes:
            plot.vlines(
                (starts - first) / unit.unit_ns,
                0,
                1,
                transform=plot.get_xaxis_transform(),
                color=SOFT_COLOUR,
                lw=0.7,
                ls=":",
            )


def _edges(first: int, last: int) -> Ints:
    count = min(BINS, max(1, last - first))
    return np.linspace(first, last, count + 1).astype(np.int64)


def _alt(queue: QueueDepth, delays: LaunchDelays) -> str:
    deepest = int(queue.deepest(queue.window.start_ns, queue.window.end_ns).max())
    intervals = count(len(queue.empty.start_ns), "interval")
    text = (
        "Two plots over the complete steps. Above, the number of kernels and copies that are launched and unfinished: "
        f"{deepest:,} at most, median {queue.median:,}. Below, the fraction of time in which the GPU idles with an "
        f"empty queue: {percent(queue.empty_frac, 1)} in total, in {intervals}."
    )
    unlinked = count(delays.unlinked, "kernel or copy", "kernels or copies")
    return text + (f" {unlinked} without a recorded launch are not in the curve." if delays.unlinked else "")


def _table(run_steps: Steps, queue: QueueDepth) -> TableBlock:
    interior = np.flatnonzero(run_steps.interior)
    start, end = run_steps.start_ns[interior], run_steps.end_ns[interior]
    empty, deepest, mean = (
        Coverage.of(queue.empty).covered_ns(start, end),
        queue.deepest(start, end),
        queue.mean(start, end),
    )
    unit = scale(float((end - start).max()))
    rows = [
        Row((
            f"{interior[each]:,}", unit.number(end[each] - start[each]), unit.number(empty[each]),
            percent(empty[each] / max(1, end[each] - start[each]), 1), f"{mean[each]:,.1f}", f"{deepest[each]:,}",
        ))
        for each in range(min(len(interior), MAX_ROWS))
    ]  # fmt: skip
    omitted = len(interior) - len(rows)
    caption = f"The first {len(rows)} complete steps; {omitted:,} more are not listed." if omitted else ""
    header = ("step", f"step time, {unit.unit}", f"queue empty, {unit.unit}", "share", "mean depth", "max depth")
    return TableBlock(header=header, rows=tuple(rows), caption=caption)
