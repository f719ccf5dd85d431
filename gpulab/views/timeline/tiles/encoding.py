"""The binary format of a tile: a JSON head with offsets, then arrays aligned to eight bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_TILE_BYTES = 49_152
COLUMN_TYPES = {
    "start": "f64",
    "dur": "f64",
    "row": "u16",
    "key": "u8",
    "name": "u16",
    "note": "u16",
    "id": "i32",
    "partner_at": "f64",
    "partner_row": "u16",
}
NUMPY_TYPES = {"f64": "<f8", "f32": "<f4", "u16": "<u2", "u8": "<u1", "i32": "<i4"}
BOX_BYTES = sum(np.dtype(NUMPY_TYPES[each]).itemsize for each in COLUMN_TYPES.values())
NO_ROW = 65_535

Array = NDArray[Any]


def encode_tile(
    head: Mapping[str, Any],
    columns: Mapping[str, Array],
    bins: list[tuple[int, int, Array]],
    curves: list[tuple[int, Array, Array, Array]],
) -> bytes:
    """Encode a tile; `bins` are row, key and shares, `curves` are row, times, lowest and highest values."""
    arrays: list[bytes] = []
    size = 0

    def put(values: Array, dtype: str) -> int:
        """Append an array and return its offset."""
        nonlocal size
        data = np.ascontiguousarray(values, np.dtype(NUMPY_TYPES[dtype])).tobytes()
        offset, padding = size, -len(data) % 8
        arrays.append(data + bytes(padding))
        size += len(data) + padding
        return offset

    arrays_of = {name: [put(columns[name], dtype), len(columns[name]), dtype] for name, dtype in COLUMN_TYPES.items()}
    bins_of = [{"row": row, "key": key, "offset": put(shares, "u8")} for row, key, shares in bins]
    curve_of = [
        {
            "row": row,
            "offset_at": put(times, "f64"),
            "offset_low": put(low, "f32"),
            "offset_high": put(high, "f32"),
            "count": len(times),
        }
        for row, times, low, high in curves
    ]
    return _with_head(head, arrays_of, bins_of, curve_of, b"".join(arrays))


def _with_head(
    head: Mapping[str, Any],
    arrays_of: Mapping[str, list[Any]],
    bins_of: list[dict[str, int]],
    curves: list[dict[str, int]],
    body: bytes,
) -> bytes:
    """Prepend the head. Its offsets count from the start of the tile, so its length is found by iteration."""
    length = 0
    while True:
        full_head = {
            **head,
            "columns": {name: [offset + length, count, dtype] for name, (offset, count, dtype) in arrays_of.items()},
            "bins_of": [{**each, "offset": each["offset"] + length} for each in bins_of],
            "curves": [
                {key: value + length if key.startswith("offset") else value for key, value in each.items()}
                for each in curves
            ],
        }
        text = json.dumps(full_head, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        needed = 4 + len(text) + -(4 + len(text)) % 8
        if needed <= length:
            break
        length = needed
    text += b" " * (length - 4 - len(text))
    return struct.pack("<I", len(text)) + text + body


def decode_tile(tile: bytes) -> tuple[dict[str, Any], dict[str, Array]]:
    """Decode the head and the columns of a tile."""
    (length,) = struct.unpack_from("<I", tile)
    head = json.loads(tile[4 : 4 + length])
    columns = {
        name: np.frombuffer(tile, np.dtype(NUMPY_TYPES[dtype]), count, offset)
        for name, (offset, count, dtype) in head["columns"].items()
    }
    return head, columns
