"""Charts: one function each, a run in, a matplotlib Figure out, which is returned and never shown.

`gpulab.charts.step_times(run)` states its answer as its title, names its source, and says itself in words (`.alt`) and
in numbers (`.table`). What a run does not tell is not drawn: the chart then says what is missing, and how to have it.
To add a chart, write its function in a file of its topic, and add one line to the catalogue.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable

from gpulab.views.charts.catalogue import CHARTS
from gpulab.views.charts.drawing.chart import Chart

_BY_NAME = {each.__name__: each for each in CHARTS}
# A chart goes before the file of its own name: `gpulab.charts.ledger` is the chart.
globals().update(_BY_NAME)
__all__ = ["CHARTS", "Chart", *_BY_NAME]


def __getattr__(name: str) -> Callable[..., Chart]:
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise AttributeError(f"there is no chart {name!r}{hint} The charts: {', '.join(_BY_NAME)}")


def __dir__() -> list[str]:
    return sorted(__all__)
