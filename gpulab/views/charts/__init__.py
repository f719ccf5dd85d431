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

import difflib
from collections.abc import Callable

from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.charts.drawing.chart import Chart

_BY_NAME = {each.__name__: each for each in CHARTS}
# A chart takes precedence over the module of the same name: `gpulab.charts.ledger` is the chart.
globals().update(_BY_NAME)
__all__ = ["CHARTS", "Chart", *_BY_NAME]


def __getattr__(name: str) -> Callable[..., Chart]:
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise AttributeError(f"there is no chart {name!r}{hint or '.'} The charts are: {', '.join(_BY_NAME)}")


def __dir__() -> list[str]:
    return sorted(__all__)
