"""Steps and ledger of a run for charts, the chart shown if there is no ledger, and shared axes code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.ledger import build_ledger as ledger_of
from gpulab.intervals import Ints
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.needs import why_no_ledger
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, missing_data_chart
from gpulab.views.charts.drawing.style import TEXT_COLOUR, Style
from gpulab.wording import Scale

WHOLE_RUN = "whole run"


def steps_and_ledger(run: Run) -> tuple[Steps, Ledger | None]:
    """Return the steps of a run and their ledger; no ledger if no step was recorded with events."""
    run_steps = find_steps(run)
    return run_steps, ledger_of(run, run_steps)


def missing_events_chart(run: Run, subject: str) -> Chart:
    """Return the chart for a run in which no step was recorded with events."""
    why, fix = why_no_ledger(Evidence(run, find_steps(run), None))
    return missing_data_chart(run, subject, why, fix)


def step_basis(run: Run, run_steps: Steps) -> str:
    """Say which steps the numbers are from, for the label of an axis."""
    if run_steps.detected_by == WHOLE_RUN:
        return "the whole recording"
    count = int(run_steps.interior.sum())
    method = "estimated" if run.source.how == "virtual" else "recorded with the profiler on"
    return f"one complete step, {method}" if count == 1 else f"mean of {count} complete steps, {method}"


def label_time_axis(axis: Axis, unit: Scale, most: int = 8) -> None:
    """Label an axis of ns with numbers in a time unit."""
    label_axis(axis, unit.unit_ns, most)


def label_bytes_axis(axis: Axis, longest: float, most: int = 8) -> str:
    """Label an axis of bytes with numbers in the unit that fits, and return the unit."""
    size, name = next(((size, name) for size, name in _SIZES if longest >= size), _SIZES[-1])
    label_axis(axis, size, most)
    return name


_SIZES = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))


def label_axis(axis: Axis, size: float, most: int = 8) -> None:
    """Put ticks at round multiples of a unit of this size, labelled without the unit."""
    axis.set_major_locator(_UnitLocator(size, most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))


class _UnitLocator(MaxNLocator):
    """Ticks at round multiples of a unit instead of the axis values."""

    def __init__(self, size: float, most: int) -> None:
        super().__init__(nbins=most, steps=[1, 2, 2.5, 5, 10])
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """Return the ticks of MaxNLocator for values in the unit."""
        return [value * self._size for value in super().tick_values(vmin / self._size, vmax / self._size)]


def bar_rows(axes: Axes, labels: Sequence[str], right: float) -> None:
    """Label one row for each horizontal bar, the first at the top; the x axis goes from zero to `right`."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, right or 1.0)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def reduce_points(at: Ints, values: NDArray[np.float64], most: int) -> tuple[Ints, NDArray[np.float64]]:
    """Reduce a line to at most `most` points: minimum and maximum of each interval."""
    if len(at) <= most:
        return at, values
    unknown = np.isnan(values)
    highest, lowest = np.where(unknown, -np.inf, values), np.where(unknown, np.inf, values)
    parts = np.array_split(np.arange(len(at)), most // 2)
    ends = [sorted((int(part[highest[part].argmax()]), int(part[lowest[part].argmin()]))) for part in parts]
    indices = np.array(ends).reshape(-1)
    return at[indices], values[indices]


def label_bar_end(axes: Axes, x: float, y: float, text: str, **more: Any) -> None:
    """Write a value to the right of the end of its bar."""
    style: Style = {"va": "center", "ha": "left", "fontsize": 8.5, "color": TEXT_COLOUR, **more}
    axes.annotate(text, (x, y), xytext=(4, 0), textcoords="offset points", **style)
