"""What the DataLoader's workers did over time, and how long the loop waited for each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gpulab.run import Run
from gpulab.views.charts.data.batch_times import Batches, Watched, batches, mean_load, watched
from gpulab.views.charts.drawing.chart import Chart, nothing_to_draw, panels
from gpulab.views.charts.drawing.shades import pale
from gpulab.views.charts.drawing.style import PAPER, SMALL_PT
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.wording import UNKNOWN, Scale, count, number, percent, scale

MOST_MARKS, BINS = 600, 240  # more batches than that are drawn as bins
MOST_WORKERS, MOST_STRETCHES = 32, 400  # drawn; of more, the first, and looks in groups
MOST_ROWS = 40
_WAITED, _KEPT, _LOAD = "loader", "matmul", "matmul"
_UNTOLD: Mapping[str, Any] = {"facecolor": PAPER, "edgecolor": NEUTRAL, "hatch": "////", "linewidth": 0}


def loader_workers(run: Run) -> Chart:
    """Above, each worker's load between looks, and where it waited for storage; below, each batch's wait and use.

    Load is CPU time over time, from samples of the worker processes; when a worker finished a batch is not recorded,
    only when the loop asked for it and got it. Low load without waiting for storage means a worker had nothing to do,
    or that its result queue was full.
    """
    told, seen = batches(run), list(watched(run))
    if told is None:
        return nothing_to_draw(
            run,
            "DataLoader",
            "no call of a DataLoader was recorded",
            "Draw the batches from torch.utils.data.DataLoader inside the recorded cell",
        )
    crew = seen[:MOST_WORKERS]
    heights = (max(1.0, 0.28 * len(crew)), 2.2) if crew else None
    return panels(
        _answer(told, seen),
        lambda axes: _draw(axes, told, crew),
        2 if crew else 1,
        source=run,
        alt=_words(told, seen),
        table=_table(told, seen),
        height_in=3.0 + (0.5 + min(3.0, 0.16 * len(crew)) if crew else 0.0),
        heights=heights,
    )


def _answer(told: Batches, seen: Sequence[Watched]) -> str:
    waited = f"the loop waits for data {percent(told.waited_frac)} of the time"
    workers = told.setup.workers if told.setup is not None else None
    if workers == 0:
        return f"No workers (num_workers=0): {waited}, building {_many(told)} itself"
    load = mean_load(seen)
    if load is None:
        unit = scale(float(told.wait_ns.mean()))
        return f"{waited[:1].upper()}{waited[1:]}: {unit(float(told.wait_ns.mean()))} for a mean batch"
    each = "One worker computes" if len(seen) == 1 else f"{len(seen)} workers compute"
    if load > 1:
        return f"{each} on {number(load, 2)} cores{' each' * (len(seen) > 1)}, and {waited}"
    return f"{each} {percent(load)} of the time, and {waited}"


def _many(told: Batches) -> str:
    return count(len(told), "batch")


def _draw(axes: Sequence[Axes], told: Batches, seen: Sequence[Watched]) -> None:
    last = max(int(told.came_ns.max()), int(told.done_ns.max()), *(int(each.at_ns[-1]) for each in seen), 1)
    first = min(int(told.asked_ns[0]), *(int(each.at_ns[0]) for each in seen), last)
    along = scale(last)
    if seen:
        _draw_workers(axes[0], seen, along)
    _draw_batches(axes[-1], told, along)
    spare = 0.01 * (last - first)
    axes[-1].set_xlim((first - spare) / along.unit_ns, (last + spare) / along.unit_ns)
    axes[-1].set_xlabel(f"{along.unit} from the start of the run")


def _draw_workers(axes: Axes, seen: Sequence[Watched], along: Scale) -> None:
    shades = LinearSegmentedColormap.from_list("load", [pale(colour(_LOAD), 0.08), colour(_LOAD)])
    mesh = None
    for place, each in enumerate(seen):
        at, load, blocked = _fewer(each)
        edges = at / along.unit_ns
        untold = np.flatnonzero(np.isnan(load))
        axes.barh(np.full(len(untold), place), np.diff(edges)[untold], 0.8, edges[untold], **_UNTOLD)
        shown = np.ma.masked_invalid(load)[None, :]
        mesh = axes.pcolormesh(edges, [place - 0.42, place + 0.42], shown, cmap=shades, vmin=0, vmax=1)
        held = np.flatnonzero(blocked == 1)
        axes.hlines(np.full(len(held), place + 0.3), edges[held], edges[held + 1], color=colour(_WAITED), linewidth=3)
    axes.set_ylim(len(seen) - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(min(8, len(seen)), integer=True))
    axes.set_ylabel("worker")
    axes.grid(False)
    if mesh is not None:
        figure = axes.get_figure(root=True)
        assert figure is not None
        bar = figure.colorbar(
            mesh, ax=axes, pad=0.01, aspect=8, ticks=[0, 0.5, 1], format=lambda value, _: percent(value)
        )
        bar.set_label("load of a core", fontsize=SMALL_PT)
        bar.outline.set_visible(False)
    keys = []
    if any((each.blocked == 1).any() for each in seen):
        keys.append(Patch(color=colour(_WAITED), label="waiting for storage"))
    if any(np.isnan(each.load).any() for each in seen):
        keys.append(Patch(**_UNTOLD, label="load not told"))
    if keys:
        axes.legend(handles=keys, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.1)


def _fewer(each: Watched) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The stretches of a worker, in groups where they are many: mean load, and blocked where any was."""
    group = -(-len(each.load) // MOST_STRETCHES)
    if group == 1:
        return each.at_ns, each.load, each.blocked
    cuts = np.arange(0, len(each.load), group)
    used = np.add.reduceat(each.load * np.diff(each.at_ns), cuts)
    at = np.append(each.at_ns[cuts], each.at_ns[-1])
    return at, used / np.maximum(np.diff(at), 1), np.fmax.reduceat(each.blocked, cuts)


def _draw_batches(axes: Axes, told: Batches, along: Scale) -> None:
    wait, kept = told.wait_ns, told.kept_ns
    unit = scale(max(float(wait.max()), float(kept.max()), 1.0))
    at = told.came_ns / along.unit_ns
    if len(told) <= MOST_MARKS:
        axes.vlines(at, 0, wait / unit.unit_ns, color=colour(_WAITED), linewidth=1.6)
        axes.plot(at, wait / unit.unit_ns, "o", markersize=3.6, color=colour(_WAITED), label="waited for it")
        known = kept >= 0
        axes.plot(
            at[known],
            kept[known] / unit.unit_ns,
            "_",
            markersize=6,
            markeredgewidth=1.8,
            color=colour(_KEPT),
            label="worked on it",
        )
    else:
        edges = np.linspace(float(at[0]), float(at[-1]), BINS + 1)
        place = np.minimum(np.searchsorted(edges, at, side="right") - 1, BINS - 1)
        count = np.bincount(place, minlength=BINS)
        most = np.zeros(BINS)
        np.maximum.at(most, place, wait)
        means = np.bincount(place, weights=wait, minlength=BINS) / np.maximum(count, 1)
        axes.stairs(most / unit.unit_ns, edges, fill=True, color=pale(colour(_WAITED), 0.35), label="waited, most")
        axes.stairs(means / unit.unit_ns, edges, fill=True, color=colour(_WAITED), label="waited, mean")
        worked = np.bincount(place, weights=np.maximum(kept, 0), minlength=BINS) / np.maximum(count, 1)
        axes.stairs(worked / unit.unit_ns, edges, color=colour(_KEPT), linewidth=1.3, label="worked on it, mean")
    axes.set_ylim(0, max(float(wait.max()), float(kept.max())) / unit.unit_ns * 1.06)
    axes.set_ylabel(f"each batch, {unit.unit}")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.1, handlelength=1.2)


