"""Sensor and memory curves: a sensor without readings has no curve, and missed readings leave a gap."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpulab.analysis.machine.gpu_events import gpu_events
from gpulab.columns import Column, Display
from gpulab.intervals import Ints, Spans
from gpulab.rows import Rows
from gpulab.run import Gpu, Machine
from gpulab.views import sensor_columns
from gpulab.views.timeline.scene.elements import Curve, Floats, Group
from gpulab.views.timeline.scene.rows import MAX_GPUS, RowBuilder, gpu_name
from gpulab.wording import count, sentence

MAX_MISSED_PERIODS = 6  # a reading is valid for this many sampling periods; a longer interval without one is a gap
_HEADROOM = 1.05


def curve_groups(builder: RowBuilder) -> Iterator[Group]:
    """Yield the curves of a run, from top to bottom."""
    rows = builder.run.gpu_rows
    devices = np.unique(rows["device"])
    utilisation = [float(np.nansum(rows["util_frac"][rows["device"] == each])) for each in devices]
    busiest = sorted(devices[np.argsort([-each for each in utilisation], kind="stable")][:MAX_GPUS].tolist())
    if len(devices) > len(busiest):
        builder.notes.append(f"the sensors of {count(len(devices) - len(busiest), 'other GPU')} are not drawn")
    several = len(devices) > 1 or len(builder.run.machine.gpus) > 1
    for device in busiest:
        yield from _gpu(builder, device, rows.select(rows["device"] == device), gpu_name(device, several=several))
    yield from _allocated(builder)
    yield from _sensors(builder, builder.run.host_rows, "host", owner=builder.run.machine)


def _gpu(builder: RowBuilder, device: int, rows: Rows, name: str) -> Iterator[Group]:
    gpus = builder.run.machine.gpus
    gpu = gpus[device] if 0 <= device < len(gpus) else None
    yield from _sensors(builder, rows, f"gpu{device}", f"{name} ", gpu)
    if not np.isnan(rows["throttle_bits"]).all():
        yield _throttling(builder, device, rows, name)
    if (others := _other_processes(builder, device, name)) is not None:
        yield others


def _sensors(
    builder: RowBuilder, rows: Rows, source: str, prefix: str = "", owner: Gpu | Machine | None = None
) -> Iterator[Group]:
    for column in rows.table.displayed(Display.TIMELINE):
        yield from _sensor(builder, rows, column, source, prefix, owner)


def _sensor(
    builder: RowBuilder, rows: Rows, column: Column, source: str, prefix: str, owner: Gpu | Machine | None
) -> Iterator[Group]:
    """Yield the curve of a sensor, if it has readings."""
    at, values = sensor_columns.readings(rows, column)
    if not len(values) or np.isnan(values).all():
        return
    unit, limit = column.unit, sensor_columns.limit(column, owner)
    scale = 1.0 if unit.format in ("percent", "bytes") else unit.scale  # these two are scaled in the browser
    values, limit = values * scale, None if limit is None else limit * scale
    line = f" The dashed line is the {column.limit.label}." if column.limit and limit is not None else ""
    yield Group(
        id=f"{source}:{column.name}",
        name=prefix + column.label,
        description=f"{sentence(column.meaning)}{line}",
        curve=curve_with_gaps(at + builder.shift_ns, values),
        unit=unit.symbol,
        high=1.0 if column.is_share else _top(float(np.nanmax(values)), limit),
        format=unit.format,
        threshold=limit,
    )


def _top(highest: float, limit: float | None) -> float:
    """Return the upper end of the axis: slightly above the limit or the highest reading."""
    return max(1e-9, _HEADROOM * max(highest, limit or 0.0))


def curve_with_gaps(at_ns: Ints, values: Floats) -> Curve:
    """Sort readings by time, and insert a gap (NaN) where none came for `MAX_MISSED_PERIODS` periods."""
    order = np.argsort(at_ns, kind="stable")
    at, value = at_ns[order], values[order].astype(np.float64)
    if len(at) < 3:
        return Curve(at, value)
    intervals = np.diff(at)
    gaps = np.flatnonzero(intervals > MAX_MISSED_PERIODS * max(1, int(np.median(intervals))))
    # NaN right after the last reading before the gap, so that no line is drawn across it.
    return Curve(np.insert(at, gaps + 1, at[gaps] + 1), np.insert(value, gaps + 1, np.nan))


def _throttling(builder: RowBuilder, device: int, rows: Rows, name: str) -> Group:
    """Build the throttling row: a box lasts from a reading with throttle reasons to the next reading.

    If the next one is missing, it lasts `MAX_MISSED_PERIODS` periods.
    """
    at, bits = rows["at_ns"], rows["throttle_bits"]
    order = np.argsort(at, kind="stable")
    at, measured = at[order], ~np.isnan(bits[order])
    reasons = np.where(measured, bits[order], 0).astype(np.int64)
    period = int(np.median(np.diff(at))) if len(at) > 1 else 0
    until = np.minimum(np.append(at[1:], at[-1:] + period), at + MAX_MISSED_PERIODS * max(1, period))
    spans: dict[tuple[str, str], Spans] = {}
    reported = np.zeros(len(at), np.int64)
    names = rows.table.column("throttle_bits").flags
    for bit, _ in names:
        reported |= reasons & bit
    for combination in np.unique(reported[reported > 0]).tolist():
        label = " and ".join(name for bit, name in names if combination & bit)
        mask = reported == combination
        spans["throttle", label] = Spans(at[mask], until[mask])
    never = "" if spans else " No reading reported any throttling."
    about = f"Clock throttling by the driver, with its reason.{never}"
    return Group(
        id=f"gpu{device}:throttle", name=f"{name} throttling", description=about, rows=(builder.row_of_spans(spans),)
    )


def _other_processes(builder: RowBuilder, device: int, name: str) -> Group | None:
    """Build the row of times in which other processes held memory on the GPU, or the driver lost it; None without."""
    events = [
        event
        for event in gpu_events(builder.run, builder.steps)
        if event.device == device and event.kind != "throttling"
    ]
    if not events:
        return None
    spans = {("throttle", event.label): event.spans for event in events}
    return Group(
        id=f"gpu{device}:events",
        name=f"{name} events",
        description="Other processes that held memory on this GPU, and times in which the driver gave no readings.",
        rows=(builder.row_of_spans(spans),),
    )


def _allocated(builder: RowBuilder) -> Iterator[Group]:
    """Yield the memory allocated to tensors: at every allocation if recorded, else at the start of each step."""
    run = builder.run
    for rows, source in ((run.memory_rows, "at every allocation"), (run.allocator_rows, "at the start of each step")):
        measured = rows.select(np.flatnonzero(rows["allocated_bytes"] >= 0))
        devices = np.unique(measured["device"]).tolist()
        gpus = [each for each in devices if each >= 0][:MAX_GPUS]
        for device in gpus or devices[:1]:
            device_rows = measured.select(measured["device"] == device)
            order = np.argsort(device_rows["at_ns"], kind="stable")
            value = device_rows["allocated_bytes"][order].astype(np.float64)
            name = "memory allocated" if device >= 0 else "host memory allocated"
            yield Group(
                id=f"allocated:{device}",
                name=f"GPU {device} {name}" if len(gpus) > 1 else name,
                description=f"Bytes allocated to tensors, {source}.",
                curve=Curve(
                    device_rows["at_ns"][order] + builder.shift_ns,
                    value,
                    is_step_function=source == "at every allocation",
                ),
                unit="B",
                high=_top(float(value.max()), None),
                format="bytes",
            )
        if devices:
            return


def sample_curve(curve: Curve, start_ns: int, end_ns: int, max_points: int) -> tuple[Floats, Floats, Floats]:
    """Sample a curve in a window at about `max_points` points or fewer; return times, lowest and highest values.

    If there are more readings, each point is an interval of the window with its lowest and highest reading.
    """
    at, value = curve.at_ns, curve.value
    first = max(0, int(np.searchsorted(at, start_ns, side="left")) - 1)
    last = int(np.searchsorted(at, end_ns, side="right")) + 1
    at, value = at[first:last], value[first:last]
    if curve.is_step_function:
        at, value = _step_function(at, value, end_ns)
    if len(at) <= max_points:
        return at.astype(np.float64), value, value
    count = max(1, (max_points - 2) // 2)
    edges = np.linspace(start_ns, end_ns, count + 1)
    interval = np.searchsorted(edges, at, side="right")  # the time before and after the window counts as intervals
    is_gap = np.isnan(value)
    changes = interval[1:] != interval[:-1]
    begins = np.flatnonzero(np.append(True, changes | (is_gap[1:] != is_gap[:-1])))
    if len(begins) > max_points:  # too many gaps to show them all: only intervals without any reading are gaps
        begins = np.flatnonzero(np.append(True, changes))
    low, high = np.fmin.reduceat(value, begins), np.fmax.reduceat(value, begins)
    lasts = np.append(begins[1:], len(at)) - 1
    middle = (at[begins] + at[lasts]) / 2.0
    if not curve.is_step_function:
        return middle, low, high
    # The value is constant across intervals without a change: add a point at either end of them.
    empty = np.flatnonzero(interval[begins[1:]] - interval[begins[:-1]] > 1)
    constant = value[lasts[empty]]
    ends = np.concatenate([at[lasts[empty]], at[begins[empty + 1]]]).astype(np.float64)
    times = np.concatenate([middle, ends])
    order = np.argsort(times, kind="stable")
    lowest, highest = np.concatenate([low, constant, constant]), np.concatenate([high, constant, constant])
    return times[order], lowest[order], highest[order]


def _step_function(at: Ints, value: Floats, end_ns: int) -> tuple[Ints, Floats]:
    """Repeat each value until the next reading, and the last one until the end."""
    if not len(at):
        return at, value
    until = np.append(at[1:], max(int(at[-1]), end_ns))
    return np.stack([at, until], axis=1).reshape(-1), np.repeat(value, 2)
