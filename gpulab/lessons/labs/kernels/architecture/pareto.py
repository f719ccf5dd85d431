"""Results with several objectives, all of them to be minimised: which dominate others, and a plot of the front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpulab.extras import require_extra
from gpulab.run import Run
from gpulab.views.sheet.palette import colour
from gpulab.views.sheet.sheet import Row, TableBlock
from gpulab.wording import number

if TYPE_CHECKING:
    from gpulab.views.charts.drawing.chart import Chart

Objectives = Sequence[float]


def dominates(one: Objectives, other: Objectives) -> bool:
    """Return whether `one` is at least as good in all objectives, and better in one of them."""
    pairs = list(zip(one, other, strict=True))
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


def pareto_front(results: Sequence[Objectives]) -> list[Objectives]:
    """Return the results that no other one dominates, in the order of the first objective."""
    return sorted(
        (result for result in results if not any(dominates(other, result) for other in results)),
        key=lambda result: result[0],
    )


def conditions_met(chosen: Objectives, front: Sequence[Objectives], largest_time: float, largest_memory: float) -> int:
    """Return how many of three conditions a result (error, time, memory) meets.

    They are the limit of time, the limit of memory, and the fewest errors of the front within both limits.
    """
    errors = [error for error, time, memory in front if time <= largest_time and memory <= largest_memory]
    error, time, memory = chosen
    return (time <= largest_time) + (memory <= largest_memory) + bool(errors and error == min(errors))


def front_plot(
    answer: str,
    results: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    source: str | Run,
) -> Chart:
    """Plot points (x, y) by name, one mark per name; the name "front" gets a line through its points."""
    require_extra("charts", "matplotlib", problem="The results cannot be plotted.")
    from gpulab.views.charts.drawing.chart import single_plot

    def draw(axes: Any) -> None:
        shades = ("loader", "matmul", "communication", "copies")
        for index, (name, points) in enumerate(results.items()):
            xs, ys = [point[0] for point in points], [point[1] for point in points]
            mark = "o-" if name == "front" else "X" if len(points) == 1 else "o"
            size = 11 if len(points) == 1 else 6
            shade = colour(shades[index % len(shades)])
            fill = shade if name == "front" or len(points) == 1 else "none"
            axes.plot(xs, ys, mark, color=shade, label=name, markersize=size, markerfacecolor=fill)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.legend(loc="best")

    header = ("", x, y)
    rows = tuple(
        Row((name, number(point[0]), number(point[1]))) for name, points in results.items() for point in points
    )
    alt = f"{y} by {x}: " + "; ".join(
        f"{name}: " + ", ".join(f"{number(a)}: {number(b)}" for a, b in points) for name, points in results.items()
    )
    return single_plot(answer, draw, source=source, alt=alt, table=TableBlock(header=header, rows=rows))
