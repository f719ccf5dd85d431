"""Skew as a heat map: how late each rank arrives in each step. A picture without text, with the numbers in a table."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpulab.analysis.ranks.waits import JobWaits
from gpulab.views.report.job.rank_choice import choice_sentence, most_telling_ranks, rank_label
from gpulab.views.sheet.palette import NEUTRAL, colour
from gpulab.views.sheet.sheet import Mark, Row, TableBlock, Timeline
from gpulab.views.sheet.step_picture import WIDTH
from gpulab.wording import Scale, count, scale

_MAX_COLUMNS = 120  # cells beside each other; of more steps, each cell shows the latest of several
_LANE_PX, _LARGE_LANE_PX = 16, 22
_GAP_PX = 1
_SHADES = 20  # distinct strengths; finer ones look alike
_MIN_OPACITY = 0.05
_MAX_TICKS = 6


def skew_map(waits: JobWaits) -> Timeline:
    """Return a heat map of ranks by steps: the arrival after the first rank, where a step's arrivals differ most."""
    ranks = most_telling_ranks(waits)
    skew = waits.skew_ns[list(ranks)]
    unit = scale(max(1.0, float(np.nanmax(skew))))
    lane_px = _LARGE_LANE_PX if len(ranks) <= 8 else _LANE_PX
    steps_per_cell = -(-skew.shape[1] // _MAX_COLUMNS)
    return Timeline(
        svg=_svg(_merged(skew, steps_per_cell), lane_px),
        lane_names=tuple(f"rank {_name(waits, rank)}" for rank in ranks),
        lane_px=lane_px,
        steps=(),
        ticks=_step_ticks(waits),
        legend=(("communication", f"the stronger, the later: up to {unit(float(np.nanmax(skew)))}"),),
        alt=_alt(waits, unit, ranks),
        table=_table(waits, unit, ranks),
    )


def skew_caption(waits: JobWaits) -> str:
    """Say what the rows, columns and cells of the heat map are."""
    steps_per_cell = -(-len(waits.step_numbers) // _MAX_COLUMNS)
    cells = f"; each cell is the latest of {steps_per_cell} steps" if steps_per_cell > 1 else ""
    return f"How much later than the first rank each rank arrives at the collectives, in {_range(waits)}{cells}."


def _range(waits: JobWaits) -> str:
    first, last = int(waits.step_numbers[0]), int(waits.step_numbers[-1])
    return f"step {first}" if first == last else f"steps {first} to {last}"


def _merged(skew_ns: NDArray[np.float64], steps_per_cell: int) -> NDArray[np.float64]:
    """Return the latest arrival of each group of steps; NaN where no step has one."""
    padded = np.full((len(skew_ns), -(-skew_ns.shape[1] // steps_per_cell) * steps_per_cell), -np.inf)
    padded[:, : skew_ns.shape[1]] = np.where(np.isnan(skew_ns), -np.inf, skew_ns)
    latest: NDArray[np.float64] = padded.reshape(len(skew_ns), -1, steps_per_cell).max(axis=2)
    return np.where(np.isinf(latest), np.nan, latest)


def _svg(skew_ns: NDArray[np.float64], lane_px: int) -> str:
    """Return the cells as SVG; cells of equal strength are one path."""
    height, columns = lane_px * len(skew_ns), skew_ns.shape[1]
    cell_px = WIDTH / columns
    gap_px = _GAP_PX if cell_px > 4 else 0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'preserveAspectRatio="none" shape-rendering="crispEdges">'
    ]
    strongest = max(1.0, float(np.nanmax(skew_ns)))
    levels = np.where(np.isnan(skew_ns), -1, np.rint(np.nan_to_num(skew_ns) / strongest * _SHADES)).astype(np.int64)
    for level in np.unique(levels[levels >= 0]).tolist():
        cells = "".join(
            f"M{column * cell_px:.1f} {row * lane_px + _GAP_PX}h{cell_px - gap_px:.1f}v{lane_px - 2 * _GAP_PX}"
            f"h-{cell_px - gap_px:.1f}z"
            for row, column in np.argwhere(levels == level).tolist()
        )
        fill = colour("communication") if level else NEUTRAL
        opacity = max(_MIN_OPACITY, level / _SHADES) if level else 0.08
        parts.append(f'<path fill="{fill}" fill-opacity="{opacity:.2f}" d="{cells}"/>')
    return "".join((*parts, "</svg>"))


def _step_ticks(waits: JobWaits) -> tuple[Mark, ...]:
    numbers = waits.step_numbers
    every = -(-len(numbers) // _MAX_TICKS)
    positions = list(range(0, len(numbers), every))
    ends = [*positions[1:], len(numbers)]
    return tuple(
        Mark(start / len(numbers), end / len(numbers), str(int(numbers[start])))
        for start, end in zip(positions, ends, strict=True)
    )


def _alt(waits: JobWaits, unit: Scale, ranks: tuple[int, ...]) -> str:
    latest = np.nan_to_num(waits.skew_ns, nan=-1.0)
    rank, step = np.unravel_index(int(latest.argmax()), latest.shape)
    return (
        f"How much later than the first rank each rank arrives at the collectives, in {len(ranks)} rows of "
        f"{count(len(waits.step_numbers), 'step')}. The latest arrival is {unit(float(latest[rank, step]))} after the "
        f"first: rank {_name(waits, int(rank))} in step {int(waits.step_numbers[step])}."
        f"{choice_sentence(ranks, len(waits.matched.ranks))}"
    )


def _table(waits: JobWaits, unit: Scale, ranks: tuple[int, ...]) -> TableBlock:
    """Return, for each rank, how late it usually is and when it is latest."""
    rows = []
    for rank in ranks:
        skew = waits.skew_ns[rank]
        if np.isnan(skew).all():
            rows.append(Row((_name(waits, rank), "-", "-", "-", "-")))
            continue
        latest = int(np.nanargmax(skew))
        is_latest = skew >= np.nanmax(waits.skew_ns, axis=0)
        late_steps = int((is_latest & (skew > 0)).sum())
        rows.append(
            Row((
                _name(waits, rank),
                unit.number(float(np.nanmedian(skew))),
                unit.number(float(skew[latest])),
                str(int(waits.step_numbers[latest])) if skew[latest] > 0 else "-",
                f"{late_steps} of {len(waits.step_numbers)}",
            ))
        )  # fmt: skip
    return TableBlock(
        header=("rank", "median", "latest", "in step", "last of all"),
        rows=tuple(rows),
        caption=f"Arrival after the first rank, in {unit.unit}.",
    )


def _name(waits: JobWaits, index: int) -> str:
    return rank_label(waits.matched.ranks[index].run, index)
