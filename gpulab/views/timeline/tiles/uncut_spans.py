"""A sheet: a time span of a scene with every box, in the format of a tile. The page cuts finer tiles from it."""

from __future__ import annotations

import numpy as np

from gpulab.views.timeline.scene.scene import Scene
from gpulab.views.timeline.tiles.cutting import TileContent
from gpulab.views.timeline.tiles.encoding import encode_tile
from gpulab.views.timeline.tiles.tile import box_columns, box_note, curve_samples, encoded_bytes

_MAX_NOTE_BYTES, _MAX_NOTES = 24_000, 400  # per sheet: the longest boxes get theirs


def count_boxes(scene: Scene, level: int, index: int) -> int:
    """Count the boxes that overlap the span of a tile."""
    start, end = scene.tile_window(level, index)
    return sum(len(row.overlapping(start, end)) for row in scene.rows if row is not None and len(row))


def encode_sheet(scene: Scene, level: int, index: int) -> bytes:
    """Encode all boxes that overlap the span of a tile, and its curves."""
    start, end = scene.tile_window(level, index)
    empty = [np.empty(0, np.int64)]
    parts = [
        (np.full(len(positions), number), positions)
        for number, row in enumerate(scene.rows)
        if row is not None and len(row) and len(positions := row.overlapping(start, end))
    ]
    row = np.concatenate(empty + [each for each, _ in parts])
    position = np.concatenate(empty + [each for _, each in parts])
    boxes = TileContent(start, end, np.array([start, end]), row, position, ())
    columns, texts = box_columns(scene.sides, scene.rows, scene.display_names, boxes)
    texts["notes"], columns["note"] = _notes(scene, boxes, columns["dur"])
    head = {"level": level, "index": index, "start_ns": start, "end_ns": end, "bins": 512, "binned": False}
    return encode_tile({**head, **texts}, columns, [], list(curve_samples(scene.curves, start, end)))


def _notes(
    scene: Scene, boxes: TileContent, dur: np.typing.NDArray[np.int64]
) -> tuple[list[str], np.typing.NDArray[np.int64]]:
    """Return the notes of the longest boxes and, for each box, the index of its note (0: none)."""
    numbers, note_index, free_bytes = {"": 0}, np.zeros(len(boxes.row), np.int64), _MAX_NOTE_BYTES
    for box in np.argsort(-dur, kind="stable")[:_MAX_NOTES].tolist():
        text = box_note(scene.sides, scene.rows, int(boxes.row[box]), int(boxes.position[box]))
        if text not in numbers:
            free_bytes -= encoded_bytes(text)
            if free_bytes < 0:
                break
            numbers[text] = len(numbers)
        note_index[box] = numbers[text]
    return list(numbers), note_index
