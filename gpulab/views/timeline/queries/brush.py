"""Where the time between two moments went: an exact ledger of any stretch, and what took most of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpulab.run import Run
from gpulab.tables import DEVICE_KINDS, Kind
from gpulab.views.timeline.scene.colours import KEYS, UNRECORDED
from gpulab.views.timeline.scene.placed_run import Side
from gpulab.wording import clean, duration, shorten

MOST_KERNELS, NAME_LETTERS = 10, 200
_LABELS = {key.key: key.label for key in KEYS}


def brush(sides: Sequence[Side], start_ns: int, end_ns: int) -> dict[str, Any]:
    """For each side its ledger between two moments of the scene, which sums to that time, and its kernels."""
    end_ns = max(start_ns, end_ns)
    told = [_side(side, start_ns - side.shift_ns, end_ns - side.shift_ns) for side in sides]
    return {"start_ns": start_ns, "end_ns": end_ns, "sides": told}


def _side(side: Side, start_ns: int, end_ns: int) -> dict[str, Any]:
    labels = {part.key: part.label for part in side.accounts.parts} if side.accounts else {}
    spent = {key: int(covered.within(start_ns, end_ns)) for key, covered in side.whole.items()}
    spent = {key: spent[key] for key in labels if spent.get(key)}
    left = end_ns - start_ns - sum(spent.values())
    if left:
        spent[UNRECORDED] = left
    return {
        "name": clean(side.name, 120),
        "ledger": [{"key": key, "label": labels.get(key, _LABELS[key]), "ns": ns} for key, ns in spent.items()],
        "kernels": _kernels(side, start_ns, end_ns),
        "note": _note(side.run, left, end_ns - start_ns),
    }


def _note(run: Run, left_ns: int, all_ns: int) -> str:
    if not left_ns:
        return ""
    if not len(run.event_rows):
        return "No events were recorded in this run."
    if left_ns == all_ns:
        return "No events were recorded in this stretch."
    return f"In {duration(left_ns)} of it no events were recorded."


def _kernels(side: Side, start_ns: int, end_ns: int) -> list[dict[str, Any]]:
    """What took most time in it: kernels, or operators by their own time where no GPU worked. Cut at its edges."""
    rows = side.run.event_rows
    if np.isin(rows["kind"], DEVICE_KINDS).any():
        names, within = _device_time(side, start_ns, end_ns)
    else:
        names, within = _own_time(side, start_ns, end_ns)
    if not len(names):
        return []
    vocabulary = rows.words("name").vocabulary
    total = np.bincount(names + 1, weights=within)
    count = np.bincount(names + 1)
    order = np.lexsort((np.arange(len(total)), -total))
    order = order[count[order] > 0][:MOST_KERNELS]
    return [
        {
            "name": shorten(clean(vocabulary[code - 1], NAME_LETTERS), NAME_LETTERS) if code else "(no name)",
            "count": int(count[code]),
            "total_ns": int(total[code]),
            "mean_ns": round(float(total[code] / count[code])),
        }
        for code in order.tolist()
    ]


def _device_time(side: Side, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """The name of each kernel and collective that ran in it, and for how long."""
    rows = side.run.event_rows
    start, end, kind = rows["start_ns"], rows["start_ns"] + rows["dur_ns"], rows["kind"]
    mine = (start < end_ns) & (end > start_ns) & ((kind == Kind.KERNEL) | (kind == Kind.COLLECTIVE))
    mine = np.flatnonzero(mine)
    return rows["name"][mine], np.minimum(end[mine], end_ns) - np.maximum(start[mine], start_ns)


def _own_time(side: Side, start_ns: int, end_ns: int) -> tuple[np.ndarray, np.ndarray]:
    """The name of each operator that ran in it, and for how long it did without what it called."""
    kinds, codes = side.run.event_rows["kind"], side.run.event_rows["name"]
    names, times = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    begin, until = start_ns + side.shift_ns, end_ns + side.shift_ns
    for row, below in side.nested():
        places = row.reaching(begin, until)
        places = places[kinds[row.id[places]] == Kind.OP]
        opens, closes = np.maximum(row.start_ns[places], begin), np.minimum(row.end_ns[places], until)
        own = row.covered.within(opens, closes) if row.tangled else closes - opens
        if below is not None:
            own = own - below.covered.within(opens, closes)
        names.append(codes[row.id[places]])
        times.append(np.maximum(own, 0))
    return np.concatenate(names).astype(np.int64), np.concatenate(times)
