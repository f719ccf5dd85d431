"""The ledger of any time window, exact to the nanosecond, and its kernels with the longest total time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, EventKind
from gpulab.views.timeline.scene.colours import COLOUR_KEYS, UNRECORDED
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.wording import clean, duration, shorten

MAX_KERNELS, MAX_NAME_LENGTH = 10, 200
_LABELS = {key.key: key.label for key in COLOUR_KEYS}


def analyse_window(sides: Sequence[PlacedRun], start_ns: int, end_ns: int) -> dict[str, Any]:
    """Return ledger and longest kernels of each side in a window of the scene; a ledger sums to the window's length."""
    end_ns = max(start_ns, end_ns)
    answers = [_side(side, start_ns - side.shift_ns, end_ns - side.shift_ns) for side in sides]
    return {"start_ns": start_ns, "end_ns": end_ns, "sides": answers}


def _side(side: PlacedRun, start_ns: int, end_ns: int) -> dict[str, Any]:
    labels = {part.key: part.label for part in side.ledger.parts} if side.ledger else {}
    part_ns = {key: int(covered.covered_ns(start_ns, end_ns)) for key, covered in side.ledger_coverage.items()}
    part_ns = {key: part_ns[key] for key in labels if part_ns.get(key)}
    unrecorded_ns = end_ns - start_ns - sum(part_ns.values())
    if unrecorded_ns:
        part_ns[UNRECORDED] = unrecorded_ns
    return {
        "name": clean(side.name, 120),
        "lane": side.is_lane,
        "ledger": [{"key": key, "label": labels.get(key, _LABELS[key]), "ns": ns} for key, ns in part_ns.items()],
        "kernels": [] if side.is_lane else _kernels(side, start_ns, end_ns),
        "note": _note(side.run, unrecorded_ns, end_ns - start_ns),
    }


def _note(run: Run, unrecorded_ns: int, window_ns: int) -> str:
    if not unrecorded_ns:
        return ""
    if not len(run.event_rows):
        return "No events were recorded in this run."
    if unrecorded_ns == window_ns:
        return "No events were recorded in this window."
    return f"No events were recorded in {duration(unrecorded_ns)} of this window."


def _kernels(side: PlacedRun, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """Return the kernels with the longest total time; in a run without device work, operators by self time.

    Times are clipped to the window.
    """
    rows = side.run.event_rows
    if rows.is_kind(*DEVICE_KINDS).any():
        names, times = _device_time(side, start_ns, end_ns)
    else:
        names, times = _self_time(side, start_ns, end_ns)
    if not len(names):
        return []
    vocabulary = rows.text("name").vocabulary
    total = np.bincount(names + 1, weights=times)
    count = np.bincount(names + 1)
    order = np.lexsort((np.arange(len(total)), -total))
    order = order[count[order] > 0][:MAX_KERNELS]
    return [
        {
            "name": shorten(clean(vocabulary[code - 1], MAX_NAME_LENGTH), MAX_NAME_LENGTH) if code else "(no name)",
            "count": int(count[code]),
            "total_ns": int(total[code]),
            "mean_ns": round(float(total[code] / count[code])),
        }
        for code in order.tolist()
    ]


def _device_time(side: PlacedRun, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return name and time in the window of each kernel and collective that ran in it."""
    rows = side.run.event_rows
    start, end = rows["start_ns"], rows["start_ns"] + rows["dur_ns"]
    computes = rows.is_kind(EventKind.KERNEL, EventKind.COLLECTIVE)
    events = np.flatnonzero((start < end_ns) & (end > start_ns) & computes)
    return rows["name"][events], np.minimum(end[events], end_ns) - np.maximum(start[events], start_ns)


def _self_time(side: PlacedRun, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """Return name and self time (without called operators) in the window of each operator that ran in it."""
    kinds, codes = side.run.event_rows["kind"], side.run.event_rows["name"]
    names, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    begin, until = start_ns + side.shift_ns, end_ns + side.shift_ns
    for row, callees in side.call_rows():
        positions = row.overlapping(begin, until)
        positions = positions[kinds[row.id[positions]] == EventKind.OP.value]
        starts, ends = np.maximum(row.start_ns[positions], begin), np.minimum(row.end_ns[positions], until)
        self_ns = row.coverage.covered_ns(starts, ends) if row.overlaps else ends - starts
        if callees is not None:
            self_ns = self_ns - callees.coverage.covered_ns(starts, ends)
        names.append(codes[row.id[positions]])
        times.append(np.maximum(self_ns, 0))
    return np.concatenate(names).astype(np.int64), np.concatenate(times)
