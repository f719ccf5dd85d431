"""Readings of sensors as views show them: values, format, axis and limit, all from the column.

Every view of sensors iterates over `Table.displayed(...)` and uses these; none of them names a column to show it.
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
from gpulab.views.wording import UNKNOWN, duration, percent, quantity, size

Floats = NDArray[np.float64]
Format = Callable[[float | None], str]
_NS_PER = {"s": 1e9, "ms": 1e6}
_BYTE_UNITS = ((2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def readings(rows: Rows, column: Column) -> tuple[Ints, Floats]:
    """Times and values that a view shows: those of a level as they are, of a counter its growth per second.

    The growth stands at the later of two samples. It is NaN where either is missing, and where the counter fell: then
    it was reset.
    """
    at, values = rows["at_ns"], np.asarray(rows[column.name], np.float64)
    if column.value_kind is not ValueKind.COUNTER:
        return at, values
    if len(at) < 2:
        return at[:0], values[:0]
    order = np.argsort(at, kind="stable")
    at, values = at[order], values[order]
    growth, passed_s = np.diff(values), np.diff(at) / 1e9
    valid = (growth >= 0) & (passed_s > 0)
    rates = np.full(len(growth), np.nan)
    rates[valid] = growth[valid] / passed_s[valid]
    return at[1:], rates


def formatter(column: Column) -> Format:
    """How one value that `readings` gives is written, with its unit."""
    unit = column.unit
    match unit.format:
        case "percent":
            return percent
        case "bytes":
            return lambda value: _known(value, size(value) + _per_second(column))
        case "duration":
            ns = unit.scale * _NS_PER[unit.symbol]
            return lambda value: duration(None if value is None else value * ns)
        case "count":
            return lambda value: _known(value, format(value or 0.0, ".3g") + _per_second(column))
    return lambda value: quantity(value, unit.symbol)


def _known(value: float | None, text: str) -> str:
    return UNKNOWN if value is None or math.isnan(value) else text


def _per_second(column: Column) -> str:
    return "/s" if column.value_kind is ValueKind.COUNTER else ""


def axis_unit(column: Column, highest: float) -> tuple[float, str]:
    """The size of one unit of an axis, in the stored unit, and its symbol; of bytes, the unit that fits `highest`."""
    if column.unit.format != "bytes":
        return 1.0 / column.unit.scale, column.unit.symbol
    size, symbol = next((unit for unit in _BYTE_UNITS if highest >= unit[0]), (1.0, "B"))
    return size, symbol + _per_second(column)


def axis_label(column: Column, symbol: str) -> str:
    """The title of an axis: "power, W"."""
    return f"{column.label}, {symbol}" if symbol else column.label


def limit(column: Column, owner: Gpu | Machine | None) -> float | None:
    """What bounds this column on its GPU or its machine; None if nothing does, or it is not known."""
    if column.limit is None or owner is None:
        return None
    value = getattr(owner, column.limit.field)
    return None if value is None else float(value)


def labels(table: Table) -> tuple[str, ...]:
    """What the sensors of a table read, for people."""
    return tuple(column.label for column in table.columns if column.label)
