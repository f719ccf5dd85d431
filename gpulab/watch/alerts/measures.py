"""Measures that an alert can compare with a limit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from gpulab.wording import duration, percent, quantity


@dataclass(frozen=True, kw_only=True)
class MeasureKind:
    """How a measure is written: its words, the units of its limit (each with its factor), its format, and its default.

    `below`: an alert fires below the limit. `default_limit` and `default_for_s` apply if the words give none.
    """

    phrases: tuple[str, ...]
    units: tuple[tuple[str, float], ...]
    text: Callable[[float], str]
    below: bool = False
    is_flag: bool = False  # 1 while it is so, else 0: no limit is written
    default_limit: float | None = None
    default_for_s: float = 60.0
    hysteresis: float = 0.2  # an alert ends when the measure is this far on the other side, as a share of the limit


_PERCENT = (("%", 0.01), ("percent", 0.01))
_TIME = (("s", 1.0), ("min", 60.0), ("h", 3600.0))


def _seconds(value_s: float) -> str:
    return duration(value_s * 1e9)


class Measure(Enum):
    """What an alert watches, on each GPU or in the recorded loop."""

    UTILISATION = MeasureKind(phrases=("utilisation", "utilization", "idle"), units=_PERCENT, text=percent, below=True)
    MEMORY = MeasureKind(phrases=("memory",), units=_PERCENT, text=percent, hysteresis=0.03)
    MEMORY_TIME_LEFT = MeasureKind(
        phrases=("memory will run out in",), units=_TIME, text=_seconds, below=True, default_for_s=0.0
    )
    TEMPERATURE = MeasureKind(
        phrases=("temperature",), units=(("°C", 1.0), ("C", 1.0)), text=lambda c: quantity(c, "°C"), hysteresis=0.05
    )
    POWER = MeasureKind(phrases=("power",), units=(("W", 1.0),), text=lambda w: quantity(w, "W"), hysteresis=0.1)
    THROTTLED = MeasureKind(phrases=("throttled",), units=(), text=percent, is_flag=True, default_limit=0.5)
    THROTTLED_BY_HEAT = MeasureKind(
        phrases=("throttled by heat",), units=(), text=percent, is_flag=True, default_limit=0.5
    )
    THROTTLED_BY_POWER = MeasureKind(
        phrases=("throttled by power",), units=(), text=percent, is_flag=True, default_limit=0.5
    )
    MEMORY_ERRORS = MeasureKind(
        phrases=("memory errors", "ecc errors"), units=(), text=lambda n: quantity(n, "errors"), is_flag=True,
        default_limit=0.0, default_for_s=0.0,
    )  # fmt: skip
    NO_READINGS = MeasureKind(
        phrases=("no readings", "gpu lost"), units=(), text=percent, is_flag=True, default_limit=0.5
    )
    DATA_WAIT = MeasureKind(phrases=("waiting for data", "data wait"), units=_PERCENT, text=percent)
    STEP_TIME_CHANGE = MeasureKind(phrases=("step time",), units=_PERCENT, text=percent, default_for_s=0.0)

    @property
    def label(self) -> str:
        """The measure in words."""
        return self.value.phrases[0]
