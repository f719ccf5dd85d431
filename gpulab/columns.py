"""Columns of tables: name, dtype, meaning and, for sensor readings, how views display them.

The suffix of the name is the unit in which values are stored; `UNITS` defines how each unit is displayed. A view asks a
table for the columns to display and formats them by their unit, so a new sensor column needs no change in any view.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, Flag, IntEnum, auto


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
