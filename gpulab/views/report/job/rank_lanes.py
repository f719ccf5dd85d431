"""A few steps of all ranks on one time axis: a lane for each rank, with its clock aligned to that of the first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpulab.analysis.ranks.clock_alignment import RankClock, clock_alignment
from gpulab.analysis.ranks.stragglers import Rank
from gpulab.analysis.ranks.waits import JobWaits
from gpulab.analysis.steps.ledger import Ledger
from gpulab.intervals import Spans, no_spans, union
from gpulab.views.report.job.rank_choice import choice_sentence, most_telling_ranks, rank_label
from gpulab.views.sheet.lanes import Lane, Window, clip_to_window, middle_window
from gpulab.views.sheet.sheet import Timeline
from gpulab.views.sheet.step_picture import axis_ticks, lane_legend, lanes_svg
from gpulab.wording import count, duration

_LANE_PX, _LARGE_LANE_PX = 18, 26
_FEW_LANES = 8
_MAX_BYTES = 120_000


def rank_lanes(waits: JobWaits) -> Timeline | None:
    """Return a picture of the ledger of each rank over a few steps; None if not two ranks' clocks can be aligned.

    Of more than 16 ranks, it shows those that others wait for most, and those that wait most.
    """
    ranks, clocks = waits.matched.ranks, clock_alignment(waits.matched).clocks
    chosen = [index for index in most_telling_ranks(waits) if clocks[index].offset_ns is not None]
    time_window = middle_window(ranks[0].steps)
    if len(chosen) < 2 or time_window is None:
        return None
    lanes = tuple(_lane(ranks[index], index, clocks[index], time_window) for index in chosen)
    starts = [int(ranks[0].steps.start_ns[step]) for step in time_window.steps]
    alt = _alt(waits, [clocks[index] for index in chosen], tuple(chosen), time_window)
    return picture_of_lanes(lanes, time_window, starts, ranks[chosen[0]].ledger, alt)


def picture_of_lanes(
    lanes: tuple[Lane, ...], time_window: Window, step_starts: Sequence[int], ledger: Ledger, alt: str
) -> Timeline:
    """Return a picture of ledgers, with a line where each step starts, and the legend of this ledger's parts."""
    lane_px = _LARGE_LANE_PX if len(lanes) <= _FEW_LANES else _LANE_PX
    return Timeline(
        svg=lanes_svg(lanes, time_window, step_starts, no_spans(), max_bytes=_MAX_BYTES, lane_px=lane_px),
        lane_names=tuple(lane.name for lane in lanes),
        lane_px=lane_px,
        steps=(),
        ticks=axis_ticks(time_window),
        legend=lane_legend(ledger, lanes, time_window),
        alt=alt,
    )


def _lane(rank: Rank, index: int, clock: RankClock, time_window: Window) -> Lane:
    """Return the ledger of a rank on the clock of the first one."""
    parts = [(part.key, rank.ledger.spans[part.key]) for part in rank.ledger.parts]
    shifted = [(key, clip_to_window(_on_first_clock(spans, clock), time_window)) for key, spans in parts]
    return Lane(f"rank {rank_label(rank.run, index)}", tuple(each for each in shifted if len(each[1].start_ns)))


def _on_first_clock(spans: Spans, clock: RankClock) -> Spans:
    return union(clock.aligned_ns(spans.start_ns), clock.aligned_ns(spans.end_ns))


def alignment_sentence(clocks: Sequence[RankClock]) -> str:
    """Say by what the clocks of some ranks are aligned, and how well."""
    error_ns = float(np.max([clock.error_ns or 0.0 for clock in clocks]))
    return f"The clocks are aligned by the ends of the collectives, within {duration(error_ns)} in nine of ten cases."


def _alt(waits: JobWaits, clocks: list[RankClock], chosen: tuple[int, ...], time_window: Window) -> str:
    first, last = time_window.steps[0] + 1, time_window.steps[-1] + 1
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    unaligned = len(waits.matched.ranks) - sum(
        clock.offset_ns is not None for clock in clock_alignment(waits.matched).clocks
    )
    absent = f" The clocks of {count(unaligned, 'rank')} cannot be aligned." if unaligned else ""
    return (
        f"{steps[0].upper()}{steps[1:]} of {count(len(chosen), 'rank')} on one time axis, by their ledgers. "
        f"{alignment_sentence(clocks)}{choice_sentence(chosen, len(waits.matched.ranks))}{absent}"
    )
