"""The text of a card: launch and delay, tensor sizes, bytes, achieved rate, grid and occupancy of a box."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from gpulab.analysis.kernels.flops import flops, parse_inputs
from gpulab.analysis.kernels.kernel_table import is_matrix
from gpulab.rows import Rows
from gpulab.tables import EventKind
from gpulab.views.timeline.scene.colours import KEY_INDEX
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.views.timeline.scene.rows import step_name, thread_name
from gpulab.wording import clean, count, duration, metric, percent, shorten, size

MAX_PARTNER_NAME_LENGTH, MAX_LINE_LENGTH = 80, 160
MAX_FULL_NAME_LENGTH = 1200


def event_note(side: PlacedRun, event: int) -> str:
    """Return the lines of an event's card that follow name and duration, joined; "" if there are none."""
    return "\n".join(shorten(line, MAX_LINE_LENGTH) for line in event_lines(side, event))


def event_lines(side: PlacedRun, event: int) -> Iterator[str]:
    """Yield the lines of an event's card that follow name and duration."""
    rows = side.run.event_rows
    kind = EventKind(int(rows["kind"][event]))
    partner = int(side.partner[event])
    if kind >= EventKind.KERNEL.value:
        yield from _device_lines(side, event, kind, partner)
    elif partner >= 0:
        delay = int(rows["start_ns"][partner] - rows["start_ns"][event])
        yield f"launched {_name(side, partner)}, which started {duration(max(0, delay))} later"
    if kind is EventKind.OP and (sizes := _sizes(side, event)):
        yield sizes


def _device_lines(side: PlacedRun, event: int, kind: EventKind, partner: int) -> Iterator[str]:
    """Yield the lines about a kernel, copy or collective."""
    rows = side.run.event_rows
    op = side.enclosing_event(partner) if partner >= 0 else -1
    if partner >= 0:
        delay = int(rows["start_ns"][event] - rows["start_ns"][partner])
        yield f"launched {duration(max(0, delay))} earlier by {_name(side, op if op >= 0 else partner)}"
    if grid := _grid(side, event):
        yield grid
    if op >= 0 and (sizes := _sizes(side, op)):
        yield sizes
    if throughput := _throughput(side, event, kind, op):
        yield throughput


def _grid(side: PlacedRun, event: int) -> str:
    """Describe grid, registers, shared memory and occupancy of a kernel."""
    rows, index = side.run.grid_rows, _row_of_event(side.run.grid_rows, event)
    if index < 0:
        return ""
    grid, block = int(rows["grid"][index]), int(rows["block"][index])
    registers, shared = int(rows["registers"][index]), int(rows["shared_bytes"][index])
    occupancy = float(rows["occupancy_frac"][index])
    parts = [
        f"grid {grid:,}" + (f" x {block:,} threads" if block >= 0 else "") if grid >= 0 else "",
        f"{registers} registers" if registers >= 0 else "",
        f"{size(shared)} shared memory" if shared > 0 else "",
        "" if np.isnan(occupancy) else f"estimated occupancy {percent(occupancy)}",
    ]
    return " | ".join(filter(None, parts))


def _sizes(side: PlacedRun, event: int) -> str:
    """Describe the first three input tensors of an operator."""
    rows, index = side.run.shape_rows, _row_of_event(side.run.shape_rows, event)
    if index < 0:
        return ""
    op_inputs = parse_inputs(rows.text("shapes")[index], rows.text("dtypes")[index])
    tensors = [
        f"[{', '.join(map(str, shape))}] {clean(dtype, 20)}".strip()
        for shape, dtype in zip(op_inputs.shapes, (*op_inputs.dtypes, *[""] * len(op_inputs.shapes)), strict=False)
        if shape
    ]
    more = f" and {count(len(tensors) - 3, 'more tensor')}" if len(tensors) > 3 else ""
    return ", ".join(tensors[:3]) + more


def _throughput(side: PlacedRun, event: int, kind: EventKind, op: int) -> str:
    """Return bytes and B/s of a copy, or FLOP and FLOP/s of a matrix kernel; "" if unknown."""
    rows = side.run.event_rows
    copied_bytes, dur = int(rows["bytes"][event]), int(rows["dur_ns"][event])
    if kind in (EventKind.MEMCPY, EventKind.MEMSET) and copied_bytes >= 0:
        return size(copied_bytes) + (f", {metric(copied_bytes / dur * 1e9, 'B/s')}" if dur > 0 else "")
    index = _row_of_event(side.run.shape_rows, op) if op >= 0 else -1
    if kind is not EventKind.KERNEL or index < 0 or not is_matrix(_raw_name(side, event)):
        return ""
    shapes = side.run.shape_rows
    flop = flops(_raw_name(side, op), parse_inputs(shapes.text("shapes")[index], shapes.text("dtypes")[index]))
    if not flop or dur <= 0:
        return ""
    return f"{metric(flop, 'FLOP')}, {metric(flop / dur * 1e9, 'FLOP/s')}"


