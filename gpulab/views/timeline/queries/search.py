"""Search by name: all boxes whose name contains a text, device work first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.intervals import Ints
from gpulab.tables import EventKind
from gpulab.views.timeline.scene.elements import Boxes
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.wording import clean, shorten

MAX_HIT_NAME_LENGTH = 200


def search_names(
    sides: Sequence[PlacedRun], rows: Sequence[Boxes | None], names: Sequence[str], text: str, max_results: int
) -> dict[str, Any]:
    """Find every event and step in the timeline whose name contains the text, ignoring case.

    Names are sorted with device work first, then by total time; hits are in the order of names, and the longest first
    within a name. At most `most` names and hits are returned. Without a text: all names, and no hits.
    """
    query = text.strip().lower()
    matching = np.fromiter((query in name.lower() for name in names), bool, len(names))
    row, position, on_device = _matches(sides, matching)
    empty = np.empty(0, np.int64)
    columns = _boxes(rows, row, position)
    start, dur, name, id = (
        np.concatenate([empty, *(boxes[index] for boxes in columns)]).astype(np.int64) for index in range(4)
    )
    codes, code_index, count = np.unique(name, return_inverse=True, return_counts=True)
    total = np.bincount(code_index, weights=dur, minlength=len(codes))
    is_device = np.zeros(len(codes), bool)
    is_device[code_index[on_device]] = True
    ranked = np.lexsort((codes, -total, ~is_device))
    rank = np.empty(len(codes), np.int64)
    rank[ranked] = np.arange(len(codes))
    order = np.lexsort((start, -dur, rank[code_index])) if len(code_index) else np.empty(0, np.int64)

    def hit(index: int) -> dict[str, Any]:
        times = {"start_ns": int(start[index]), "dur_ns": int(dur[index]), "row": int(row[index])}
        return {**times, "name": _display_name(names[int(name[index])]), "id": int(id[index])}

    longest = order[np.searchsorted(rank[code_index][order], np.arange(len(codes)))] if len(codes) else order
    return {
        "count": len(start),
        "total_ns": int(dur.sum()),
        "hits": [hit(index) for index in order[: max_results if query else 0].tolist()],
        "names": [
            {
                "name": _display_name(names[int(codes[code])]),
                "count": int(count[code]),
                "total_ns": int(total[code]),
                "longest": hit(int(longest[index])),
            }
            for index, code in enumerate(ranked[:max_results].tolist())
        ],
    }


def _display_name(name: str) -> str:
    return shorten(clean(name, MAX_HIT_NAME_LENGTH), MAX_HIT_NAME_LENGTH)


def _matches(sides: Sequence[PlacedRun], matching: np.ndarray) -> tuple[Ints, Ints, np.ndarray]:
    """Return row and position of each box with a matching name, and whether it is device work."""
    parts: list[tuple[np.ndarray, ...]] = []
    for side in sides:
        kinds = side.run.event_rows["kind"]
        for placed in side.placed_groups:
            group = placed.group
            if not group.is_events and group.id != "steps":
                continue
            for number, boxes in enumerate(group.rows, placed.first):
                positions = np.flatnonzero(matching[boxes.name])
                on_device = (
                    kinds[boxes.id[positions]] >= EventKind.KERNEL.value
                    if group.is_events
                    else np.zeros(len(positions), bool)
                )
                parts.append((np.full(len(positions), number), positions, on_device))
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool)
    row, position, on_device = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return row, position, on_device


def _boxes(rows: Sequence[Boxes | None], row: Ints, position: Ints) -> list[tuple[Ints, ...]]:
    """Return start, duration, name and id of boxes that are sorted by row, one tuple per row."""
    columns: list[tuple[Ints, ...]] = []
    for number in np.unique(row).tolist():
        boxes, positions = rows[number], position[row == number]
        assert boxes is not None
        start = boxes.start_ns[positions]
        name, id = boxes.name[positions].astype(np.int64), boxes.id[positions].astype(np.int64)
        columns.append((start, boxes.end_ns[positions] - start, name, id))
    return columns
