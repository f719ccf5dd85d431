"""Chart of a DataLoader: load of each worker over time, and wait and use of each batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from gpulab.run import Run
from gpulab.views.charts.data.batch_times import BatchTimes, WorkerSamples, find_batch_times, mean_load, worker_samples
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart, stacked_plots
from gpulab.views.charts.drawing.shades import pale_shade
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import UNKNOWN, Scale, count, number, percent, scale

MAX_MARKS, BINS = 600, 240  # more batches are drawn as bins
MAX_WORKERS, MAX_INTERVALS = 32, 400  # drawn: the first workers; more intervals are grouped
MAX_ROWS = 40
_WAIT, _USE, _LOAD = "loader", "matmul", "matmul"
_UNKNOWN_LOAD: Mapping[str, Any] = {"facecolor": BACKGROUND, "edgecolor": NEUTRAL, "hatch": "////", "linewidth": 0}


def loader_workers(run: Run) -> Chart:
    """Show the load of each worker and its waits for storage above, and wait and use of each batch below.

    Load is CPU time divided by time, from samples of the worker processes. When a worker finished a batch is not
    recorded, only when the loop requested and received it. Low load without waits for storage means that a worker had
    nothing to do, or that its result queue was full.
    """
    batch_times, workers = find_batch_times(run), list(worker_samples(run))
    if batch_times is None:
        return missing_data_chart(
            run,
            "DataLoader",
            "no call of a DataLoader was recorded",
            "Iterate over a torch.utils.data.DataLoader inside the recorded cell",
        )
    drawn_workers = workers[:MAX_WORKERS]
    heights = (max(1.0, 0.28 * len(drawn_workers)), 2.2) if drawn_workers else None
    return stacked_plots(
        _answer(batch_times, workers),
        lambda axes: _draw(axes, batch_times, drawn_workers),
        2 if drawn_workers else 1,
        source=run,
        alt=_alt(batch_times, workers),
        table=_table(batch_times, workers),
        height_in=3.0 + (0.5 + min(3.0, 0.16 * len(drawn_workers)) if drawn_workers else 0.0),
        heights=heights,
    )


def _answer(batch_times: BatchTimes, workers: Sequence[WorkerSamples]) -> str:
    wait = f"the loop waits for data {percent(batch_times.wait_frac)} of the time"
    if batch_times.setup is not None and batch_times.setup.workers == 0:
        return f"No workers (num_workers=0): {wait}, and loads {_count(batch_times)} itself"
    load = mean_load(workers)
    if load is None:
        unit = scale(float(batch_times.wait_ns.mean()))
        return f"{wait[:1].upper()}{wait[1:]}: {unit(float(batch_times.wait_ns.mean()))} per batch on average"
    subject = "One worker computes" if len(workers) == 1 else f"{len(workers)} workers compute"
    if load > 1:
        return f"{subject} on {number(load, 2)} cores{' each' * (len(workers) > 1)}, and {wait}"
    return f"{subject} {percent(load)} of the time, and {wait}"


def _count(batch_times: BatchTimes) -> str:
    return count(len(batch_times), "batch")


def _draw(axes: Sequence[Axes], batch_times: BatchTimes, workers: Sequence[WorkerSamples]) -> None:
    last = max(
        int(batch_times.received_ns.max()),
        int(batch_times.done_ns.max()),
        *(int(each.at_ns[-1]) for each in workers),
        1,
    )
    first = min(int(batch_times.requested_ns[0]), *(int(each.at_ns[0]) for each in workers), last)
    time_scale = scale(last)
    if workers:
        _draw_workers(axes[0], workers, time_scale)
    _draw_batches(axes[-1], batch_times, time_scale)
    margin = 0.01 * (last - first)
    axes[-1].set_xlim((first - margin) / time_scale.unit_ns, (last + margin) / time_scale.unit_ns)
    axes[-1].set_xlabel(f"{time_scale.unit} from the start of the run")


def _draw_workers(axes: Axes, workers: Sequence[WorkerSamples], time_scale: Scale) -> None:
    shades = LinearSegmentedColormap.from_list("load", [to_rgba(colour(_LOAD), 0.08), to_rgba(colour(_LOAD))])
    mesh = None
    for row, worker in enumerate(workers):
        at_ns, load, blocked = _grouped(worker)
        edges = at_ns / time_scale.unit_ns
        unknown = np.flatnonzero(np.isnan(load))
        axes.barh(np.full(len(unknown), row), np.diff(edges)[unknown], 0.8, edges[unknown], **_UNKNOWN_LOAD)
        valid_load = np.ma.masked_invalid(load)[None, :]
        mesh = axes.pcolormesh(
            edges, [row - 0.42, row + 0.42], valid_load, cmap=shades, vmin=0, vmax=1, rasterized=True
        )
        waits = np.flatnonzero(blocked == 1)
        axes.hlines(np.full(len(waits), row + 0.3), edges[waits], edges[waits + 1], color=colour(_WAIT), linewidth=3)
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(min(8, len(workers)), integer=True))
    axes.set_ylabel("worker")
    axes.grid(False)
    if mesh is not None:
        figure = axes.get_figure()
        assert figure is not None
        bar = figure.colorbar(
            mesh, ax=axes, pad=0.01, aspect=8, ticks=[0, 0.5, 1], format=lambda value, _: percent(value)
        )
        bar.set_label("load (1 core = 100 %)", fontsize=SMALL_PT)
        bar.outline.set_visible(False)
    keys = []
    if any((each.blocked == 1).any() for each in workers):
        keys.append(Patch(color=colour(_WAIT), label="waiting for storage"))
    if any(np.isnan(each.load).any() for each in workers):
        keys.append(Patch(**_UNKNOWN_LOAD, label="load unknown"))
    if keys:
        axes.legend(handles=keys, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, borderaxespad=0.1)


def _grouped(worker: WorkerSamples) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return times, load and waits of a worker; many intervals are grouped, with mean load and any wait."""
    group = -(-len(worker.load) // MAX_INTERVALS)
    if group == 1:
        return worker.at_ns, worker.load, worker.blocked
    cuts = np.arange(0, len(worker.load), group)
    cpu_ns = np.add.reduceat(worker.load * np.diff(worker.at_ns), cuts)
    at_ns = np.append(worker.at_ns[cuts], worker.at_ns[-1])
    return at_ns, cpu_ns / np.maximum(np.diff(at_ns), 1), np.fmax.reduceat(worker.blocked, cuts)


def _draw_batches(axes: Axes, batch_times: BatchTimes, time_scale: Scale) -> None:
    wait, use = batch_times.wait_ns, batch_times.use_ns
    unit = scale(max(float(wait.max()), float(use.max()), 1.0))
    x = batch_times.received_ns / time_scale.unit_ns
    if len(batch_times) <= MAX_MARKS:
        axes.vlines(x, 0, wait / unit.unit_ns, color=colour(_WAIT), linewidth=1.6)
        axes.plot(x, wait / unit.unit_ns, "o", markersize=3.6, color=colour(_WAIT), label="waiting for the batch")
        valid = use >= 0
        axes.plot(
            x[valid],
            use[valid] / unit.unit_ns,
            "_",
            markersize=6,
            markeredgewidth=1.8,
            color=colour(_USE),
            label="using the batch",
        )
    else:
        edges = np.linspace(float(x[0]), float(x[-1]), BINS + 1)
        bin_index = np.minimum(np.searchsorted(edges, x, side="right") - 1, BINS - 1)
        count = np.bincount(bin_index, minlength=BINS)
        longest = np.zeros(BINS)
        np.maximum.at(longest, bin_index, wait)
        means = np.bincount(bin_index, weights=wait, minlength=BINS) / np.maximum(count, 1)
        axes.stairs(
            longest / unit.unit_ns, edges, fill=True, color=pale_shade(colour(_WAIT), 0.35), label="waiting, longest"
        )
        axes.stairs(means / unit.unit_ns, edges, fill=True, color=colour(_WAIT), label="waiting, mean")
        use_means = np.bincount(bin_index, weights=np.maximum(use, 0), minlength=BINS) / np.maximum(count, 1)
        axes.stairs(use_means / unit.unit_ns, edges, color=colour(_USE), linewidth=1.3, label="using the batch, mean")
    axes.set_ylim(0, max(float(wait.max()), float(use.max())) / unit.unit_ns * 1.06)
    axes.set_ylabel(f"{unit.unit} per batch")
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=3, borderaxespad=0.1, handlelength=1.2)


