"""One alert as a value."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time

from gpulab.errors import RunError
from gpulab.watch.alerts.measures import Measure
from gpulab.wording import duration

_MAX_FOR_S = 24 * 3600.0


@dataclass(frozen=True, kw_only=True)
class Alert:
    """A limit on a measure: it fires once when the mean over `for_s` seconds crosses the limit.

    `limit` is a fraction, or in °C, W or seconds, by the measure. `while_held`: only while a process holds memory on
    the GPU. It ends when the mean of a minute is on the other side by a fifth of the limit (less for some measures),
    and fires again after `repeat_s` at the earliest.
    """

    measure: Measure
    limit: float | None = None
    for_s: float | None = None
    while_held: bool = False
    repeat_s: float = 3600.0

    def __post_init__(self) -> None:
        kind = self.measure.value
        if self.limit is None:
            object.__setattr__(self, "limit", kind.default_limit)
        if self.for_s is None:
            object.__setattr__(self, "for_s", kind.default_for_s)
        if self.limit is None:
            raise RunError(
                f"The alert {self.measure.label!r} has no limit.",
                why="it is compared with a number",
                fix=f"add one, such as {_example(self.measure)!r}",
            )
        if not 0 <= self.seconds <= _MAX_FOR_S:
            raise RunError(
                f"The alert {self.measure.label!r} cannot be watched for {duration(self.seconds * 1e9)}.",
                why="an alert looks at up to a day",
                fix="write a time such as 5 min",
            )

    @property
    def threshold(self) -> float:
        """The limit as a number."""
        assert self.limit is not None
        return self.limit

    @property
    def seconds(self) -> float:
        """The time over which the mean is taken."""
        assert self.for_s is not None
        return self.for_s

    @property
    def below(self) -> bool:
        """Whether it fires below the limit."""
        return self.measure.value.below

    @property
    def text(self) -> str:
        """The alert in words; parse_alert reads them back."""
        kind = self.measure.value
        phrase = kind.phrases[0]
        if self.measure is Measure.MEMORY_TIME_LEFT:
            phrase = f"{phrase} {kind.text(self.threshold)}"
        elif self.measure is Measure.STEP_TIME_CHANGE:
            phrase = f"{phrase} +{kind.text(self.threshold)} against history"
        elif not kind.is_flag:
            phrase = f"{phrase} {'<' if self.below else '>'} {kind.text(self.threshold)}"
        if self.seconds and self.measure is not Measure.MEMORY_TIME_LEFT:
            phrase = f"{phrase} for {duration(self.seconds * 1e9)}"
        return phrase + (" while memory is held" if self.while_held else "")


@dataclass(frozen=True, kw_only=True)
class QuietHours:
    """Hours of the day, local time, in which nothing is delivered; what is still true afterwards is delivered then."""

    begin: time
    end: time

    def include(self, at_s: float) -> bool:
        """Whether a UNIX time lies in the quiet hours; they may span midnight."""
        now = datetime.fromtimestamp(at_s).time()
        if self.begin <= self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end

    @classmethod
    def parse(cls, text: str) -> QuietHours:
        """Read "22-7" or "22:30-06:00". Raises RunError if it is neither."""
        try:
            begin, end = (_time_of_day(part) for part in text.split("-"))
        except ValueError:
            raise RunError(
                f"The quiet hours {text!r} cannot be read.",
                why="they are not two times of day",
                fix='write "22-7" or "22:30-06:00"',
            ) from None
        return cls(begin=begin, end=end)


def _time_of_day(text: str) -> time:
    hour, _, minute = text.strip().partition(":")
    return time(int(hour), int(minute or 0))


def _example(measure: Measure) -> str:
    return f"{measure.label} {'<' if measure.value.below else '>'} 40 %"
