"""Charts: functions that take a run and return a matplotlib Figure, without showing it.

The title of `gpulab.charts.step_times(run)` states the result. Every chart names its source, and has a description
(`.alt`) and its numbers (`.table`). If the run lacks the data, the chart says what is missing and how to record it.
matplotlib is optional: without it, this package can be imported, and the use of a chart raises GpulabError. To add a
chart, write its function in a file of its topic, and add one line to the catalogue.

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
from typing import TYPE_CHECKING, Any

from gpulab.extras import is_installed, require_extra
from gpulab.questions.run_names import find_run, replace_names
from gpulab.wording import did_you_mean

if TYPE_CHECKING:
    from gpulab.views.charts.catalogue import CHARTS as CHARTS
    from gpulab.views.charts.drawing.chart import Chart as Chart

__all__: list[str] = []


def _accepting_names(chart: Callable[..., Chart]) -> Callable[..., Chart]:
    """Return the chart function, which then takes the name of a run or the path of a file in place of a run."""
    first = next(iter(signature(chart).parameters.values()))
    resolve: Callable[[Any], Any] = replace_names if "Sequence" in str(first.annotation) else find_run

    @wraps(chart)
    def draw(*runs: Any, **options: Any) -> Chart:
        return chart(*map(resolve, runs), **{name: resolve(value) for name, value in options.items()})

    return draw


def _define_charts() -> None:
    """Add the charts, `CHARTS` and `Chart` to this module. Imports matplotlib."""
    from gpulab.views.charts.catalogue import CHARTS
    from gpulab.views.charts.drawing.chart import Chart

    by_name = {chart.__name__: _accepting_names(chart) for chart in CHARTS}
    # A chart takes precedence over the module of the same name: `gpulab.charts.ledger` is the chart.
    globals().update(by_name, CHARTS=CHARTS, Chart=Chart)
    __all__[:] = ["CHARTS", "Chart", *by_name]


if is_installed("matplotlib"):
    _define_charts()


def __getattr__(name: str) -> Callable[..., Chart]:
    if not __all__ and not name.startswith("_"):  # matplotlib was missing; it may have been installed since
        require_extra("charts", "matplotlib", problem="Charts cannot be drawn.")
        _define_charts()
        if name in __all__:
            chart: Callable[..., Chart] = globals()[name]
            return chart
    charts = [name for name in __all__ if name not in ("CHARTS", "Chart")]
    near = did_you_mean(name, charts)
    hint = f"; {near}" if near else "."
    raise AttributeError(f"there is no chart {name!r}{hint} The charts are: {', '.join(charts)}")


def __dir__() -> list[str]:
    return sorted(__all__)
