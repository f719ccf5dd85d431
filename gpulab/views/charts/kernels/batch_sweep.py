"""Chart of throughput by batch size, and its knee: larger batches are hardly faster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from gpulab.analysis.data.loader import training_loader
from gpulab.analysis.steps.detection import Steps, burst_means, find_steps
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, combined_source, missing_data_chart, single_plot
from gpulab.views.charts.drawing.style import BACKGROUND, SMALL_PT, SOFT_COLOUR, TEXT_COLOUR
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.views.virtual_gpu.memory_fit import MaxBatchView
from gpulab.virtual.memory_fit.fitting import BEST_THROUGHPUT_FRAC, MaxBatch
from gpulab.virtual.memory_fit.step_estimate import TOO_LARGE
from gpulab.wording import number, percent, scale

MAX_ROWS, MAX_TICKS = 40, 10
_NEED = (
    "Record the loop at several batch sizes: gpulab.charts.batch_sweep(run32, run64), "
    "or batch_sweep({32: run32, 64: run64})"
)
_FITS, _REFUSED = "matmul", "loader"


@dataclass(frozen=True)
class _Point:
    """One batch size: its rate and range, and whether it fits in memory."""

    batch: int
    per_s: float
    low_per_s: float
    high_per_s: float
    step_ns: float
    fits: bool = True


def batch_sweep(*runs_or_result: Run | Sequence[Run] | Mapping[int, Run] | MaxBatch | MaxBatchView) -> Chart:
    """Show samples per second by batch size, with the knee: the smallest batch with 90 % of the highest rate.

    For runs at several batch sizes, known from the DataLoader or from a mapping of batch size to run; or for the
    result of gpulab.virtual.max_batch. Error bars are the middle half of the steps. The rate is in samples: the effect
    of a larger batch on convergence is not shown.
    """
    if len(runs_or_result) == 1 and isinstance(runs_or_result[0], MaxBatch | MaxBatchView):
        result = runs_or_result[0]
        return _of_max_batch(result.max_batch if isinstance(result, MaxBatchView) else result)
    sized_runs = list(_sized(runs_or_result))
    runs = [run for _, run in sized_runs]
    if len(runs) < 2:
        return missing_data_chart(runs, "Batch sweep", "only one run was passed, with one batch size", _NEED)
    unsized = sum(batch is None for batch, _ in sized_runs)
    if unsized:
        why = f"the batch size of {unsized} of {len(sized_runs)} runs is unknown"
        return missing_data_chart(
            runs, "Batch sweep", why, "Pass it: gpulab.charts.batch_sweep({32: run32, 64: run64})"
        )
    points = sorted(
        (_point(batch, run) for batch, run in sized_runs if batch), key=lambda point: point.batch if point else 0
    )
    measured = [each for each in points if each is not None]
    if len({each.batch for each in measured}) < 2:
        why = f"all of the {len(runs)} runs with steps have the same batch size"
        return missing_data_chart(runs, "Batch sweep", why, _NEED)
    return _figure(measured, combined_source(runs), "error bars are the middle half of the steps")


def _sized(arguments: Sequence[object]) -> Iterator[tuple[int | None, Run]]:
    """Yield each run with its batch size; None if unknown."""
    for argument in arguments:
        if isinstance(argument, Mapping):
            yield from argument.items()
        elif isinstance(argument, Run):
            setup = training_loader(argument)
            yield (setup.batch_size if setup is not None else None), argument
        elif isinstance(argument, Sequence):
            yield from _sized(argument)


def _point(batch: int, run: Run) -> _Point | None:
    """Return the rate of the typical step; None if the run has no steps."""
    run_steps = find_steps(run)
    if run_steps.step_ns is None:
        return None
    low_ns, high_ns = np.percentile(_durations(run_steps), (25, 75))
    rates = [batch * 1e9 / max(1.0, float(ns)) for ns in (run_steps.step_ns, high_ns, low_ns)]
    return _Point(batch, rates[0], min(rates), max(rates), float(run_steps.step_ns))


def _durations(run_steps: Steps) -> np.ndarray:
    """Return the durations behind the quoted median, averaged over groups if steps come in groups."""
    selected = run_steps.unprofiled if run_steps.unprofiled_ns is not None else run_steps.interior
    return burst_means(run_steps.dur_ns[selected], run_steps.burst)


def _of_max_batch(result: MaxBatch) -> Chart:
    points = []
    for trial in result.estimates:
        low, high = trial.per_s_range or (trial.per_s, trial.per_s)
        points.append(_Point(trial.samples, trial.per_s, low, high, trial.step_ns, trial.verdict != TOO_LARGE))
    points.sort(key=lambda point: point.batch)
    return _figure(points, f"virtual {result.spec.name}, estimated", "batches marked with a cross do not fit in memory")


def knee(points: Sequence[_Point]) -> _Point | None:
    """Return the smallest batch that fits and has 90 % of the highest rate of those that fit."""
    highest = max((each.per_s for each in points if each.fits), default=0.0)
    return next((each for each in points if each.fits and each.per_s >= BEST_THROUGHPUT_FRAC * highest), None)


def _figure(points: Sequence[_Point], source: str, note: str) -> Chart:
    return single_plot(
        _answer(points),
        lambda axes: _draw(axes, points),
        source=source,
        alt=_alt(points, note),
        table=_table(points),
    )


def _answer(points: Sequence[_Point]) -> str:
    knee_point, fitting = knee(points), [each for each in points if each.fits]
    if knee_point is None:
        return f"Not even a batch of {points[0].batch:,} fits in memory"
    batch, rate = f"{knee_point.batch:,}", f"{number(knee_point.per_s)} samples/s"
    fastest = max(fitting, key=lambda point: point.per_s)
    if knee_point.batch == fitting[-1].batch:
        return f"No knee up to a batch of {batch}: the largest batch is fastest, {rate}"
    if fastest is knee_point:
        return f"A batch of {batch} is fastest, {rate}: larger batches are no faster"
    share = f"{percent(knee_point.per_s / fastest.per_s)} of the highest rate ({number(fastest.per_s)})"
    return f"Knee at a batch of {batch}: {rate}, {share}"


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
            markeredgecolor=BACKGROUND,
            label="does not fit",
        )
        axes.axvspan(refused[0].batch, points[-1].batch * 1.5, color=colour(_REFUSED), alpha=0.07, linewidth=0)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), borderaxespad=0.1)
    top = max(each.high_per_s for each in points)
    knee_point = knee(points)
    if knee_point is not None and knee_point.batch < fitting[-1].batch:
        _mark_knee(axes, knee_point, BEST_THROUGHPUT_FRAC * max(each.per_s for each in fitting))
    axes.set_ylim(0, 1.12 * top)
    axes.set_xlim(points[0].batch / 1.5, points[-1].batch * 1.5)
    axes.xaxis.set_major_locator(FixedLocator(_ticks([each.batch for each in points])))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}" if top >= 10 else f"{value:g}"))
    axes.set_xlabel("batch size, samples")
    axes.set_ylabel("samples/s")


def _mark_knee(axes: Axes, knee_point: _Point, level: float) -> None:
    """Draw a ring around the knee, and a line at the rate that defines it."""
    ring: dict[str, Any] = {
        "markersize": 13,
        "markerfacecolor": "none",
        "markeredgecolor": TEXT_COLOUR,
        "markeredgewidth": 1.6,
    }
    axes.plot([knee_point.batch], [knee_point.per_s], "o", **ring)
    axes.axhline(level, color=SOFT_COLOUR, linewidth=0.9, linestyle="--")
    position: dict[str, Any] = {"textcoords": "offset points", "va": "top"}
    paper = {"facecolor": BACKGROUND, "edgecolor": "none", "pad": 1.5}
    axes.annotate(
        f"knee: {knee_point.batch:,}",
        (knee_point.batch, knee_point.per_s),
        (0, -13),
        ha="center",
        fontweight="bold",
        bbox=paper,
        **position,
    )
    label = f"{percent(BEST_THROUGHPUT_FRAC)} of the highest rate"
    transform = axes.get_yaxis_transform()
    axes.annotate(label, (1, level), (-4, -4), xycoords=transform, ha="right", fontsize=SMALL_PT, **position)


def _ticks(batches: Sequence[int]) -> list[int]:
    """Return the batch sizes without those whose labels would overlap."""
    labelled: list[int] = []
    min_ratio = max(1.35, (max(batches) / min(batches)) ** (1 / MAX_TICKS))
    for batch in sorted(set(batches)):
        if not labelled or batch / labelled[-1] >= min_ratio:
            labelled.append(batch)
    return labelled


def _alt(points: Sequence[_Point], note: str) -> str:
    rates = ", ".join(
        f"{each.batch:,}: {number(each.per_s)}{'' if each.fits else ' (does not fit)'}" for each in points[:MAX_ROWS]
    )
    return f"Samples per second by batch size, on a logarithmic axis; {note}. {rates}"


def _table(points: Sequence[_Point]) -> TableBlock:
    unit = scale(max(each.step_ns for each in points))
    rows = [
        Row((
            f"{each.batch:,}", number(each.per_s), _span(each),
            unit.number(each.step_ns), "" if each.fits else "does not fit",
        ))
        for each in points[:MAX_ROWS]
    ]  # fmt: skip
    omitted = len(points) - len(rows)
    caption = f"{omitted:,} larger batches are not listed." if omitted else ""
    return TableBlock(
        header=("batch", "samples/s", "range", f"step, {unit.unit}", ""), rows=tuple(rows), caption=caption
    )


def _span(point: _Point) -> str:
    low, high = number(point.low_per_s), number(point.high_per_s)
    return low if low == high else f"{low}-{high}"
