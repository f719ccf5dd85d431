"""Conditions between the parts of a run, checked early so that no analysis fails on them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gpulab.run import TABLE_FIELDS, Run
from gpulab.tables import SIDE_TABLES

_MAX_TIME_NS = 2**61  # 73 years; the sum of a start and a duration fits in 64 bits
_MAX_TOTAL_NS = 2**62
_MAX_UNIX_NS = 2**62  # the year 2116


def find_inconsistency(run: Run) -> str | None:
    """The first violated condition; None if all hold."""
    return next((problem for check in (_references, _side_tables, _times) for problem in check(run)), None)


def _references(run: Run) -> Iterator[str]:
    """An index refers to an existing entry, or is -1."""
    if not 0 <= run.main_thread < max(1, len(run.threads)):
        yield f"the main thread is number {run.main_thread} of {len(run.threads)}"
    for rows, column, listed in (
        (run.event_rows, "thread", len(run.threads)),
        (run.memory_rows, "thread", len(run.threads)),
        (run.mark_rows, "loader", len(run.loaders)),
        (run.gpu_rows, "device", len(run.machine.gpus)),
    ):
        lowest, highest = rows[column].min(initial=-1), rows[column].max(initial=-1)
        if lowest < -1 or highest >= listed:
            index = lowest if lowest < -1 else highest
            yield f"a row of {rows.table.name} refers to {column} {index}, but there are {listed}"


def _side_tables(run: Run) -> Iterator[str]:
    """Rows of a side table are in the order of their events, at most one per event."""
    for field, table in TABLE_FIELDS.items():
        if table in SIDE_TABLES:
            event = getattr(run, field)["event"]
            if len(event) and not 0 <= event.min() <= event.max() < len(run.event_rows):
                yield f"a row of {table.name} refers to an event that does not exist"
            elif not (event[1:] > event[:-1]).all():
                yield f"the rows of {table.name} are not in the order of their events, or not unique"


def _times(run: Run) -> Iterator[str]:
    """Times fit in 64 bits, and so do their sums; durations are not negative."""
    spans = (*run.recording.windows_ns, *run.recording.pauses_ns, (0, run.span_ns))
    in_range = all(abs(time) <= _MAX_TIME_NS for span in spans for time in span)
    if not in_range or run.span_ns < 0 or abs(run.began_ns or 0) > _MAX_UNIX_NS:
        yield "a time of the run is out of range"
    for field, table in TABLE_FIELDS.items():
        rows = getattr(run, field)
        for column in table.columns:
            if column.name.endswith("_ns"):
                times = rows[column.name]
                minimum = 0 if column.name == "dur_ns" else -_MAX_TIME_NS
                if times.min(initial=0) < minimum or times.max(initial=0) > _MAX_TIME_NS:
                    yield f"a {column.name} of {table.name} is out of range or negative"
                if column.name == "end_ns" and (times < rows["start_ns"]).any():
                    yield f"a row of {table.name} ends before it starts"
                if column.name == "dur_ns" and times.sum(dtype=np.float64) > _MAX_TOTAL_NS:
                    yield f"the durations of {table.name} add up to more than 146 years"
