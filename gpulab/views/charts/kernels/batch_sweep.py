"""Throughput over the batch size, and the knee: the size beyond which a larger batch hardly gives more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gpulab.analysis.data.loader import leading_loader
from gpulab.analysis.steps.detection import Steps, grouped, steps
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, chart, nothing_to_draw, sources
from gpulab.views.charts.drawing.style import INK, PAPER, SMALL_PT, SOFT
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, Table
from gpulab.views.virtual_gpu.memory_fit import MaxBatchView
from gpulab.virtual.memory_fit.fitting import GAINING_FRAC, MaxBatch
from gpulab.virtual.memory_fit.measuring import TOO_LARGE
from gpulab.wording import number, percent, scale

MOST_ROWS, MOST_TICKS = 40, 10
_NEED = (
    "Record the loop at several batch sizes: gpulab.charts.batch_sweep(run32, run64), "
    "or batch_sweep({32: run32, 64: run64})"
)
_FITS, _REFUSED = "matmul", "loader"


@dataclass(frozen=True)
class _Point:
    """One batch size: its rate between a low and a high one, and whether there was room for it."""

    batch: int
    per_s: float
    low_per_s: float
    high_per_s: float
    step_ns: float
    fits: bool = True


def batch_sweep(*given: Run | Sequence[Run] | Mapping[int, Run] | MaxBatch | MaxBatchView) -> Chart:
    """Samples a second over the batch size, with the knee: the smallest batch with nine tenths of the best rate.

    Of runs at several batch sizes, each told by its DataLoader or by a mapping from batch size to run; or of what
    gpulab.virtual.max_batch found. The bars of a run are the middle half of its steps. A rate is of samples, not of
    learning: what a larger batch does to convergence, this does not know.
    """
    if len(given) == 1 and isinstance(given[0], MaxBatch | MaxBatchView):
        return _of_found(given[0].found if isinstance(given[0], MaxBatchView) else given[0])
    told = list(_sized(given))
    runs = [run for _, run in told]
    if len(runs) < 2:
        return nothing_to_draw(runs, "Batch sweep", "one run was given, and it is of one batch size", _NEED)
    unsized = sum(batch is None for batch, _ in told)
    if unsized:
        why = f"{unsized} of {len(told)} runs do not tell their batch size"
        return nothing_to_draw(runs, "Batch sweep", why, "Say it: gpulab.charts.batch_sweep({32: run32, 64: run64})")
    points = sorted((_point(batch, run) for batch, run in told if batch), key=lambda each: each.batch if each else 0)
    measured = [each for each in points if each is not None]
    if len({each.batch for each in measured}) < 2:
        why = f"of these {len(runs)} runs, those with steps are all of one batch size"
        return nothing_to_draw(runs, "Batch sweep", why, _NEED)
    return _drawn(measured, sources(runs), "the bar of each is the middle half of its steps")


def _sized(given: Sequence[object]) -> Iterator[tuple[int | None, Run]]:
    """Each run with its batch size; None where it is not told."""
    for each in given:
        if isinstance(each, Mapping):
            yield from each.items()
        elif isinstance(each, Run):
            setup = leading_loader(each)
            yield (setup.batch_size if setup is not None else None), each
        elif isinstance(each, Sequence):
            yield from _sized(each)


def _point(batch: int, run: Run) -> _Point | None:
    """The typical step as a rate; None where the run has no steps."""
    found = steps(run)
    if found.step_ns is None:
        return None
    low_ns, high_ns = np.percentile(_judged(found), (25, 75))
    each = [batch * 1e9 / max(1.0, float(ns)) for ns in (found.step_ns, high_ns, low_ns)]
    return _Point(batch, each[0], min(each), max(each), float(found.step_ns))


def _judged(found: Steps) -> np.ndarray:
    """The steps whose median is quoted, by bursts where they come in such."""
    return grouped(found.dur_ns[found.plain if found.plain_ns is not None else found.interior], found.burst)


def _of_found(found: MaxBatch) -> Chart:
    points = []
    for each in found.tried:
        low, high = each.per_s_range or (each.per_s, each.per_s)
        points.append(_Point(each.work, each.per_s, low, high, each.step_ns, each.verdict != TOO_LARGE))
    points.sort(key=lambda each: each.batch)
    return _drawn(points, f"virtual {found.spec.name}, estimated", "crosses do not fit in its memory")


def knee(points: Sequence[_Point]) -> _Point | None:
    """The smallest batch that has room and nine tenths of the best rate of those that have."""
    best = max((each.per_s for each in points if each.fits), default=0.0)
    return next((each for each in points if each.fits and each.per_s >= GAINING_FRAC * best), None)


def _drawn(points: Sequence[_Point], source: str, note: str) -> Chart:
    return chart(
        _answer(points),
        lambda axes: _draw(axes, points),
        source=source,
        alt=_words(points, note),
        table=_table(points),
    )


def _answer(points: Sequence[_Point]) -> str:
    at, fitting = knee(points), [each for each in points if each.fits]
    if at is None:
        return f"Not even a batch of {points[0].batch:,} has room"
    best = max(fitting, key=lambda each: each.per_s)
    if at.batch == fitting[-1].batch:
        return f"No knee up to a batch of {at.batch:,}: the largest gives most, {number(at.per_s)} samples/s"
    if best is at:
        return f"A batch of {at.batch:,} gives most, {number(at.per_s)} samples/s: larger ones give no more"
    best_rate = f"{percent(at.per_s / best.per_s)} of the best rate tried"
    return f"Knee at a batch of {at.batch:,}: {number(at.per_s)} samples/s, {best_rate} ({number(best.per_s)})"


def _draw(axes: Axes, points: Sequence[_Point]) -> None:
    axes.set_xscale("log", base=2)
    fitting = [each for each in points if each.fits]
    refused = [each for each in points if not each.fits]
    if fitting:
        batch, rate = [each.batch for each in fitting], np.array([each.per_s for each in fitting])
        low, high = (np.array([getattr(each, name) for each in fitting]) for name in ("low_per_s", "high_per_s"))
        shade = colour(_FITS)
        axes.errorbar(
            batch, rate, yerr=[rate - low, high - rate], fmt="o-", color=shade, markersize=5.5, capsize=3, linewidth=1.5
        )
    if refused:
        axes.plot(
            [each.batch for each in refused],
            [each.per_s for each in refused],
            "X",
            markersize=7,
            color=colour(_REFUSED),
            markeredgecolor=PAPER,
            label="does not fit",
        )
        axes.axvspan(refused[0].batch, points[-1].batch * 1.5, color=colour(_REFUSED), alpha=0.07, linewidth=0)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1)
    top = max(each.high_per_s for each in points)
    at = knee(points)
    if at is not None and at.batch < fitting[-1].batch:
        _mark_knee(axes, at, GAINING_FRAC * max(each.per_s for each in fitting))
    axes.set_ylim(0, 1.12 * top)
    axes.set_xlim(points[0].batch / 1.5, points[-1].batch * 1.5)
    axes.xaxis.set_major_locator(FixedLocator(_ticks([each.batch for each in points])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if top >= 10 else f"{value:g}"))
    axes.set_xlabel("batch size, samples")
    axes.set_ylabel("samples/s")


def _mark_knee(axes: Axes, at: _Point, level: float) -> None:
    """A ring around it, and the rate that makes it the knee."""
    ring: dict[str, Any] = {"markersize": 13, "markerfacecolor": "none", "markeredgecolor": INK, "markeredgewidth": 1.6}
    axes.plot([at.batch], [at.per_s], "o", **ring)
    axes.axhline(level, color=SOFT, linewidth=0.9, linestyle="--")
    place: dict[str, Any] = {"textcoords": "offset points", "va": "top"}
    paper = {"facecolor": PAPER, "edgecolor": "none", "pad": 1.5}
    axes.annotate(
        f"knee: {at.batch:,}", (at.batch, at.per_s), (0, -13), ha="center", fontweight="bold", bbox=paper, **place
    )
    words = f"{percent(GAINING_FRAC)} of the best rate"
    across = axes.get_yaxis_transform()
    axes.annotate(words, (1, level), (-4, -4), xycoords=across, ha="right", fontsize=SMALL_PT, **place)


def _ticks(batches: Sequence[int]) -> list[int]:
    """The sizes themselves, but for those that would stand on one another."""
    chosen: list[int] = []
    apart = max(1.35, (max(batches) / min(batches)) ** (1 / MOST_TICKS))
    for each in sorted(set(batches)):
        if not chosen or each / chosen[-1] >= apart:
            chosen.append(each)
    return chosen


def _words(points: Sequence[_Point], note: str) -> str:
    told = ", ".join(
        f"{each.batch:,}: {number(each.per_s)}{'' if each.fits else ' (does not fit)'}" for each in points[:MOST_ROWS]
    )
    return f"Samples a second over the batch size, which is on a logarithmic axis; {note}. {told}"


def _table(points: Sequence[_Point]) -> Table:
    unit = scale(max(each.step_ns for each in points))
    rows = [
        Row((
            f"{each.batch:,}", number(each.per_s), _span(each),
            unit.number(each.step_ns), "" if each.fits else "does not fit",
        ))
        for each in points[:MOST_ROWS]
    ]  # fmt: skip
    left_out = len(points) - len(rows)
    caption = f"{left_out:,} larger ones left out." if left_out else ""
    return Table(header=("batch", "samples/s", "range", f"step, {unit.unit}", ""), rows=tuple(rows), caption=caption)


def _span(each: _Point) -> str:
    low, high = number(each.low_per_s), number(each.high_per_s)
    return low if low == high else f"{low}-{high}"
