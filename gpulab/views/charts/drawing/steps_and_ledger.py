"""What most charts begin with: the steps of a run and its ledger, and what to say where there are none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from gpulab.analysis.steps.detection import Steps, steps
from gpulab.analysis.steps.ledger import Ledger
from gpulab.analysis.steps.ledger import ledger as ledger_of
from gpulab.intervals import Ints
from gpulab.rules.engine.evidence import Evidence
from gpulab.rules.engine.needs import without_ledger
from gpulab.run import Run
from gpulab.views.charts.drawing.chart import Chart, nothing_to_draw
from gpulab.views.charts.drawing.style import INK, Dress
from gpulab.wording import Scale

LOOPLESS = "whole run"


def accounted(run: Run) -> tuple[Steps, Ledger | None]:
    """The steps of a run, and where their time went; no ledger where no step was recorded with events."""
    found = steps(run)
    return found, ledger_of(run, found)


def without_events(run: Run, what: str) -> Chart:
    """The chart of a run in which no step was recorded with events."""
    why, fix = without_ledger(Evidence(run, steps(run), None))
    return nothing_to_draw(run, what, why, fix)


def how_judged(run: Run, found: Steps) -> str:
    """From which steps the figures are: for the label of an axis."""
    if found.found_by == LOOPLESS:
        return "all that was recorded"
    count = int(found.interior.sum())
    how = "estimated" if run.source.how == "virtual" else "recorded with the profiler on"
    return f"one interior step, {how}" if count == 1 else f"mean of {count} interior steps, {how}"


def in_unit(axis: Axis, unit: Scale, most: int = 8) -> None:
    """Ticks of an axis of ns as bare numbers of a unit."""
    by(axis, unit.unit_ns, most)


def in_bytes(axis: Axis, longest: float, most: int = 8) -> str:
    """Ticks of an axis of bytes as bare numbers of a unit, which is given back."""
    size, name = next(((size, name) for size, name in _SIZES if longest >= size), _SIZES[-1])
    by(axis, size, most)
    return name


_SIZES = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"), (1.0, "B"))


def by(axis: Axis, size: float, most: int = 8) -> None:
    """Ticks of an axis at round numbers of a unit of this size, as bare numbers of it."""
    axis.set_major_locator(_OfUnit(size, most))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))


class _OfUnit(MaxNLocator):
    """Round numbers of a unit, not of what the axis counts in."""

    def __init__(self, size: float, most: int) -> None:
        super().__init__(nbins=most, steps=[1, 2, 2.5, 5, 10])
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        """As MaxNLocator, on the numbers that are read."""
        return [value * self._size for value in super().tick_values(vmin / self._size, vmax / self._size)]


def bar_rows(axes: Axes, labels: Sequence[str], right: float) -> None:
    """One labelled row for each horizontal bar, the first on top; the x axis reaches from nothing to `right`."""
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, right)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def thinned(at: Ints, values: NDArray[np.float64], most: int) -> tuple[Ints, NDArray[np.float64]]:
    """At most so many points of a line: of each interval its highest and its lowest."""
    if len(at) <= most:
        return at, values
    unknown = np.isnan(values)
    highest, lowest = np.where(unknown, -np.inf, values), np.where(unknown, np.inf, values)
    parts = np.array_split(np.arange(len(at)), most // 2)
    ends = [sorted((int(part[highest[part].argmax()]), int(part[lowest[part].argmin()]))) for part in parts]
    picked = np.array(ends).reshape(-1)
    return at[picked], values[picked]


def beside(axes: Axes, x: float, y: float, words: str, **more: Any) -> None:
    """A value written to the right of where its bar ends."""
    style: Dress = {"va": "center", "ha": "left", "fontsize": 8.5, "color": INK, **more}
    axes.annotate(words, (x, y), xytext=(4, 0), textcoords="offset points", **style)
