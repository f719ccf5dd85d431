"""The ranks of a job on one time axis: a lane for each rank, and the diagnosed rank in detail below the lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gpulab.analysis.ranks.clock_alignment import RankClock, clock_alignment
from gpulab.analysis.ranks.matching import MatchedCollectives, match_collectives
from gpulab.analysis.ranks.waits import waits_of
from gpulab.analysis.steps.detection import Steps, find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.intervals import Ints
from gpulab.rules.engine.finding import Diagnosis
from gpulab.run import Run
from gpulab.views.report.job.rank_choice import choice_sentence, most_telling_ranks, rank_label
from gpulab.views.report.job.rank_lanes import alignment_sentence
from gpulab.views.sheet.lanes import middle_window
from gpulab.views.timeline.scene.alignment import alignment_shift_ns
from gpulab.views.timeline.scene.elements import NameTable
from gpulab.views.timeline.scene.header import MAX_HIGH_LANES
from gpulab.views.timeline.scene.placed_run import PlacedRun, place_run
from gpulab.views.timeline.scene.scene import Scene, scene_of
from gpulab.wording import clean, count, number_ranges

MAX_LANES = 64


class _Lane(NamedTuple):
    """One rank of the scene."""

    run: Run
    number: str  # of the rank
    steps: Steps
    ledger: Ledger | None
    collective_events: Ints
    clock: RankClock | None  # against that of the diagnosed rank; None: it cannot be aligned


def build_rank_scene(diagnosis: Diagnosis, runs: Sequence[Run]) -> Scene:
    """Prepare the ranks of a job for the timeline, in ns on the clock of the diagnosed rank.

    Clocks are aligned by the collectives; a rank whose clock cannot be aligned is placed by its steps. Up to 16 lanes
    show their collectives, too. Of more than 64 ranks, those that others wait for most, and those that wait
    most, have lanes.
    """
    numbers = {id(run): rank_label(run, index) for index, run in enumerate(runs)}
    ordered = [diagnosis.run, *(run for run in runs if run is not diagnosis.run)]
    matched = match_collectives(ordered)
    chosen = _chosen(matched, len(ordered))
    clocks = None if matched is None else clock_alignment(matched).clocks
    lanes = [_lane(ordered, index, numbers[id(ordered[index])], matched, clocks) for index in chosen]
    main = f"rank {numbers[id(diagnosis.run)]}"
    names = NameTable()
    sides = [place_run(0, diagnosis.run, diagnosis.steps, diagnosis.ledger, names, 0, 0, label=main)]
    for lane in lanes:
        first_row = sum(side.row_count for side in sides)
        sides.append(_placed(len(sides), lane, diagnosis.steps, names, first_row))
    title = f"{count(len(ordered), 'rank')}, {main} in detail"
    return scene_of(diagnosis, sides, names, title=title, placement=tuple(_placement(lanes, chosen, len(ordered))))


def _chosen(matched: MatchedCollectives | None, ranks: int) -> tuple[int, ...]:
    """Return the indices of the ranks that have a lane, besides the diagnosed one, which has index 0."""
    if ranks <= MAX_LANES:
        return tuple(range(1, ranks))
    waits = None if matched is None else waits_of(matched)
    ranks_with_lanes = tuple(range(MAX_LANES)) if waits is None else most_telling_ranks(waits, MAX_LANES)
    return tuple(index for index in ranks_with_lanes if index)


def _lane(
    runs: Sequence[Run],
    index: int,
    number: str,
    matched: MatchedCollectives | None,
    clocks: Sequence[RankClock] | None,
) -> _Lane:
    run = runs[index]
    if matched is None or clocks is None:
        steps = find_steps(run)
        return _Lane(run, number, steps, build_ledger(run, steps), np.empty(0, np.int64), None)
    rank, clock = matched.ranks[index], clocks[index]
    aligned = None if clock.offset_ns is None else clock
    events = rank.collectives.event if len(runs) - 1 <= MAX_HIGH_LANES else np.empty(0, np.int64)
    return _Lane(run, number, rank.steps, rank.ledger, events, aligned)


def _placed(number: int, lane: _Lane, main_steps: Steps, names: NameTable, first_row: int) -> PlacedRun:
    return place_run(
        number,
        lane.run,
        lane.steps,
        lane.ledger,
        names,
        first_row,
        _shift_ns(lane, main_steps),
        label=f"rank {lane.number}",
        lane_events=lane.collective_events,
    )


def _shift_ns(lane: _Lane, main_steps: Steps) -> int:
    """Return the time to add to that of the rank; of a clock that drifts, in the middle of the initial view."""
    if lane.clock is None or lane.clock.offset_ns is None:
        return alignment_shift_ns(main_steps, lane.steps)
    view = middle_window(main_steps)
    at_ns = (view.start_ns + view.end_ns) / 2 if view is not None else lane.clock.middle_ns + lane.clock.offset_ns
    at_rank_ns = round(at_ns - lane.clock.offset_ns)
    return int(lane.clock.aligned_ns(np.array([at_rank_ns]))[0]) - at_rank_ns


def _placement(lanes: Sequence[_Lane], chosen: Sequence[int], ranks: int) -> list[str]:
    """Say how the lanes were placed, and which ranks have one."""
    sentences = []
    clocks = [lane.clock for lane in lanes if lane.clock is not None]
    if clocks:
        sentences.append(alignment_sentence(clocks))
    by_steps = [lane for lane in lanes if lane.clock is None]
    if by_steps:
        numbers = sorted(int(lane.number) for lane in by_steps)
        sentences.append(
            f"The clocks of {count(len(by_steps), 'rank')} ({number_ranges(numbers)}) cannot be aligned: too few "
            "collectives are shared. Their first visible steps start together with those of the diagnosed rank."
        )
    if len(chosen) + 1 < ranks:
        sentences.append(choice_sentence((0, *chosen), ranks).strip())
    return [clean(sentence) for sentence in sentences]
