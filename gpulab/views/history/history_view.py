"""The history of the GPUs of a time: use, cost, patterns, gaps and events."""

from __future__ import annotations

import re
import time
from datetime import datetime
from pathlib import Path

from gpulab.errors import RunError
from gpulab.hardware.prices import Prices, user_prices
from gpulab.views.history.device_log import event_section, gap_section
from gpulab.views.history.heat_map import heat_map_section
from gpulab.views.history.usage_tables import gpu_hours_section
from gpulab.views.sheet.sheet import Answer, Block, Line, Section, Sheet
from gpulab.views.sheet.view import View
from gpulab.watch.history import GpuHistory
from gpulab.watch.patterns.catalogue import find_patterns
from gpulab.watch.patterns.frame import HistoryFrame
from gpulab.watch.patterns.pattern import Pattern
from gpulab.watch.schema import DAY_S, HOUR_S
from gpulab.watch.usage import Usage, device_usage, job_usage, total_usage, user_usage
from gpulab.wording import count, duration, money, number, percent, sentence

_SPAN = re.compile(r"^(\d+(?:\.\d+)?)\s*(h|d|w|m)?$")
_UNITS = {"h": HOUR_S, "d": DAY_S, "w": 7 * DAY_S, "m": 30 * DAY_S}
_MONTH_S = 31 * DAY_S
_MAX_PATTERNS = 8


def history(span: str = "7d", *, path: Path | None = None, prices: Prices | None = None) -> View:
    """Return the last days as a view: `span` is "24h", "7d", "2w" or "1m" (a month is the most).

    Raises StoreError if there is no history, and RunError if the span cannot be read or nothing was recorded in it.
    """
    span_s = parse_span_s(span)
    prices = prices or user_prices()
    with GpuHistory(path) as database:
        until_s = time.time()
        stored = database.span()
        if stored is None or stored[1] < until_s - span_s:
            raise _nothing_recorded(stored, span)
        frame = HistoryFrame.load(database, until_s - span_s, until_s)
        gaps = database.gaps(until_s - span_s, until_s)
    labels = {gpu.id: frame.label(gpu) for gpu in frame.gpus}
    gpus = device_usage(frame, prices)
    sections = (
        heat_map_section(frame),
        gpu_hours_section(gpus, user_usage(frame, prices), job_usage(frame, prices), prices) if gpus else None,
        gap_section(gaps, labels, span_s),
        event_section(frame.events, labels, span_s),
    )
    blocks: tuple[Block, ...] = (
        Answer(claim=_headline(frame, gpus, prices), leading=True),
        Line(_provenance(frame, stored), soft=True),
        *(_patterns(find_patterns(frame)) if frame.gpus else ()),
        *(section for section in sections if section is not None),
    )
    return View(Sheet(f"gpulab: GPUs, last {span}", blocks))


def parse_span_s(text: str) -> float:
    """Return "7d" in seconds. Raises RunError if it is no time, or more than a month."""
    match = _SPAN.match(text.strip().lower())
    seconds = float(match[1]) * _UNITS[match[2] or "d"] if match else 0.0
    if not 0 < seconds <= _MONTH_S:
        raise RunError(
            f"The time {text!r} cannot be looked back on.",
            why="it is not a number of hours, days or weeks, or it is more than the month for which minutes are stored",
            fix='write "24h", "7d", "2w" or "1m"',
        )
    return seconds


def _headline(frame: HistoryFrame, gpus: tuple[Usage, ...], prices: Prices) -> str:
    if not gpus:
        return "No GPU was found; only the host was recorded."
    every = total_usage(gpus, "all")
    if every.held_h == 0:
        return f"No process was on {count(len(gpus), 'GPU')} in {number(every.measured_h)} measured GPU-hours."
    idle = f"{number(every.idle_h)} GPU-hours were held without any work"
    cost = "" if not every.idle_cost else f", about {money(every.idle_cost, prices.currency)}"
    return (
        f"{count(len(gpus), 'GPU')} {'was' if len(gpus) == 1 else 'were'} held for {number(every.held_h)} of "
        f"{number(every.measured_h)} GPU-hours and used for {percent(every.used_frac)} of that; {idle}{cost}."
    )


def _provenance(frame: HistoryFrame, stored: tuple[int, int] | None) -> str:
    assert stored is not None
    models = sorted({gpu.name for gpu in frame.gpus})
    hosts = sorted({gpu.host for gpu in frame.gpus}) or ["this host"]
    begin = datetime.fromtimestamp(max(frame.from_s, stored[0]))
    return (
        f"Recorded by gpulab watch on {', '.join(hosts)} since {begin:%Y-%m-%d %H:%M}: {', '.join(models) or 'no GPU'}."
    )


def _patterns(patterns: tuple[Pattern, ...]) -> tuple[Block, ...]:
    if not patterns:
        return (Section("Patterns", (Line("No pattern of idle hours, dips, clocks, heat or errors was found."),)),)
    answers = tuple(
        Answer(
            claim=sentence(pattern.claim),
            leading=False,
            evidence=tuple(sentence(text) for text in pattern.evidence),
            advice=sentence(pattern.advice),
            gist="" if pattern.wasted_gpu_h is None else f"{duration(pattern.wasted_gpu_h * 3.6e12)} of a GPU",
        )
        for pattern in patterns[:_MAX_PATTERNS]
    )
    more = len(patterns) - len(answers)
    note = (Line(f"{more} more with less effect."),) if more else ()
    return (Section(f"Patterns: {len(patterns)}", (*answers, *note)),)


def _nothing_recorded(stored: tuple[int, int] | None, span: str) -> RunError:
    last = (
        "nothing is recorded yet" if stored is None else f"the last reading is of {datetime.fromtimestamp(stored[1])}"
    )
    return RunError(
        f"There are no readings of the last {span}.", why=last, fix="start gpulab watch, or look further back"
    )
