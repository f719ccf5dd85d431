"""How much work the GPU had before it at every instant, and when it had none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gpulab.analysis.events.device_work import devices, missing_work
from gpulab.analysis.host.launch_delays import LaunchDelays, launch_delays
from gpulab.analysis.steps.detection import Steps, steps
from gpulab.analysis.steps.ledger import main_device
from gpulab.intervals import Coverage, Ints
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, nothing_to_draw, panels
from gpulab.views.charts.drawing.shades import pale
from gpulab.views.charts.drawing.style import SOFT
from gpulab.views.charts.host.queue_depth_values import Depths, depths
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import count, percent, scale

MOST_POINTS, BINS = 2000, 400  # more changes than that are drawn as bins
MOST_ROWS, MOST_LINES = 40, 60
_HELD, _DRY = "matmul", "loader"


def queue_depth(run: Run) -> Chart:
    """GPU work that was called for and not finished, over the interior steps; and where the GPU idles for want of it.

    From calls and the work they started, joined by correlation, on the GPU that did most; copies and fills count as
    kernels do. A queue of one or two pieces is as good as empty for short kernels: the next call must come in time.
    Work whose call was not recorded is not in the curve, but is no idle time either.
    """
    if not devices(run):
        why = missing_work(run) or "no work of a GPU was recorded"
        fix = "Record on a machine with a GPU, or on a virtual one: %%gpuprofile --virtual h100"
        return nothing_to_draw(run, "Queue of the GPU", why, fix)
    found, delays = steps(run), launch_delays(run, main_device(run))
    if delays is None or not len(delays.rows) or not found.interior.any():
        why = "the trace does not tell which calls started the GPU's work"
        return nothing_to_draw(run, "Queue of the GPU", why, "Record the CPU's activity beside the GPU's")
    seen = depths(run, found, delays, main_device(run))
    return panels(
        _answer(found, seen),
        lambda axes: _draw(axes, found, seen),
        2,
        source=run,
        alt=_words(seen, delays),
        table=_table(found, seen),
        heights=(3, 1),
    )


def _answer(found: Steps, seen: Depths) -> str:
    count = int(found.interior.sum())
    steps_of = f"{count} interior steps" if count > 1 else "the one interior step"
    if not seen.dry.total_ns:
        half = f"half of the time it holds {seen.median:,} pieces of work or more"
        return f"The GPU's queue never runs dry in {steps_of}: {half}"
    unit = scale(seen.window.total_ns / count)
    each = f"{unit.number(seen.dry.total_ns / count)} of {unit(seen.window.total_ns / count)}{' a step' * (count > 1)}"
    return f"The GPU's queue is empty {percent(seen.dry_frac)} of {steps_of}: {each}"


def _draw(axes: Sequence[Axes], found: Steps, seen: Depths) -> None:
    held, dry = axes
    first, last = int(seen.window.start_ns[0]), int(seen.window.end_ns[-1])
    unit = scale(last - first)
    inside = np.flatnonzero((seen.at_ns > first) & (seen.at_ns < last))
    edges = _edges(first, last)
    middle = (edges - first) / unit.unit_ns
    if len(inside) <= MOST_POINTS:
        at = np.concatenate([[first], seen.at_ns[inside], [last]])
        depth = seen.depth[np.searchsorted(seen.at_ns, at, side="right") - 1]
        drawn = (at - first) / unit.unit_ns
        held.fill_between(drawn, depth, step="post", color=pale(colour(_HELD), 0.35), linewidth=0)
        held.step(drawn, depth, where="post", color=colour(_HELD), linewidth=1)
    else:
        most, mean = seen.deepest(edges[:-1], edges[1:]), seen.mean(edges[:-1], edges[1:])
        held.stairs(most, middle, fill=True, color=pale(colour(_HELD), 0.35), label="most")
        held.stairs(mean, middle, color=colour(_HELD), linewidth=1.3, label="mean")
        held.legend(loc="upper right", ncols=2, borderaxespad=0.1)
        held.set_ylim(top=max(1, int(most.max())) * 1.2)
    held.set_ylim(bottom=0)
    held.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    held.set_ylabel("pieces of work\nnot finished")
    share = 100 * Coverage.of(seen.dry).within(edges[:-1], edges[1:]) / np.diff(edges)
    dry.stairs(share, middle, fill=True, color=colour(_DRY))
    dry.set_ylim(0, 100)
    dry.set_yticks([0, 50, 100])
    dry.set_ylabel("starving, %")
    dry.set_xlim(0, (last - first) / unit.unit_ns)
    dry.set_xlabel(f"{unit.unit} since the first interior step began")
    starts = found.start_ns[found.interior]
    if len(starts) <= MOST_LINES:
        for each in axes:
            each.vlines(
                (starts - first) / unit.unit_ns, 0, 1, transform=each.get_xaxis_transform(), color=SOFT, lw=0.7, ls=":"
            )


def _edges(first: int, last: int) -> Ints:
    count = min(BINS, max(1, last - first))
    return np.linspace(first, last, count + 1).astype(np.int64)


def _words(seen: Depths, delays: LaunchDelays) -> str:
    deepest = int(seen.deepest(seen.window.start_ns, seen.window.end_ns).max())
    stretches = count(len(seen.dry.start_ns), "stretch")
    told = (
        f"Two plots over the interior steps. Above, how many pieces of GPU work were called for and not finished: "
        f"{deepest:,} at most, {seen.median:,} in the median of the time. Below, the share of the time in which the "
        f"GPU idles with an empty queue: {percent(seen.dry_frac, 1)} in all, in {stretches}."
    )
    without = (
        f" {count(delays.unlinked, 'piece')} of work with no recorded call are not in the curve."
        if delays.unlinked
        else ""
    )
    return told + without


def _table(found: Steps, seen: Depths) -> Table:
    number = np.flatnonzero(found.interior)
    start, end = found.start_ns[number], found.end_ns[number]
    dry, most, mean = Coverage.of(seen.dry).within(start, end), seen.deepest(start, end), seen.mean(start, end)
    unit = scale(float((end - start).max()))
    rows = [
        Row((
            f"{number[each]:,}", unit.number(end[each] - start[each]), unit.number(dry[each]),
            percent(dry[each] / max(1, end[each] - start[each]), 1), f"{mean[each]:,.1f}", f"{most[each]:,}",
        ))
        for each in range(min(len(number), MOST_ROWS))
    ]  # fmt: skip
    left_out = len(number) - len(rows)
    caption = f"The first {len(rows)} interior steps; {left_out:,} more are not listed." if left_out else ""
    header = ("step", f"took, {unit.unit}", f"starving, {unit.unit}", "share", "mean depth", "deepest")
    return Table(header=header, rows=tuple(rows), caption=caption)
