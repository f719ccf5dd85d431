"""A stretch of a scene of which every box is told, in the bytes of a tile: what a file cuts its tiles from."""

from __future__ import annotations

import numpy as np

from gpulab.views.timeline.scene.scene import Scene
from gpulab.views.timeline.tiles.cutting import Cut
from gpulab.views.timeline.tiles.encoding import packed
from gpulab.views.timeline.tiles.tile import columns_of, curves_in, note_of, written

NOTE_BYTES, MOST_NOTES = 24_000, 400  # of a sheet: the widest boxes get theirs


def boxes_within(scene: Scene, level: int, index: int) -> int:
    """How many boxes reach into this stretch."""
    start, end = scene.stretch(level, index)
    return sum(len(row.reaching(start, end)) for row in scene.rows if row is not None and len(row))


def sheet(scene: Scene, level: int, index: int) -> bytes:
    """All boxes that reach into this stretch, and its curves."""
    start, end = scene.stretch(level, index)
    none = [np.empty(0, np.int64)]
    found = [
        (np.full(len(places), number), places)
        for number, row in enumerate(scene.rows)
        if row is not None and len(row) and len(places := row.reaching(start, end))
    ]
    row = np.concatenate(none + [each for each, _ in found])
    place = np.concatenate(none + [each for _, each in found])
    made = Cut(start, end, np.array([start, end]), row, place, ())
    columns, told = columns_of(scene.sides, scene.rows, scene.texts, made)
    told["notes"], columns["note"] = _notes(scene, made, columns["dur"])
    head = {"level": level, "index": index, "start_ns": start, "end_ns": end, "bins": 512, "binned": False}
    return packed({**head, **told}, columns, [], list(curves_in(scene.curves, start, end)))


def _notes(scene: Scene, made: Cut, dur: np.typing.NDArray[np.int64]) -> tuple[list[str], np.typing.NDArray[np.int64]]:
    told, which, room = {"": 0}, np.zeros(len(made.row), np.int64), NOTE_BYTES
    for at in np.argsort(-dur, kind="stable")[:MOST_NOTES].tolist():
        text = note_of(scene.sides, scene.rows, int(made.row[at]), int(made.place[at]))
        if text not in told:
            room -= written(text)
            if room < 0:
                break
            told[text] = len(told)
        which[at] = told[text]
    return list(told), which
