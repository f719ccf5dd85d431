"""A table of what happened to the GPUs during a run, and whether steps were longer then."""

from __future__ import annotations

from gpulab.analysis.machine.gpu_events import GpuEvent, gpu_events
from gpulab.rules import Diagnosis
from gpulab.run_facts import ALERTS
from gpulab.views.sheet.sheet import Line, Row, Section, TableBlock
from gpulab.wording import UNKNOWN, clean, count, duration, ratio

_MAX_ROWS, _MAX_ALERTS = 12, 50


def gpu_event_section(diagnosis: Diagnosis) -> Section | None:
    """Return the table; None if nothing happened, or without GPU sensors."""
    events = gpu_events(diagnosis.run, diagnosis.steps)
    if not events:
        return None
    several = len(diagnosis.run.machine.gpus) > 1
    rows = tuple(_row(event, several=several) for event in events[:_MAX_ROWS])
    caption = (
        "Steps that lie within these times, beside the others (medians). A power cap on a busy GPU is normal."
        if any(event.during_ns is not None for event in events)
        else "A power cap on a busy GPU is normal."
    )
    header = ("event", "first", "times", "together", "step then", "else", "ratio")
    return Section(
        f"GPU events: {count(len(events), 'kind')}",
        (TableBlock(header=header, rows=rows, caption=caption),),
        folded=True,
    )


def alert_section(diagnosis: Diagnosis) -> Section | None:
    """Return the alerts of the monitor that recorded the run; None if there were none."""
    lines = diagnosis.run.facts.get(ALERTS, "").splitlines()
    if not lines:
        return None
    return Section(f"Alerts: {len(lines)}", tuple(Line(clean(line)) for line in lines[-_MAX_ALERTS:]), folded=True)


def _row(event: GpuEvent, *, several: bool) -> Row:
    name = f"GPU {event.device}: " if several else ""
    times = (UNKNOWN, UNKNOWN, "")
    if event.during_ns is not None and event.outside_ns is not None:
        times = (duration(event.during_ns), duration(event.outside_ns), ratio(event.during_ns / event.outside_ns))
    label = f"throttled by {event.label}" if event.kind == "throttling" else event.label
    begin = duration(int(event.spans.start_ns[0]))
    return Row((f"{name}{label}", begin, f"{len(event.spans.start_ns)}", duration(event.spans.total_ns), *times))
