"""Some of the events of a run, with what other tables say of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from gpulab.analysis.steps.detection import Mask
from gpulab.rows import Rows
from gpulab.run import TRACE_TABLES, Run
from gpulab.tables import SIDE_TABLES


def with_events(run: Run, mask: Mask) -> Run:
    """Return the run with these events only."""
    selected = replace(run, event_rows=run.event_rows.select(np.flatnonzero(mask)))
    return with_side_rows(selected, side_rows(run, mask))


def with_side_rows(run: Run, tables: Mapping[str, Rows]) -> Run:
    """Return the run with these side tables."""
    fields: dict[str, Any] = {**tables}
    return replace(run, **fields)


def side_rows(run: Run, mask: Mask) -> dict[str, Rows]:
    """Return the rows of the side tables for these events, which refer to the remaining events."""
    new_row = np.cumsum(mask) - 1
    selected = {}
    for name, table in TRACE_TABLES.items():
        if table not in SIDE_TABLES:
            continue
        rows: Rows = getattr(run, name)
        rows_left = rows.select(np.flatnonzero(mask[rows["event"]]))
        selected[name] = table.rows({**rows_left.columns, "event": new_row[rows_left["event"]]})
    return selected
