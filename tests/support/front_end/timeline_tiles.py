"""A scene and its tiles, packed by hand from the words of the contract, by nothing of gpulab's: what a page is told.

A run of 2**30 ns: four steps, a thread of nested operators, a kernel with its launch, and many short copies that fill
every second millisecond of the third quarter, so that at the first zoom they are half a bin each.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

SPAN_NS = 2**30
BINS = 512
QUARTER_NS = SPAN_NS // 4
SHORT_NS = SPAN_NS // 1024  # half a bin of the whole run
STEPS, OPS, KERNELS, COPIES, POWER = 0, 1, 4, 5, 6  # rows; the operators have three
STEP, OP, MATMUL, COPY = range(4)
COLOURS = ("#5E7480", "#C99400", "#0072B2", "#009E73")
NAN, NO_ROW = math.nan, 65535


@dataclass(frozen=True)
class Box:
    row: int
    start: int
    dur: int
    key: int
    name: str
    id: int = -1
    note: str = ""
    partner_at: float = NAN
    partner_row: int = NO_ROW


def _boxes() -> tuple[Box, ...]:
    launch_at, kernel_at = QUARTER_NS // 2, QUARTER_NS
    return (
        *(Box(STEPS, step * QUARTER_NS, QUARTER_NS, STEP, f"step {step}", step) for step in range(4)),
        Box(OPS, QUARTER_NS // 4, QUARTER_NS // 2, OP, "aten::linear", 10),
        Box(OPS, QUARTER_NS, QUARTER_NS // 2, OP, "aten::relu", 11),
        Box(OPS + 1, QUARTER_NS // 3, QUARTER_NS // 3, OP, "aten::addmm", 12),
        Box(OPS + 2, launch_at, QUARTER_NS // 8, OP, "cudaLaunchKernel", 13, "", float(kernel_at), KERNELS),
        Box(KERNELS, kernel_at, QUARTER_NS, MATMUL, "sgemm", 20, "launched 134 ms earlier", float(launch_at), OPS + 2),
        *(Box(COPIES, 2 * QUARTER_NS + 2 * at * SHORT_NS, SHORT_NS, COPY, f"copy {at}", 100 + at) for at in range(128)),
    )


@dataclass(frozen=True)
class Scene:
    """What is drawn; `held` is the deepest level that the source holds."""

    boxes: tuple[Box, ...] = field(default_factory=_boxes)
    title: str = "by hand"
    notes: tuple[str, ...] = ()
    deepest: int = 8
    held: int = 8
    findings: tuple[dict[str, Any], ...] = ()
    empty: bool = False

    def header(self) -> dict[str, Any]:
        defaults = {"side": 0, "about": "", "unit": "", "low": 0.0, "high": 1.0, "format": "number", "threshold": None}
        rows_ = (
            ("steps", "steps", STEPS, 1),
            ("thread:0", "main thread", OPS, 3),
            ("gpu0:stream7", "kernels", KERNELS, 1),
        )
        rows_ += (("gpu0:copies", "copies", COPIES, 1),)
        groups: list[dict[str, Any]] = [
            {**defaults, "id": id, "name": name, "kind": "boxes", "first": first, "rows": rows, "folded": False}
            for id, name, first, rows in rows_
        ]
        curve = {"id": "gpu0:power_w", "name": "power", "kind": "curve", "first": POWER, "rows": 1, "folded": False}
        groups.append({**defaults, **curve, "high": 400.0, "format": "number", "unit": "W", "threshold": 350.0})
        labels = ("step", "operators", "matrix kernels", "copies")
        return {
            "version": 1,
            "title": self.title,
            "source": "made by hand",
            "watermark": "",
            "span_ns": SPAN_NS,
            "home": [0, SPAN_NS],
            "deepest": self.deepest,
            "sides": [{"name": "by hand", "source": "made by hand"}],
            "groups": [] if self.empty else groups,
            "keys": [
                {"key": label.split()[0], "label": label, "colour": colour}
                for label, colour in zip(labels, COLOURS, strict=True)
            ],
            "findings": list(self.findings),
            "notes": list(self.notes),
            "counts": {"events": len(self.boxes)},
        }

    def tile(self, level: int, index: int) -> bytes | None:
        if level > self.held:
            return None
        width = math.ceil(SPAN_NS / 2**level)
        start, end = index * width, min((index + 1) * width, SPAN_NS)
        inside = [box for box in self.boxes if box.start < end and box.start + box.dur > start]
        wide = [box for box in inside if box.dur >= width // BINS]
        short = [box for box in inside if box.dur < width // BINS]
        return _packed(level, index, start, end, wide, short)


def _packed(level: int, index: int, start: int, end: int, wide: list[Box], short: list[Box]) -> bytes:
    names, notes = _indexed(box.name for box in wide), _indexed(box.note for box in wide)
    arrays: list[np.ndarray] = []
    columns = {
        "start": np.array([box.start for box in wide], "<f8"),
        "dur": np.array([box.dur for box in wide], "<f8"),
        "row": np.array([box.row for box in wide], "<u2"),
        "key": np.array([box.key for box in wide], "u1"),
        "name": np.array([names[box.name] for box in wide], "<u2"),
        "note": np.array([notes[box.note] for box in wide], "<u2"),
        "id": np.array([box.id for box in wide], "<i4"),
        "partner_at": np.array([box.partner_at for box in wide], "<f8"),
        "partner_row": np.array([box.partner_row for box in wide], "<u2"),
    }
    kinds = {"float64": "f64", "uint16": "u16", "uint8": "u8", "int32": "i32"}
    arrays.extend(columns.values())
    layers = [(row, key, _shares(short, row, key, start, end)) for row, key in sorted({(b.row, b.key) for b in short})]
    arrays.extend(shares for _, _, shares in layers)
    at, low, high = _power(start, end)
    arrays.extend((at, low, high))
    head: dict[str, Any] = {"level": level, "index": index, "start_ns": start, "end_ns": end, "bins": BINS}
    head |= {"binned": bool(short), "names": list(names), "notes": list(notes)}
    header_bytes = 4 + 8 * math.ceil((len(json.dumps(head)) + 1200 + 60 * len(layers)) / 8) + 4
    offsets, position = [], header_bytes
    for array in arrays:
        offsets.append(position)
        position += 8 * math.ceil(array.nbytes / 8)
    head["columns"] = {
        name: [offset, len(array), kinds[array.dtype.name]]
        for (name, array), offset in zip(columns.items(), offsets, strict=False)
    }
    rest = offsets[len(columns) :]
    head["bins_of"] = [{"row": row, "key": key, "offset": rest[n]} for n, (row, key, _) in enumerate(layers)]
    a, b, c = rest[-3:]
    head["curves"] = [{"row": POWER, "offset_at": a, "offset_low": b, "offset_high": c, "count": len(at)}]
    text = json.dumps(head).encode().ljust(header_bytes - 4)
    assert len(text) == header_bytes - 4, "the head outgrew its room"
    body = b"".join(array.tobytes().ljust(8 * math.ceil(array.nbytes / 8), b"\0") for array in arrays)
    return len(text).to_bytes(4, "little") + text + body


def _indexed(texts: Any) -> dict[str, int]:
    names = {"": 0}
    for text in texts:
        names.setdefault(text, len(names))
    return names


def _shares(short: list[Box], row: int, key: int, start: int, end: int) -> np.ndarray:
    edges = start + (np.arange(BINS + 1) * (end - start)) // BINS
    filled = np.zeros(BINS)
    for box in short:
        if (box.row, box.key) == (row, key):
            filled += np.clip(np.minimum(edges[1:], box.start + box.dur) - np.maximum(edges[:-1], box.start), 0, None)
    return np.floor(255 * filled / np.diff(edges)).astype("u1")


def _power(start: int, end: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """200 W throughout, but for the second half of the third quarter, where nothing was read."""
    at = np.linspace(start, end, 65)
    value = np.where((at > 2.5 * QUARTER_NS) & (at < 3 * QUARTER_NS), np.nan, 200.0).astype("<f4")
    return at.astype("<f8"), value, value
