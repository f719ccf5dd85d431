"""What must hold between the parts of a run, so that no analysis trips over it far from here."""

from __future__ import annotations

from collections.abc import Iterator

from gpulab.run import FIELDS, Run
from gpulab.tables import SIDE_TABLES

_FARTHEST_NS = 2**62  # so that a start and a duration add up within 64 bits
_TIMES = ("start_ns", "end_ns", "at_ns", "dur_ns")


def fault(run: Run) -> str | None:
    """The first thing that does not hold; None if all does."""
    return next((wrong for check in (_references, _sides, _times) for wrong in check(run)), None)


def _references(run: Run) -> Iterator[str]:
    """An index points at something that is listed, or is -1."""
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
            wrong = lowest if lowest < -1 else highest
            yield f"a row of {rows.table.name} refers to {column} {wrong}, and {listed} are listed"


def _sides(run: Run) -> Iterator[str]:
    """Rows of a side table stand in the order of their events, one for an event at most."""
    for field, table in FIELDS.items():
        if table in SIDE_TABLES:
            event = getattr(run, field)["event"]
            if len(event) and not 0 <= event.min() <= event.max() < len(run.event_rows):
                yield f"a row of {table.name} refers to an event that is not there"
            elif not (event[1:] > event[:-1]).all():
                yield f"the rows of {table.name} are not in the order of their events, one for each at most"


def _times(run: Run) -> Iterator[str]:
    """Times are within 64 bits even when they are added up; durations are not negative."""
    spans = (*run.recording.windows_ns, *run.recording.pauses_ns, (run.span_ns, run.began_ns or 0))
    if any(abs(time) > _FARTHEST_NS for span in spans for time in span) or run.span_ns < 0:
        yield "a time of the run is beyond all clocks"
    for field, table in FIELDS.items():
        for column in table.columns:
            if column.name in _TIMES:
                times = getattr(run, field)[column.name]
                least = 0 if column.name == "dur_ns" else -_FARTHEST_NS
                if times.min(initial=0) < least or times.max(initial=0) > _FARTHEST_NS:
                    yield f"a {column.name} of {table.name} is beyond all clocks, or negative"
