"""A window of the ranks of a job as a static picture: a lane with the ledger of each rank."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpulab.intervals import Spans
from gpulab.views.report.job.rank_lanes import picture_of_lanes
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window
from gpulab.views.sheet.sheet import Timeline
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.wording import count, duration

_MAX_STEP_LINES = 60  # with more steps their lines would fill the picture


def rank_lanes_picture(sides: Sequence[PlacedRun], start_ns: int, end_ns: int) -> Timeline | None:
    """Return the picture of a window of the scene; None if no rank has a ledger."""
    ranks = sorted((side for side in sides if side.ledger is not None), key=_order)
    if not ranks or ranks[0].ledger is None:
        return None
    window = Window(start_ns, max(end_ns, start_ns + 1), ())
    lanes = tuple(_lane(side, window) for side in ranks)
    starts = sides[0].steps.start_ns
    starts = starts[(starts >= start_ns) & (starts < end_ns)]
    lines = starts.tolist() if len(starts) <= _MAX_STEP_LINES else ()
    alt = f"{duration(end_ns - start_ns)} of {count(len(lanes), 'rank')} on one time axis, by their ledgers."
    return picture_of_lanes(lanes, window, lines, ranks[0].ledger, alt)


def _order(side: PlacedRun) -> int:
    return side.number if side.run.rank is None else side.run.rank


def _lane(side: PlacedRun, window: Window) -> Lane:
    parts = ((key, _shifted(covered.spans, side.shift_ns)) for key, covered in side.ledger_coverage.items())
    clipped = [(key, clip_to_window(spans, window)) for key, spans in parts]
    return Lane(side.name, tuple(each for each in clipped if len(each[1].start_ns)))


def _shifted(spans: Spans, shift_ns: int) -> Spans:
    return Spans(*(np.asarray(edges) + shift_ns for edges in spans))
