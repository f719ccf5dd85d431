"""Where a name is: every box whose name holds a text, kernels first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.intervals import Ints
from gpulab.tables import Kind
from gpulab.views.timeline.scene.groups import Boxes
from gpulab.views.timeline.scene.placed_run import Side
from gpulab.wording import clean, shorten

NAME_LETTERS = 200


def search(
    sides: Sequence[Side], rows: Sequence[Boxes | None], names: Sequence[str], text: str, most: int
) -> dict[str, Any]:
    """Every event and step drawn whose name holds this text, in whatever case.

    Names come with device work first, then by their total time; hits in the order of names, of one name the longest
    first. Without a text: all names, and no hits.
    """
    wanted = text.strip().lower()
    matching = np.fromiter((wanted in name.lower() for name in names), bool, len(names))
    row, place, device = _found(sides, matching)
    columns = [np.empty(0, np.int64)] * 4
    start, dur, name, id = (
        np.concatenate([empty, *(each[index] for each in _boxes(rows, row, place))]).astype(np.int64)
        for index, empty in enumerate(columns)
    )
    each, which, count = np.unique(name, return_inverse=True, return_counts=True)
    total = np.bincount(which, weights=dur, minlength=len(each))
    on_device = np.zeros(len(each), bool)
    on_device[which[device]] = True
    ranked = np.lexsort((each, -total, ~on_device))
    rank = np.empty(len(each), np.int64)
    rank[ranked] = np.arange(len(each))
    order = np.lexsort((start, -dur, rank[which])) if len(which) else np.empty(0, np.int64)

    def hit(at: int) -> dict[str, Any]:
        told = {"start_ns": int(start[at]), "dur_ns": int(dur[at]), "row": int(row[at])}
        return {**told, "name": _shown(names[int(name[at])]), "id": int(id[at])}

    longest = order[np.searchsorted(rank[which][order], np.arange(len(each)))] if len(each) else order
    return {
        "count": len(start),
        "total_ns": int(dur.sum()),
        "hits": [hit(at) for at in order[: most if wanted else 0].tolist()],
        "names": [
            {
                "name": _shown(names[int(each[of])]),
                "count": int(count[of]),
                "total_ns": int(total[of]),
                "longest": hit(int(longest[place_])),
            }
            for place_, of in enumerate(ranked[:most].tolist())
        ],
    }


def _shown(name: str) -> str:
    return shorten(clean(name, NAME_LETTERS), NAME_LETTERS)


def _found(sides: Sequence[Side], matching: np.ndarray) -> tuple[Ints, Ints, np.ndarray]:
    """Row and place of each box found, and whether it is work of a device."""
    parts: list[tuple[np.ndarray, ...]] = []
    for side in sides:
        kinds = side.run.event_rows["kind"]
        for placed in side.placed:
            group = placed.group
            if not group.events and group.id != "steps":
                continue
            for number, boxes in enumerate(group.rows, placed.first):
                places = np.flatnonzero(matching[boxes.name])
                on_device = kinds[boxes.id[places]] >= Kind.KERNEL if group.events else np.zeros(len(places), bool)
                parts.append((np.full(len(places), number), places, on_device))
    if not parts:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, bool)
    row, place, device = (np.concatenate(each) for each in zip(*parts, strict=True))
    return row, place, device


def _boxes(rows: Sequence[Boxes | None], row: Ints, place: Ints) -> list[tuple[Ints, ...]]:
    """Start, length, name and id of these boxes, which stand row by row."""
    told: list[tuple[Ints, ...]] = []
    for number in np.unique(row).tolist():
        boxes, mine = rows[number], place[row == number]
        assert boxes is not None
        start = boxes.start_ns[mine]
        name, id = boxes.name[mine].astype(np.int64), boxes.id[mine].astype(np.int64)
        told.append((start, boxes.end_ns[mine] - start, name, id))
    return told
