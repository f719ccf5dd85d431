"""Sensor readings for views: values, format, axis and limit, all taken from the column definition.

Every view of sensors iterates over `Table.displayed(...)` and uses these functions; no view names a column.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Column, ValueKind
from gpulab.intervals import Ints
from gpulab.rows import Rows, Table
from gpulab.run import Gpu, Machine
from gpulab.wording import UNKNOWN, duration, number, percent, quantity, size

Floats = NDArray[np.float64]
Format = Callable[[float | None], str]
_NS_PER = {"s": 1e9, "ms": 1e6}
_BYTE_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def readings(rows: Rows, column: Column) -> tuple[Ints, Floats]:
    """Return times and values of a sensor: a level unchanged, a counter as its rate per second.

    A rate has the time of the later of two samples. It is NaN if either sample is missing, or if the counter was reset
    (its value fell).
    """
    at_ns, values = rows["at_ns"], np.asarray(rows[column.name], np.float64)
    if column.value_kind is not ValueKind.COUNTER:
        return at_ns, values
    if len(at_ns) < 2:
        return at_ns[:0], values[:0]
    order = np.argsort(at_ns, kind="stable")
    at_ns, values = at_ns[order], values[order]
    growth, elapsed_s = np.diff(values), np.diff(at_ns) / 1e9
    valid = (growth >= 0) & (elapsed_s > 0)
    rates = np.full(len(growth), np.nan)
    rates[valid] = growth[valid] / elapsed_s[valid]
    return at_ns[1:], rates


def formatter(column: Column) -> Format:
    """Return the function that formats a value of `readings` with its unit."""
    unit = column.unit
    match unit.format:
        case "percent":
            return percent
        case "bytes":
            return lambda value: _or_unknown(value, size(value) + _per_second(column))
        case "duration":
            ns = unit.scale * _NS_PER[unit.symbol]
            return lambda value: duration(None if value is None else value * ns)
        case "count":
            return lambda value: _or_unknown(value, number(value) + _per_second(column))
    return lambda value: quantity(value, unit.symbol)


def is_count(column: Column) -> bool:
    """Whether its values are counts of things, such as processes; not a counter, whose rate is shown."""
    return column.unit.format == "count" and column.value_kind is not ValueKind.COUNTER


def _or_unknown(value: float | None, text: str) -> str:
    return UNKNOWN if value is None or math.isnan(value) else text


def _per_second(column: Column) -> str:
    return "/s" if column.value_kind is ValueKind.COUNTER else ""


def axis_unit(column: Column, highest: float) -> tuple[float, str]:
    """Return the size of one axis unit, in the stored unit, and its symbol; for bytes, the unit that fits `highest`."""
    if column.unit.format != "bytes":
        return 1.0 / column.unit.scale, column.unit.symbol
    size, symbol = next((unit for unit in _BYTE_UNITS if highest >= unit[0]), (1.0, "B"))
    return size, symbol + _per_second(column)


def axis_label(column: Column, symbol: str) -> str:
    """Return the title of an axis: "power, W"."""
    return f"{column.label}, {symbol}" if symbol else column.label


def limit(column: Column, owner: Gpu | Machine | None) -> float | None:
    """Return the limit of this column on its GPU or machine; None if there is none, or if it is unknown."""
    if column.limit is None or owner is None:
        return None
    value = getattr(owner, column.limit.field)
    return None if value is None else float(value)


def sensor_labels(table: Table) -> tuple[str, ...]:
    """Return the labels of the sensors in a table."""
    return tuple(column.label for column in table.columns if column.label)
