"""An alert from plain phrase: "utilisation < 30 % for 5 min while memory is held"."""

from __future__ import annotations

import re

from gpulab.errors import RunError
from gpulab.watch.alerts.alert import Alert
from gpulab.watch.alerts.measures import Measure
from gpulab.wording import did_you_mean, shorten

EXAMPLES = (
    "idle < 30 % for 5 min while memory is held",
    "waiting for data > 40 %",
    "throttled",
    "memory will run out in 20 min",
    "step time +20 % against history",
)
_TIME_UNITS = {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0, "min": 60.0, "minute": 60.0, "minutes": 60.0,
               "h": 3600.0, "hour": 3600.0, "hours": 3600.0}  # fmt: skip
_WHILE_HELD = re.compile(r"\s+while (?:the )?(?:gpu )?memory is held$")
_FOR = re.compile(r"\s+for\s+([\d.]+)\s*([a-z]+)$")
_HISTORY = re.compile(r"\s+(?:against|than|over) (?:the )?(?:history|usual|earlier runs)$")
_LIMIT = re.compile(r"^(<|>|below|above|over|under|\+|)\s*([\d.]+)\s*(\S*)$")
_BELOW, _ABOVE = ("<", "below", "under"), (">", "above", "over", "+")


def parse_alert(text: str) -> Alert:
    """Return the alert that the words describe. Raises RunError, with examples, if they cannot be read."""
    phrase = re.sub(r"\s+", " ", text.strip().lower().rstrip("."))
    phrase, while_held = _without(_WHILE_HELD, phrase)
    phrase, for_match = _cut(_FOR, phrase)
    phrase, _ = _without(_HISTORY, phrase)
    measure, rest = _measure(phrase, text)
    for_s = None if for_match is None else _time(for_match[1], for_match[2], text)
    return Alert(measure=measure, limit=_limit(measure, rest, text), for_s=for_s, while_held=while_held)


def _measure(phrase: str, text: str) -> tuple[Measure, str]:
    """Return the measure whose phrase the text begins with, and the rest."""
    names = sorted(
        ((name, measure) for measure in Measure for name in measure.value.phrases), key=lambda pair: -len(pair[0])
    )
    for name, measure in names:
        if phrase == name or phrase.startswith((f"{name} ", f"{name}<", f"{name}>", f"{name}+")):
            return measure, phrase[len(name) :].strip()
    labels = ", ".join(measure.label for measure in Measure)
    typed = re.split(r"\s*(?:[<>+]|\b(?:below|above|under|over)\b)", phrase)[0]
    near = did_you_mean(typed, (name for name, _ in names))
    raise _problem(text, f"it begins with none of: {labels}{f'; {near}' if near else ''}")


def _limit(measure: Measure, rest: str, text: str) -> float | None:
    kind = measure.value
    if not rest:
        return None
    if kind.is_flag:
        raise _problem(text, f'"{measure.label}" is followed by {rest!r}, but it has no limit')
    match = _LIMIT.match(rest)
    if match is None:
        raise _problem(text, f"{rest!r} is not a limit")
    sign, number, unit = match.groups()
    if sign in (_ABOVE if kind.below else _BELOW):
        raise _problem(text, f'"{measure.label}" is watched {"below" if kind.below else "above"} its limit only')
    factor = {name.lower(): factor for name, factor in kind.units}.get(unit)
    if factor is None and measure is Measure.MEMORY_TIME_LEFT:
        factor = _TIME_UNITS.get(unit)
    if factor is None:
        units = " or ".join(name for name, _ in kind.units)
        raise _problem(text, f"the unit {unit!r} is not {units}" if unit else f"the unit {units} is missing")
    return _number(number, text) * factor


def _time(number: str, unit: str, text: str) -> float:
    if unit not in _TIME_UNITS:
        raise _problem(text, f"the unit of time {unit!r} is not s, min or h")
    return _number(number, text) * _TIME_UNITS[unit]


def _number(number: str, text: str) -> float:
    try:
        return float(number)
    except ValueError:
        raise _problem(text, f"{number!r} is not a number") from None


def _without(pattern: re.Pattern[str], phrase: str) -> tuple[str, bool]:
    rest, match = _cut(pattern, phrase)
    return rest, match is not None


def _cut(pattern: re.Pattern[str], phrase: str) -> tuple[str, re.Match[str] | None]:
    match = pattern.search(phrase)
    return (phrase[: match.start()], match) if match else (phrase, None)


def _problem(text: str, why: str) -> RunError:
    return RunError(
        f"The alert {shorten(text, 120)!r} cannot be read.", why=why, fix=f"write it like: {'; '.join(EXAMPLES)}"
    )
