"""What a card says of a box: who launched it and when, sizes, bytes, the rate reached, how it fills the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulab.analysis.kernels.flops import flops, inputs
from gpulab.analysis.kernels.table import is_matrix
from gpulab.rows import Rows
from gpulab.tables import Kind
from gpulab.views.timeline.scene.colours import INDEX
from gpulab.views.timeline.scene.placed_run import Side
from gpulab.views.timeline.scene.rows import step_name, thread_name
from gpulab.wording import clean, count, duration, metric, percent, shorten, size

NAME_LETTERS, LINE_LETTERS = 80, 160
FULL_LETTERS = 1200


def note(side: Side, event: int) -> str:
    """The lines of a card of an event after name and duration; "" where there is nothing to say."""
    return "\n".join(shorten(line, LINE_LETTERS) for line in lines(side, event))


def lines(side: Side, event: int) -> Iterator[str]:
    """The same, line by line."""
    rows = side.run.event_rows
    kind = Kind(int(rows["kind"][event]))
    partner = int(side.partner[event])
    if kind >= Kind.KERNEL:
        yield from _work(side, event, kind, partner)
    elif partner >= 0:
        delay = int(rows["start_ns"][partner] - rows["start_ns"][event])
        yield f"started {_name(side, partner)} {duration(max(0, delay))} later"
    if kind is Kind.OP and (sizes := _sizes(side, event)):
        yield sizes


def _work(side: Side, event: int, kind: Kind, partner: int) -> Iterator[str]:
    rows = side.run.event_rows
    op = side.around(partner) if partner >= 0 else -1
    if partner >= 0:
        delay = int(rows["start_ns"][event] - rows["start_ns"][partner])
        yield f"launched {duration(max(0, delay))} earlier by {_name(side, op if op >= 0 else partner)}"
    if filling := _grid(side, event):
        yield filling
    if op >= 0 and (sizes := _sizes(side, op)):
        yield sizes
    if amount := _amount(side, event, kind, op):
        yield amount


def _grid(side: Side, event: int) -> str:
    """How a kernel fills the GPU."""
    rows, place = side.run.grid_rows, _beside(side.run.grid_rows, event)
    if place < 0:
        return ""
    grid, block = int(rows["grid"][place]), int(rows["block"][place])
    registers, shared = int(rows["registers"][place]), int(rows["shared_bytes"][place])
    occupancy = float(rows["occupancy_frac"][place])
    told = [
        f"grid {grid:,}" + (f" x {block:,} threads" if block >= 0 else "") if grid >= 0 else "",
        f"{registers} registers" if registers >= 0 else "",
        f"{size(shared)} shared" if shared > 0 else "",
        "" if np.isnan(occupancy) else f"occupancy {percent(occupancy)}, estimated",
    ]
    return " | ".join(filter(None, told))


def _sizes(side: Side, event: int) -> str:
    """The inputs of an operator as recorded."""
    rows, place = side.run.shape_rows, _beside(side.run.shape_rows, event)
    if place < 0:
        return ""
    given = inputs(rows.words("shapes")[place], rows.words("dtypes")[place])
    tensors = [
        f"[{', '.join(map(str, shape))}] {clean(dtype, 20)}".strip()
        for shape, dtype in zip(given.shapes, (*given.dtypes, *[""] * len(given.shapes)), strict=False)
        if shape
    ]
    more = f" and {count(len(tensors) - 3, 'more tensor')}" if len(tensors) > 3 else ""
    return ", ".join(tensors[:3]) + more


def _amount(side: Side, event: int, kind: Kind, op: int) -> str:
    """What was moved or computed, and how fast."""
    rows = side.run.event_rows
    moved, dur = int(rows["bytes"][event]), int(rows["dur_ns"][event])
    if kind in (Kind.MEMCPY, Kind.MEMSET) and moved >= 0:
        return size(moved) + (f", {metric(moved / dur * 1e9, 'B/s')}" if dur > 0 else "")
    place = _beside(side.run.shape_rows, op) if op >= 0 else -1
    if kind is not Kind.KERNEL or place < 0 or not is_matrix(_word(side, event)):
        return ""
    shapes = side.run.shape_rows
    done = flops(_word(side, op), inputs(shapes.words("shapes")[place], shapes.words("dtypes")[place]))
    if not done or dur <= 0:
        return ""
    return f"{metric(done, 'FLOP')}, {metric(done / dur * 1e9, 'FLOP/s')}"


def _beside(rows: Rows, event: int) -> int:
    """The row of a side table about an event; -1: none."""
    events = rows["event"]
    place = int(np.searchsorted(events, events.dtype.type(event)))  # of another type all would be copied first
    if place < len(events) and events[place] == event:
        return place
    if len(events) and (events[1:] < events[:-1]).any():  # out of order: looked for one by one
        found = np.flatnonzero(events == event)
        return int(found[0]) if len(found) else -1
    return -1


def _word(side: Side, event: int) -> str:
    return side.run.event_rows.words("name")[event] or ""


def _name(side: Side, event: int) -> str:
    return clean(_word(side, event), NAME_LETTERS) or "an event without a name"


def step_note(side: Side, index: int) -> str:
    """What a card says of a step: what it was mostly spent on."""
    steps = side.steps
    if not steps.recorded[index]:
        return "no events were recorded in it"
    parts = side.accounts.parts if side.accounts else ()
    spent = [(int(side.spent_ns[part.key][index]), part.label) for part in parts]
    whole = max(1, int(steps.dur_ns[index]))
    said = ", ".join(f"{label} {percent(ns / whole)}" for ns, label in sorted(spent, reverse=True)[:3] if ns > 0)
    edge = "" if steps.interior[index] else "\nat the edge of the recording: not evidence"
    return said + edge


def card(side: Side, row: int, id: int) -> dict[str, Any] | None:
    """Everything there is to say of a box, by its row and id; None where there is no such box."""
    placed = side.group_of(row)
    if placed is None or id < 0:
        return None
    group = placed.group
    if group.id == "steps" and id < len(side.steps):
        steps = side.steps
        name, kind, start, dur = step_name(steps, id), "step", steps.start_ns[id], steps.dur_ns[id]
        told = step_note(side, id).split("\n")
        partner = None
    elif group.events and id < len(side.run.event_rows):
        rows = side.run.event_rows
        name, start, dur = clean(_word(side, id), FULL_LETTERS), rows["start_ns"][id], rows["dur_ns"][id]
        kind = Kind(int(rows["kind"][id])).name.lower()
        told = [*lines(side, id), *_where(side, id)]
        partner = _partner(side, id)
    else:
        return None
    return {
        "name": shorten(name, FULL_LETTERS),
        "kind": kind.replace("_", " "),
        "side": side.number,
        "row": row,
        "id": id,
        "start_ns": int(start) + side.shift_ns,
        "dur_ns": int(dur),
        "lines": [line for line in told if line],
        "partner": partner,
    }


def _partner(side: Side, event: int) -> dict[str, Any] | None:
    other = int(side.partner[event])
    if other < 0 or side.row_of[other] < 0:
        return None
    rows = side.run.event_rows
    return {
        "row": int(side.row_of[other]),
        "id": other,
        "start_ns": int(rows["start_ns"][other]) + side.shift_ns,
        "dur_ns": int(rows["dur_ns"][other]),
        "name": _name(side, other),
    }


def _where(side: Side, event: int) -> Iterator[str]:
    rows = side.run.event_rows
    thread, device, stream = (int(rows[column][event]) for column in ("thread", "device", "stream"))
    if thread >= 0:
        yield f"in {thread_name(side.run, thread)}"
    if device >= 0:
        yield f"on GPU {device}" + (f", stream {stream}" if stream >= 0 else "")
    start = int(rows["start_ns"][event])
    step = int(np.searchsorted(side.steps.start_ns, start, side="right")) - 1
    if step >= 0 and start < side.steps.end_ns[step]:
        yield f"begun in {step_name(side.steps, step)}"


def event(side: Side, id: int) -> dict[str, Any] | None:
    """An event as plain values, in the run's own time; what is not told is None. None where there is no such event."""
    rows = side.run.event_rows
    if not 0 <= id < len(rows):
        return None
    told: dict[str, Any] = {"run": side.run.name, "side": side.number, "id": id}
    told |= {column: _plain(rows, column, id) for column in rows.columns}
    told["kind"] = Kind(int(rows["kind"][id])).name.lower()
    thread = told["thread"]
    told["thread"] = None if thread is None else thread_name(side.run, thread)
    for beside in (side.run.grid_rows, side.run.shape_rows, side.run.collective_rows):
        place = _beside(beside, id)
        if place >= 0:
            told |= {column: _plain(beside, column, place) for column in beside.columns if column != "event"}
    other = int(side.partner[id])
    told["partner"] = other if other >= 0 else None
    return told


def _plain(rows: Rows, column: str, place: int) -> Any:
    """A value of a table as Python has it; absent is None."""
    kinds = {each.name: each.dtype for each in rows.table.columns}
    if kinds[column] == "words":
        return rows.words(column)[place]
    value = rows[column][place].item()
    absent = np.isnan(value) if isinstance(value, float) else value == -1 and column not in ("start_ns", "dur_ns")
    return None if absent else value


def part_note(side: Side, key: int) -> str:
    """What a part of the ledger means."""
    parts = side.accounts.parts if side.accounts else ()
    return next((part.meaning for part in parts if INDEX[part.key] == key), "")