def _words(told: Batches, seen: Sequence[Watched]) -> str:
    wait, kept = told.wait_ns, told.kept_ns[told.kept_ns >= 0]
    unit = scale(float(max(wait.max(), kept.max(initial=0))))
    words = [f"Each of {_many(told)} over time: the loop waited "
             f"{unit(float(np.median(wait)))} in the median and {unit(float(wait.max()))} at most"]  # fmt: skip
    if len(kept):
        words.append(f"and worked {unit(float(np.median(kept)))} on it in the median")
    first = " ".join([words[0] + ",", *words[1:]]) if len(words) > 1 else words[0]
    if not seen:
        return f"{first}. No worker process was watched."
    told_blocked = [each.blocked_frac for each in seen if each.blocked_frac is not None]
    storage = "whether they waited for storage was not told"
    if told_blocked:
        storage = f"at {percent(float(np.mean(told_blocked)))} of the looks they waited for storage"
    rest = f" {len(seen) - MOST_WORKERS} more workers are not drawn." if len(seen) > MOST_WORKERS else ""
    load = percent(mean_load(seen))
    return f"{first}. Above it the load of {count(len(seen), 'worker')}: {load} in the mean; {storage}.{rest}"


def _table(told: Batches, seen: Sequence[Watched]) -> Table:
    if seen:
        rows = [_worker_row(each) for each in seen[:MOST_ROWS]]
        left_out = len(seen) - len(rows)
        caption = f"{left_out:,} more workers left out." if left_out else ""
        return Table(
            header=("worker", "watched, s", "load", "at looks waiting for storage"), rows=tuple(rows), caption=caption
        )
    unit = scale(float(max(told.wait_ns.max(), told.kept_ns.max(), 1)))
    rows = [
        Row((f"{place + 1:,}", unit.number(wait), unit.number(kept) if kept >= 0 else UNKNOWN))
        for place, (wait, kept) in enumerate(
            zip(told.wait_ns[:MOST_ROWS].tolist(), told.kept_ns.tolist(), strict=False)
        )
    ]
    left_out = len(told) - len(rows)
    caption = f"The first {len(rows)} batches; {left_out:,} more are not listed." if left_out else ""
    return Table(
        header=("batch", f"waited, {unit.unit}", f"worked on it, {unit.unit}"), rows=tuple(rows), caption=caption
    )


def _worker_row(each: Watched) -> Row:
    load = each.load_frac
    watched_s = (each.at_ns[-1] - each.at_ns[0]) / 1e9
    return Row((f"{each.number}", number(watched_s), percent(load), percent(each.blocked_frac)))
