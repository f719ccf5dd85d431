"""What a file of a newer minor schema has beyond this one: passed over, and said to be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpulab.run import FIELDS, Gap, Run
from gpulab.store.format import UPGRADE, Schema
from gpulab.tables import EVENTS, SIDE_TABLES, Kind, MarkKind, StallKind

_LISTED, _LONGEST = 10, 100  # names in a note, and their letters


def of_known_kinds(run: Run) -> tuple[Run, list[str]]:
    """The run without rows of kinds that are not known, and what was passed over."""
    passed_over = []
    for field, kinds in (("event_rows", Kind), ("mark_rows", MarkKind), ("stall_rows", StallKind)):
        rows = getattr(run, field)
        known = np.isin(rows["kind"], [int(kind) for kind in kinds])
        if not known.all():
            passed_over.append(f"{rows.table.name}: {int((~known).sum())} rows of a kind that is not known")
            changed: dict[str, Any] = {field: rows.where(known)}
            run = replace(run, **changed, **(_beside(run, known) if rows.table is EVENTS else {}))
    return run, passed_over


def noted(run: Run, passed_over: Sequence[str], schema: Schema) -> Run:
    """The run with a note of what was passed over, if anything was."""
    if not passed_over:
        return run
    more = [f"and {len(passed_over) - _LISTED} more"] if len(passed_over) > _LISTED else []
    what = ", ".join([*(name[:_LONGEST] for name in passed_over[:_LISTED]), *more])
    note = Gap(
        what=f"parts of the file: {what}",
        why=f"this gpulab does not know them (the file is of schema {schema[0]}.{schema[1]})",
        fix=UPGRADE,
    )
    return replace(run, recording=replace(run.recording, left_out=(*run.recording.left_out, note)))


def _beside(run: Run, kept: NDArray[np.bool_]) -> dict[str, Any]:
    """The side tables, whose rows follow their events."""
    now = np.cumsum(kept, dtype=np.int32) - 1
    sides: dict[str, Any] = {}
    for field, table in FIELDS.items():
        if table in SIDE_TABLES:
            rows = getattr(run, field)
            rows = rows.where(kept[rows["event"]])
            sides[field] = table.rows({**rows.columns, "event": now[rows["event"]]})
    return sides
