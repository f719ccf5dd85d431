"""Gaps and events of a history, as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from gpulab.views.sheet.sheet import Row, Section, TableBlock
from gpulab.watch.history import HistoryEvent, HistoryGap
from gpulab.watch.schema import DAY_S
from gpulab.wording import count, duration

_MAX_ROWS = 30
_ROUTINE = ("process",)  # events that are shown as a number only


def gap_section(gaps: Sequence[HistoryGap], labels: Mapping[int, str], span_s: float) -> Section | None:
    """Return the time without readings by cause, longest first; None if there is none."""
    sums: defaultdict[tuple[str, str], list[HistoryGap]] = defaultdict(list)
    for gap in gaps:
        sums[_label(gap.device, labels), gap.why].append(gap)
    if not sums:
        return None
    order = sorted(sums.items(), key=lambda item: -_length_s(item[1]))
    rows = [
        Row((label, why, str(len(group)), duration(_length_s(group) * 1e9), _time(group[-1].from_s, span_s)))
        for (label, why), group in order[:_MAX_ROWS]
    ]
    header = ("device", "reason", "times", "together", "last")
    table = TableBlock(header=header, rows=tuple(rows), text_columns=2)
    return Section(f"Not measured: {count(len(gaps), 'gap')}", (table,), folded=True)


def event_section(events: Sequence[HistoryEvent], labels: Mapping[int, str], span_s: float) -> Section | None:
    """Return what happened to the devices, the latest first; None if nothing did."""
    notable = [event for event in events if event.kind not in _ROUTINE]
    if not notable:
        return None
    rows = [
        Row((_time(event.at_s, span_s), _label(event.device, labels), event.kind, event.text))
        for event in reversed(notable[-_MAX_ROWS:])
    ]
    caption = "" if len(notable) <= _MAX_ROWS else f"The last {_MAX_ROWS} of {len(notable)}."
    table = TableBlock(header=("time", "device", "kind", "event"), rows=tuple(rows), text_columns=4, caption=caption)
    return Section(f"Events: {len(notable)}", (table,), folded=True)


def _length_s(gaps: Sequence[HistoryGap]) -> float:
    return float(sum(gap.until_s - gap.from_s for gap in gaps))


def _label(device: int | None, labels: Mapping[int, str]) -> str:
    return "all" if device is None else labels.get(device, "host")


def _time(at_s: float, span_s: float) -> str:
    moment = datetime.fromtimestamp(at_s)
    return f"{moment:%H:%M:%S}" if span_s <= DAY_S else f"{moment:%a %d %b %H:%M}"
