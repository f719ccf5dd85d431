"""Sensors and memory on the same axis as the events: what was never read has no curve, what was missed is a hole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpulab.columns import Column, Display
from gpulab.intervals import Ints, Spans
from gpulab.rows import Rows
from gpulab.run import Gpu, Machine
from gpulab.views import sensor_columns
from gpulab.views.timeline.scene.groups import Curve, Floats, Group
from gpulab.views.timeline.scene.rows import MOST_GPUS, Drawn, gpu_name
from gpulab.views.wording import counted, sentence

MISSED = 6  # a reading is good for so many of the usual periods; longer without one is a hole
_HEADROOM = 1.05


def curves(drawn: Drawn) -> Iterator[Group]:
    """The curves of a run, in the order in which they stand."""
    rows = drawn.run.gpu_rows
    found = np.unique(rows["device"])
    used = [float(np.nansum(rows["util_frac"][rows["device"] == each])) for each in found]
    chosen = sorted(found[np.argsort([-each for each in used], kind="stable")][:MOST_GPUS].tolist())
    if len(found) > len(chosen):
        drawn.notes.append(f"the sensors of {counted(len(found) - len(chosen), 'other GPU')} are not drawn")
    several = len(found) > 1 or len(drawn.run.machine.gpus) > 1
    for device in chosen:
        yield from _gpu(drawn, device, rows.where(rows["device"] == device), gpu_name(device, several=several))
    yield from _allocated(drawn)
    yield from _sensors(drawn, drawn.run.host_rows, "host", owner=drawn.run.machine)


def _gpu(drawn: Drawn, device: int, rows: Rows, name: str) -> Iterator[Group]:
    gpus = drawn.run.machine.gpus
    gpu = gpus[device] if 0 <= device < len(gpus) else None
    yield from _sensors(drawn, rows, f"gpu{device}", f"{name} ", gpu)
    if not np.isnan(rows["throttle_bits"]).all():
        yield _throttled(drawn, device, rows, name)


def _sensors(
    drawn: Drawn, rows: Rows, source: str, prefix: str = "", owner: Gpu | Machine | None = None
) -> Iterator[Group]:
    for column in rows.table.displayed(Display.TIMELINE):
        yield from _sensor(drawn, rows, column, source, prefix, owner)


def _sensor(
    drawn: Drawn, rows: Rows, column: Column, source: str, prefix: str, owner: Gpu | Machine | None
) -> Iterator[Group]:
    """One sensor; nothing where it was never read."""
    at, values = sensor_columns.readings(rows, column)
    if not len(values) or np.isnan(values).all():
        return
    unit, limit = column.unit, sensor_columns.limit(column, owner)
    scale = 1.0 if unit.format in ("percent", "bytes") else unit.scale  # these two are scaled in the browser
    values, limit = values * scale, None if limit is None else limit * scale
    line = f" The line is the {column.limit.label}." if column.limit and limit is not None else ""
    yield Group(
        id=f"{source}:{column.name}",
        name=prefix + column.label,
        about=f"{sentence(column.meaning)}{line}",
        curve=with_holes(at + drawn.shift_ns, values),
        unit=unit.symbol,
        high=1.0 if column.is_share else _top(float(np.nanmax(values)), limit),
        format=unit.format,
        threshold=limit,
    )


def _top(most: float, limit: float | None) -> float:
    """Where the axis ends: a little above the limit, or the highest reading."""
    return max(1e-9, _HEADROOM * max(most, limit or 0.0))


def with_holes(at_ns: Ints, values: Floats) -> Curve:
    """Readings in order of time; where none came for long, a hole stands between."""
    order = np.argsort(at_ns, kind="stable")
    at, value = at_ns[order], values[order].astype(np.float64)
    if len(at) < 3:
        return Curve(at, value)
    between = np.diff(at)
    holes = np.flatnonzero(between > MISSED * max(1, int(np.median(between))))
    # Just after the last reading before it, so that no line is drawn across.
    return Curve(np.insert(at, holes + 1, at[holes] + 1), np.insert(value, holes + 1, np.nan))


def _throttled(drawn: Drawn, device: int, rows: Rows, name: str) -> Group:
    """When a reading named a reason for lower clocks: until the next reading, or for the usual time."""
    at, bits = rows["at_ns"], rows["throttle_bits"]
    order = np.argsort(at, kind="stable")
    at, told = at[order], ~np.isnan(bits[order])
    reasons = np.where(told, bits[order], 0).astype(np.int64)
    period = int(np.median(np.diff(at))) if len(at) > 1 else 0
    until = np.minimum(np.append(at[1:], at[-1:] + period), at + MISSED * max(1, period))
    spans: dict[tuple[str, str], Spans] = {}
    known = np.zeros(len(at), np.int64)
    names = rows.table.column("throttle_bits").flags
    for bit, _ in names:
        known |= reasons & bit
    for each in np.unique(known[known > 0]).tolist():
        words = " and ".join(name for bit, name in names if each & bit)
        mine = known == each
        spans["throttle", words] = Spans(at[mine], until[mine])
    never = "" if spans else " It never was in a reading."
    about = f"When the driver held the clocks back, and why.{never}"
    return Group(id=f"gpu{device}:throttle", name=f"{name} throttle", about=about, rows=(drawn.segments(spans),))


def _allocated(drawn: Drawn) -> Iterator[Group]:
    """Memory given out to tensors, event by event, else where each step begins."""
    run = drawn.run
    for rows, source in ((run.memory_rows, "at every allocation"), (run.allocator_rows, "where each step begins")):
        told = rows.where(np.flatnonzero(rows["allocated_bytes"] >= 0))
        devices = np.unique(told["device"]).tolist()
        gpus = [each for each in devices if each >= 0][:MOST_GPUS]
        for device in gpus or devices[:1]:
            mine = told.where(told["device"] == device)
            order = np.argsort(mine["at_ns"], kind="stable")
            value = mine["allocated_bytes"][order].astype(np.float64)
            name = "memory allocated" if device >= 0 else "host memory allocated"
            yield Group(
                id=f"allocated:{device}",
                name=f"GPU {device} {name}" if len(gpus) > 1 else name,
                about=f"Bytes given out to tensors, {source}.",
                curve=Curve(mine["at_ns"][order] + drawn.shift_ns, value, held=source == "at every allocation"),
                unit="B",
                high=_top(float(value.max()), None),
                format="bytes",
            )
        if devices:
            return


def pieces(curve: Curve, start_ns: int, end_ns: int, most: int) -> tuple[Floats, Floats, Floats]:
    """A curve in a stretch of time in at most about so many points: moments, lowest and highest value there.

    Where there are more readings than that, each point is a piece of the stretch with its lowest and highest.
    """
    at, value = curve.at_ns, curve.value
    first = max(0, int(np.searchsorted(at, start_ns, side="left")) - 1)
    last = int(np.searchsorted(at, end_ns, side="right")) + 1
    at, value = at[first:last], value[first:last]
    if curve.held:
        at, value = _steps(at, value, end_ns)
    if len(at) <= most:
        return at.astype(np.float64), value, value
    count = max(1, (most - 2) // 2)
    edges = np.linspace(start_ns, end_ns, count + 1)
    place = np.searchsorted(edges, at, side="right")  # before and after the stretch are pieces too
    hole = np.isnan(value)
    turns = place[1:] != place[:-1]
    begins = np.flatnonzero(np.append(True, turns | (hole[1:] != hole[:-1])))
    if len(begins) > most:  # so many holes that they cannot all be told: a piece is one where nothing was read in it
        begins = np.flatnonzero(np.append(True, turns))
    low, high = np.fmin.reduceat(value, begins), np.fmax.reduceat(value, begins)
    last_of = np.append(begins[1:], len(at)) - 1
    middle = (at[begins] + at[last_of]) / 2.0
    if not curve.held:
        return middle, low, high
    # Across pieces in which nothing changed the value stays what it was: each side of such a stretch has a point.
    empty = np.flatnonzero(place[begins[1:]] - place[begins[:-1]] > 1)
    stays = value[last_of[empty]]
    sides = np.concatenate([at[last_of[empty]], at[begins[empty + 1]]]).astype(np.float64)
    moments = np.concatenate([middle, sides])
    order = np.argsort(moments, kind="stable")
    return moments[order], np.concatenate([low, stays, stays])[order], np.concatenate([high, stays, stays])[order]


def _steps(at: Ints, value: Floats, end_ns: int) -> tuple[Ints, Floats]:
    """Each value until the next one comes, and the last until the end."""
    if not len(at):
        return at, value
    until = np.append(at[1:], max(int(at[-1]), end_ns))
    return np.stack([at, until], axis=1).reshape(-1), np.repeat(value, 2)
