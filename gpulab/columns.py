"""Columns of tables: name, dtype, meaning and, for sensor readings, how views display them.

The suffix of the name is the unit in which values are stored; `UNITS` defines how each unit is displayed. A view asks a
table for the columns to display and formats them by their unit, so a new sensor column needs no change in any view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, auto
from typing import Any

import numpy as np
from numpy.typing import NDArray


class ValueKind(Enum):
    """How values of a column behave over time, which decides how views show them."""

    LEVEL = auto()  # a value at a time: views show it as it is
    COUNTER = auto()  # only increases: views show its increase per second
    FLAGS = auto()  # a bit mask: a separate view shows the names of the bits


class Display(Flag):
    """The views that show a column by default. The Perfetto export has every column that any view shows."""

    NOWHERE = 0
    TABLE = auto()  # the sensor table of the report
    TIMELINE = auto()
    CHART = auto()  # gpulab.charts.sensors
    LIVE = auto()  # the tiles of the live panel
    EVERYWHERE = TABLE | TIMELINE | CHART | LIVE


@dataclass(frozen=True)
class Unit:
    """How stored values are displayed: `value * scale` in `symbol`."""

    symbol: str
    scale: float = 1.0
    format: str = "number"  # of a single value: "percent", "bytes", "duration", "count" or "number"


NO_UNIT = Unit("", 1.0, "count")
UNITS: Mapping[str, Unit] = {  # by the suffix of the column name
    "_ns": Unit("ms", 1e-6, "duration"),
    "_s": Unit("s", 1.0, "duration"),
    "_bytes": Unit("GiB", 2.0**-30, "bytes"),
    "_frac": Unit("%", 100.0, "percent"),
    "_w": Unit("W"),
    "_j": Unit("J"),
    "_mhz": Unit("MHz"),
    "_c": Unit("°C"),
    "_bits": NO_UNIT,
}
RATES: Mapping[str, Unit] = {  # the increase of a counter per second
    "_ns": Unit("%", 1e-7, "percent"),
    "_s": Unit("%", 100.0, "percent"),  # CPU seconds per second: 100 % is one core
    "_bytes": Unit("GiB/s", 2.0**-30, "bytes"),
    "_j": Unit("W"),
}
COUNTS_PER_SECOND = Unit("/s", 1.0, "count")

# Larger numbers are not measurements: a file holds them only if it is damaged or made to do harm. Below these limits
# neither the square of a reading nor the sum of ten thousand sizes overflows.
MAX_SIZE = 2**48  # of bytes, elements and other counts: 256 TiB
MAX_READING = 1e18
_MIN_READING = 1e-18  # smaller ones are zero; their reciprocal overflows
# Integer columns that are names rather than amounts; any value is valid.
_IDENTIFIERS = frozenset(
    ("event", "thread", "device", "loader", "stream", "correlation", "address", "sequence", "wait_on_stream")
).union(("wait_on_correlation",))


@dataclass(frozen=True)
class Limit:
    """Upper limit of a column: a field of gpulab.run.Gpu for GPU columns, of gpulab.run.Machine for host columns."""

    field: str
    label: str  # label of the limit line: "power limit"


@dataclass(frozen=True)
class Column:
    """One column of a table. The dtype `words` means text. Only sensor readings use `label` and later fields."""

    name: str
    dtype: str  # a numpy dtype, or "words"
    meaning: str
    kinds: type[IntEnum] | None = None  # the enumeration of its values; None: plain numbers
    label: str = ""  # display name without unit: "SM clock"
    value_kind: ValueKind = ValueKind.LEVEL
    limit: Limit | None = None
    display: Display = Display.NOWHERE
    flags: tuple[tuple[int, str], ...] = ()  # bits and their names, for a bit mask
    signed: bool = False  # an amount that may be negative; 0 if unknown
    required: bool = False  # a text that every row has; "" if unknown

    @property
    def unit(self) -> Unit:
        """The unit in which views show values, by the suffix of the name; for a counter, of its increase per second."""
        suffix = f"_{self.name.rpartition('_')[2]}"
        if self.value_kind is ValueKind.COUNTER:
            return RATES.get(suffix, COUNTS_PER_SECOND)
        return UNITS.get(suffix, NO_UNIT)

    @property
    def is_share(self) -> bool:
        """Whether its values lie between 0 and 1."""
        return self.value_kind is ValueKind.LEVEL and self.unit.format == "percent"

    def plausible(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values, with those that no measurement gives replaced by "unknown": infinite, negative or huge.

        Times are not changed: `gpulab.store.consistency` checks them together.
        """
        if not len(values) or self.dtype in ("words", "bool") or self.kinds is not None:
            return values
        if values.dtype.kind == "f":
            return self._plausible_readings(values)
        if self.name.endswith("_ns") or self.name in _IDENTIFIERS:
            return values
        lowest, highest = (-MAX_SIZE if self.signed else -1), MAX_SIZE
        if values.min() >= lowest and values.max() <= highest:
            return values
        return np.where((values >= lowest) & (values <= highest), values, 0 if self.signed else -1).astype(values.dtype)

    def _plausible_readings(self, values: NDArray[Any]) -> NDArray[Any]:
        lowest = -MAX_READING if self.unit.symbol == "°C" else 0.0
        with np.errstate(invalid="ignore"):  # NaN means "not measured"
            invalid = (values < lowest) | (values > MAX_READING)
            tiny = (values != 0) & (abs(values) < _MIN_READING)
        if not invalid.any() and not tiny.any():
            return values
        return np.where(invalid, np.nan, np.where(tiny, 0.0, values)).astype(values.dtype)
