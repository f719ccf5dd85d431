"""A window of the ranks of a job as a static picture: a lane with the ledger of each rank."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from gpulab.intervals import Spans, no_spans
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window
from gpulab.views.sheet.sheet import Timeline
from gpulab.views.sheet.step_picture import axis_ticks, lane_legend, lanes_svg
from gpulab.views.timeline.scene.placed_run import PlacedRun
from gpulab.wording import count, duration

_LANE_PX, _LARGE_LANE_PX = 12, 22
_MANY_LANES = 12
_MAX_STEP_LINES = 60  # with more steps their lines would fill the picture
_MAX_BYTES = 120_000


def rank_lanes_picture(sides: Sequence[PlacedRun], start_ns: int, end_ns: int) -> Timeline:
    """Return the picture of a window of the scene. Only for sides of which at least one has a ledger."""
    window = Window(start_ns, max(end_ns, start_ns + 1), ())
    ranks = sorted((side for side in sides if side.ledger is not None), key=_order)
    lanes = tuple(_lane(side, window) for side in ranks)
    lane_px = _LARGE_LANE_PX if len(lanes) <= _MANY_LANES else _LANE_PX
    starts = sides[0].steps.start_ns
    starts = starts[(starts >= start_ns) & (starts < end_ns)]
    lines = starts.tolist() if len(starts) <= _MAX_STEP_LINES else ()
    accounts = sides[0].ledger or ranks[0].ledger
    assert accounts is not None
    return Timeline(
        svg=lanes_svg(lanes, window, lines, no_spans(), max_bytes=_MAX_BYTES, lane_px=lane_px),
        lane_names=tuple(lane.name for lane in lanes),
        lane_px=lane_px,
        steps=(),
        ticks=axis_ticks(window),
        legend=lane_legend(accounts, lanes, window),
        alt=f"{duration(end_ns - start_ns)} of {count(len(lanes), 'rank')} on one time axis, by their ledgers.",
    )


def _order(side: PlacedRun) -> tuple[int, ...]:
    """Return the numbers in the name of a rank, so that rank 10 follows rank 9."""
    return tuple(map(int, re.findall(r"\d+", side.name)))


def _lane(side: PlacedRun, window: Window) -> Lane:
    parts = ((key, _shifted(covered.spans, side.shift_ns)) for key, covered in side.ledger_coverage.items())
    clipped = [(key, clip_to_window(spans, window)) for key, spans in parts]
    return Lane(side.name, tuple(each for each in clipped if len(each[1].start_ns)))


def _shifted(spans: Spans, shift_ns: int) -> Spans:
    return Spans(*(np.asarray(edges) + shift_ns for edges in spans))
