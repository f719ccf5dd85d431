"""Parts of a file with a newer minor schema version: ignored and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.run import TABLE_FIELDS, Gap, Run
from gpulab.store.format import UPGRADE, Schema
from gpulab.tables import EVENTS, SIDE_TABLES, EventKind, MarkKind, StallKind

_MAX_NAMES, _MAX_NAME_LENGTH = 10, 100  # in a gap: number of names, and characters of each


def drop_unknown_kinds(run: Run) -> tuple[Run, list[str]]:
    """Drop rows of unknown kinds; returns the run and a description of these rows."""
    ignored = []
    for field, kinds in (("event_rows", EventKind), ("mark_rows", MarkKind), ("stall_rows", StallKind)):
        rows = getattr(run, field)
        is_known = np.isin(rows["kind"], [int(kind) for kind in kinds])
        if not is_known.all():
            ignored.append(f"{rows.table.name}: {int((~is_known).sum())} rows of an unknown kind")
            changed: dict[str, Any] = {field: rows.select(is_known)}
            run = replace(run, **changed, **(_side_tables(run, is_known) if rows.table is EVENTS else {}))
    return run, ignored


def with_ignored_parts(run: Run, ignored: Sequence[str], schema: Schema) -> Run:
    """The run with a gap that lists the ignored parts, if there are any."""
    if not ignored:
        return run
    more = [f"and {len(ignored) - _MAX_NAMES} more"] if len(ignored) > _MAX_NAMES else []
    parts = ", ".join([*(name[:_MAX_NAME_LENGTH] for name in ignored[:_MAX_NAMES]), *more])
    gap = Gap(
        what=f"parts of the file: {parts}",
        why=f"this version of gpulab does not know them (the file has schema {schema[0]}.{schema[1]})",
        fix=UPGRADE,
    )
    return replace(run, recording=replace(run.recording, left_out=(*run.recording.left_out, gap)))


def _side_tables(run: Run, mask: NDArray[np.bool_]) -> dict[str, Any]:
    """The side tables of the events in the mask, with new event numbers."""
    new_index = np.cumsum(mask, dtype=np.int32) - 1
    sides: dict[str, Any] = {}
    for field, table in TABLE_FIELDS.items():
        if table in SIDE_TABLES:
            rows = getattr(run, field)
            rows = rows.select(mask[rows["event"]])
            sides[field] = table.rows({**rows.columns, "event": new_index[rows["event"]]})
    return sides
