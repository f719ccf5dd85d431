"""Use of GPUs by day and hour, and by GPU and day, as shaded tables."""

from __future__ import annotations

import numpy as np

from gpulab.views.sheet.sheet import Row, Section, TableBlock
from gpulab.watch.patterns.frame import DayGrid, Floats, HistoryFrame
from gpulab.wording import percent

_ABSENT = "-"
_NARROW = "\u00a0"  # a label stays on one line on a narrow page
_MAX_DAYS = 31
_EVERY_H = 2  # hours per column


def heat_map_section(frame: HistoryFrame) -> Section | None:
    """Return the use by day and hour (mean of all GPUs) and by GPU and day; None if nothing was measured.

    Without a GPU, it is the load of the CPUs.
    """
    grids = [frame.days[gpu.id] for gpu in frame.gpus if len(frame.days[gpu.id].days)]
    cpus = [grid for grid in frame.hosts if len(grid.days)]
    if not grids and not cpus:
        return None
    blocks = [_by_hour(grids, "utilisation of all GPUs") if grids else _by_hour(cpus, "load of all CPU cores")]
    if len(frame.gpus) > 1:
        blocks.append(_by_gpu(frame))
    return Section("Use by day and hour", tuple(blocks))


def _by_hour(grids: list[DayGrid], subject: str) -> TableBlock:
    days = sorted({day for grid in grids for day in grid.days})[-_MAX_DAYS:]
    header = ("", *(f"{hour}:00" for hour in range(0, 24, _EVERY_H)), "day")
    rows = []
    for day in days:
        rows_of_day = [(grid, grid.days.index(day)) for grid in grids if day in grid.days]
        used_s = np.array([grid.used_s[index] for grid, index in rows_of_day]).sum(axis=0)
        covered_s = np.array([grid.covered_s[index] for grid, index in rows_of_day]).sum(axis=0)
        hours = _share(used_s.reshape(-1, _EVERY_H).sum(axis=1), covered_s.reshape(-1, _EVERY_H).sum(axis=1))
        day_share = _share(used_s.sum(keepdims=True), covered_s.sum(keepdims=True))
        rows.append(_row(f"{day:%a %d %b}", np.concatenate((hours, day_share))))
    caption = f"Mean {subject}, in hours of local time. - was not measured."
    return TableBlock(header=header, rows=tuple(rows), caption=caption)


def _by_gpu(frame: HistoryFrame) -> TableBlock:
    days = sorted({day for gpu in frame.gpus for day in frame.days[gpu.id].days})[-7:]
    header = ("", *(f"{day:%a %d}" for day in days), "all days")
    rows = []
    for gpu in frame.gpus:
        grid = frame.days[gpu.id]
        indices = [grid.days.index(day) if day in grid.days else None for day in days]
        used_s = np.array([0.0 if index is None else grid.used_s[index].sum() for index in indices])
        covered_s = np.array([0.0 if index is None else grid.covered_s[index].sum() for index in indices])
        every = _share(grid.used_s.sum(keepdims=True)[0], grid.covered_s.sum(keepdims=True)[0])
        rows.append(_row(frame.label(gpu), np.concatenate((_share(used_s, covered_s), every))))
    return TableBlock(header=header, rows=tuple(rows), caption="Mean utilisation of each GPU on the last days.")


def _share(used_s: Floats, covered_s: Floats) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        share: Floats = np.where(covered_s > 0, used_s / covered_s, np.nan)
    return share


def _row(label: str, shares: Floats) -> Row:
    cells = tuple(_ABSENT if np.isnan(share) else percent(float(share)) for share in shares)
    return Row((label.replace(" ", _NARROW), *cells), shades=tuple(float(share) for share in np.nan_to_num(shares)))