def _row_of_event(rows: Rows, event: int) -> int:
    """Return the row of a side table about an event; -1 if there is none."""
    events = rows["event"]
    index = int(np.searchsorted(events, events.dtype.type(event)))  # the same dtype avoids a copy of the column
    if index < len(events) and events[index] == event:
        return index
    if len(events) and (events[1:] < events[:-1]).any():  # not sorted: linear search
        matches = np.flatnonzero(events == event)
        return int(matches[0]) if len(matches) else -1
    return -1


def _raw_name(side: PlacedRun, event: int) -> str:
    return side.run.event_rows.text("name")[event] or ""


def _name(side: PlacedRun, event: int) -> str:
    return clean(_raw_name(side, event), MAX_PARTNER_NAME_LENGTH) or "an event without a name"


def step_note(side: PlacedRun, index: int) -> str:
    """Return the card text of a step: the three largest parts of its ledger."""
    steps = side.steps
    if not steps.recorded[index]:
        return "no events were recorded in this step"
    parts = side.ledger.parts if side.ledger else ()
    times = [(int(side.step_part_ns[part.key][index]), part.label) for part in parts]
    step_ns = max(1, int(steps.dur_ns[index]))
    text = ", ".join(f"{label} {percent(ns / step_ns)}" for ns, label in sorted(times, reverse=True)[:3] if ns > 0)
    edge = "" if steps.interior[index] else "\nedge step of the recording: not used in the diagnosis"
    return text + edge


def box_card(side: PlacedRun, row: int, id: int) -> dict[str, Any] | None:
    """Return the details of a box, by its row and id; None if there is no such box."""
    placed = side.group_of(row)
    if placed is None or id < 0:
        return None
    group = placed.group
    if group.id == "steps" and id < len(side.steps):
        steps = side.steps
        name, kind, start, dur = step_name(steps, id), "step", steps.start_ns[id], steps.dur_ns[id]
        card_lines = step_note(side, id).split("\n")
        partner = None
    elif group.is_events and id < len(side.run.event_rows):
        rows = side.run.event_rows
        name, start, dur = clean(_raw_name(side, id), MAX_FULL_NAME_LENGTH), rows["start_ns"][id], rows["dur_ns"][id]
        kind = EventKind(int(rows["kind"][id])).name.lower()
        card_lines = [*event_lines(side, id), *_location(side, id)]
        partner = _partner(side, id)
    else:
        return None
    return {
        "name": shorten(name, MAX_FULL_NAME_LENGTH),
        "kind": kind.replace("_", " "),
        "side": side.number,
        "row": row,
        "id": id,
        "start_ns": int(start) + side.shift_ns,
        "dur_ns": int(dur),
        "lines": [line for line in card_lines if line],
        "partner": partner,
    }


def _partner(side: PlacedRun, event: int) -> dict[str, Any] | None:
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


def _location(side: PlacedRun, event: int) -> Iterator[str]:
    """Yield thread, GPU, stream and step of an event."""
    rows = side.run.event_rows
    thread, device, stream = (int(rows[column][event]) for column in ("thread", "device", "stream"))
    if thread >= 0:
        yield f"on {thread_name(side.run, thread)}"
    if device >= 0:
        yield f"on GPU {device}" + (f", stream {stream}" if stream >= 0 else "")
    start = int(rows["start_ns"][event])
    step = int(np.searchsorted(side.steps.start_ns, start, side="right")) - 1
    if step >= 0 and start < side.steps.end_ns[step]:
        yield f"started in {step_name(side.steps, step)}"


def event_values(side: PlacedRun, id: int) -> dict[str, Any] | None:
    """Return an event as plain values in the run's own time, None for absent ones; None if there is no such event."""
    rows = side.run.event_rows
    if not 0 <= id < len(rows):
        return None
    values: dict[str, Any] = {"run": side.run.name, "side": side.number, "id": id}
    values |= {column: _python_value(rows, column, id) for column in rows.columns}
    values["kind"] = EventKind(int(rows["kind"][id])).name.lower()
    thread = values["thread"]
    values["thread"] = None if thread is None else thread_name(side.run, thread)
    for table in (side.run.grid_rows, side.run.shape_rows, side.run.collective_rows):
        index = _row_of_event(table, id)
        if index >= 0:
            values |= {column: _python_value(table, column, index) for column in table.columns if column != "event"}
    partner = int(side.partner[id])
    values["partner"] = partner if partner >= 0 else None
    return values


def _python_value(rows: Rows, column: str, index: int) -> Any:
    """Return a value of a table as a Python object; absent is None."""
    dtypes = {each.name: each.dtype for each in rows.table.columns}
    if dtypes[column] == "words":
        return rows.text(column)[index]
    value = rows[column][index].item()
    absent = np.isnan(value) if isinstance(value, float) else value == -1 and column not in ("start_ns", "dur_ns")
    return None if absent else value


def part_note(side: PlacedRun, key: int) -> str:
    """Return the meaning of a part of the ledger."""
    parts = side.ledger.parts if side.ledger else ()
    return next((part.meaning for part in parts if KEY_INDEX[part.key] == key), "")