def _alt(batch_times: BatchTimes, workers: Sequence[WorkerSamples]) -> str:
    wait, use = batch_times.wait_ns, batch_times.use_ns[batch_times.use_ns >= 0]
    unit = scale(float(max(wait.max(), use.max(initial=0))))
    waits = f"median wait {unit(float(np.median(wait)))}, longest {unit(float(wait.max()))}"
    text = f"{_count(batch_times)} over time: {waits}"
    if len(use):
        text += f"; median use {unit(float(np.median(use)))}"
    if not workers:
        return f"{text}. No worker process was sampled."
    blocked_fracs = [each.blocked_frac for each in workers if each.blocked_frac is not None]
    storage = "waits for storage unknown"
    if blocked_fracs:
        storage = f"waiting for storage in {percent(float(np.mean(blocked_fracs)))} of the samples"
    rest = f" {len(workers) - MAX_WORKERS} more workers are not drawn." if len(workers) > MAX_WORKERS else ""
    load = percent(mean_load(workers))
    return f"{text}. Above, the load of {count(len(workers), 'worker')}: mean {load}; {storage}.{rest}"


def _table(batch_times: BatchTimes, workers: Sequence[WorkerSamples]) -> TableBlock:
    if workers:
        rows = [_worker_row(each) for each in workers[:MAX_ROWS]]
        omitted = len(workers) - len(rows)
        caption = f"{omitted:,} more workers are not listed." if omitted else ""
        return TableBlock(
            header=("worker", "sampled, s", "load", "samples waiting for storage"), rows=tuple(rows), caption=caption
        )
    unit = scale(float(max(batch_times.wait_ns.max(), batch_times.use_ns.max(), 1)))
    rows = [
        Row((f"{index + 1:,}", unit.number(wait), unit.number(use) if use >= 0 else UNKNOWN))
        for index, (wait, use) in enumerate(
            zip(batch_times.wait_ns[:MAX_ROWS].tolist(), batch_times.use_ns.tolist(), strict=False)
        )
    ]
    omitted = len(batch_times) - len(rows)
    caption = f"The first {len(rows)} batches; {omitted:,} more are not listed." if omitted else ""
    return TableBlock(header=("batch", f"wait, {unit.unit}", f"use, {unit.unit}"), rows=tuple(rows), caption=caption)


def _worker_row(worker: WorkerSamples) -> Row:
    sampled_s = (worker.at_ns[-1] - worker.at_ns[0]) / 1e9
    return Row((f"{worker.number}", number(sampled_s), percent(worker.load_frac), percent(worker.blocked_frac)))
