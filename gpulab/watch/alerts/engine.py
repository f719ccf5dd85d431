"""Which alerts begin and end at a moment."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpulab.watch.alerts.alert import Alert
from gpulab.watch.alerts.measures import Measure
from gpulab.watch.alerts.windows import SlidingWindow
from gpulab.wording import duration

_CLEAR_S = 60.0  # the mean of this time ends an alert
_HELD_SHARE = 0.95  # of the window


@dataclass(frozen=True, kw_only=True)
class SubjectMeasures:
    """The measures of one subject (a GPU, a loop) at a moment; missing or NaN: unknown.

    `is_held`: whether a process holds memory on the GPU.
    """

    subject: str
    values: Mapping[Measure, float]
    is_held: bool | None = None


@dataclass(frozen=True, kw_only=True)
class Firing:
    """An alert that begins (or ends) on a subject, with the mean that crossed the limit."""

    alert: Alert
    subject: str
    at_s: float
    value: float
    ended: bool = False

    @property
    def text(self) -> str:
        """What was measured, in words."""
        kind, label = self.alert.measure.value, self.alert.measure.label
        if self.ended:
            return f"over: {self.alert.text}"
        if self.alert.measure is Measure.MEMORY_TIME_LEFT:
            return f"{label} {kind.text(self.value)}"
        seconds = f" for {duration(self.alert.seconds * 1e9)}" if self.alert.seconds else ""
        if kind.is_flag:
            return f"{label}{seconds}"
        return f"{label} {kind.text(self.value)}{seconds}, limit {kind.text(self.alert.threshold)}"


@dataclass
class _State:
    """What is remembered of an alert on a subject."""

    window: SlidingWindow
    short: SlidingWindow
    occupancy: SlidingWindow
    active: bool = False
    last_fired_s: float = field(default=-math.inf)


class AlertEngine:
    """Watches alerts on any number of subjects. Each alert fires once, and again only after it ended."""

    def __init__(self, alerts: Sequence[Alert], *, period_s: float = 1.0) -> None:
        self.alerts = tuple(alerts)
        self._period_s = period_s
        self._states: dict[tuple[Alert, str], _State] = {}

    def update(self, at_s: float, facts: SubjectMeasures) -> list[Firing]:
        """Add the measures of a moment; return the alerts that begin or end with it."""
        firings = []
        for alert in self.alerts:
            if alert.measure not in facts.values:
                continue
            firing = self._update(alert, at_s, facts)
            if firing is not None:
                firings.append(firing)
        return firings

    def active(self) -> list[tuple[Alert, str]]:
        """The alerts that have begun and not ended, with their subjects."""
        return [key for key, state in self._states.items() if state.active]

    def _update(self, alert: Alert, at_s: float, facts: SubjectMeasures) -> Firing | None:
        state = self._states.setdefault((alert, facts.subject), _new_state(alert, self._period_s))
        value = facts.values[alert.measure]
        state.window.add(at_s, value)
        state.short.add(at_s, value)
        state.occupancy.add(at_s, math.nan if facts.is_held is None else float(facts.is_held))
        if state.active:
            recent = state.short.mean()
            if not (_is_over(alert, recent) or self._is_released(alert, state)):
                return None
            state.active = False
            state.window.clear()
            return Firing(alert=alert, subject=facts.subject, at_s=at_s, value=recent, ended=True)
        if (
            not all(_crosses(alert, mean) for mean in state.window.means())
            or at_s - state.last_fired_s < alert.repeat_s
        ):
            return None
        if alert.while_held and not state.occupancy.mean() >= _HELD_SHARE:
            return None
        state.active, state.last_fired_s = True, at_s
        return Firing(alert=alert, subject=facts.subject, at_s=at_s, value=state.window.mean())

    def _is_released(self, alert: Alert, state: _State) -> bool:
        return alert.while_held and state.occupancy.mean() < _HELD_SHARE


def _new_state(alert: Alert, period_s: float) -> _State:
    short_s = min(_CLEAR_S, alert.seconds)
    return _State(
        SlidingWindow(alert.seconds, period_s), SlidingWindow(short_s, period_s), SlidingWindow(alert.seconds, period_s)
    )


def _crosses(alert: Alert, value: float) -> bool:
    """Whether a mean is beyond the limit; an unknown one is not."""
    return value < alert.threshold if alert.below else value > alert.threshold


def _is_over(alert: Alert, value: float) -> bool:
    """Whether the recent mean is on the right side again, by the hysteresis."""
    margin = alert.measure.value.hysteresis
    if alert.below:
        return value > alert.threshold * (1 + margin)
    return value <= alert.threshold * (1 - margin)
