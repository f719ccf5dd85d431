"""Charts: functions that take a run and return a matplotlib Figure, without showing it.

The title of `gpulab.charts.step_times(run)` states the result. Every chart names its source, and has a description
(`.alt`) and its numbers (`.table`). If the run lacks the data, the chart says what is missing and how to record it. To
add a chart, write its function in a file of its topic, and add one line to the catalogue.

    catalogue   the list of charts
    drawing     the Chart class, style, text layout, colours
    steps       ledger, step times, predicted against measured
    data        DataLoader workers
    host        idle time, queue depth
    copies      copy rates
    kernels     time by kernel, roofline, batch size
    memory      memory over time, by phase and by category
    ranks       waits at collectives
    machine     sensors, GPUs compared
    report_png  the first part of a report as a picture
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

from gpulab.questions.run_names import find_run, replace_names
from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.charts.drawing.chart import Chart
from gpulab.wording import did_you_mean


def _accepting_names(chart: Callable[..., Chart]) -> Callable[..., Chart]:
    """Return the chart function, which then takes the name of a run or the path of a file in place of a run."""
    first = next(iter(signature(chart).parameters.values()))
    resolve: Callable[[Any], Any] = replace_names if "Sequence" in str(first.annotation) else find_run

    @wraps(chart)
    def draw(*runs: Any, **options: Any) -> Chart:
        return chart(*map(resolve, runs), **{name: resolve(value) for name, value in options.items()})

    return draw


_BY_NAME = {chart.__name__: _accepting_names(chart) for chart in CHARTS}
# A chart takes precedence over the module of the same name: `gpulab.charts.ledger` is the chart.
globals().update(_BY_NAME)
__all__ = ["CHARTS", "Chart", *_BY_NAME]


def __getattr__(name: str) -> Callable[..., Chart]:
    near = did_you_mean(name, _BY_NAME)
    hint = f"; {near}" if near else "."
    raise AttributeError(f"there is no chart {name!r}{hint} The charts are: {', '.join(_BY_NAME)}")


def __dir__() -> list[str]:
    return sorted(__all__)
