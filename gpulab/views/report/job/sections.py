"""The sections of a report that are about a job as a whole."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpulab.analysis.ranks.bandwidth import bandwidths
from gpulab.analysis.ranks.collectives import collectives
from gpulab.analysis.ranks.waits import JobWaits, job_waits
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import Ledger, build_ledger
from gpulab.run import Run
from gpulab.views.report.job.bandwidth_table import bandwidth_blocks
from gpulab.views.report.job.job_ledger import job_ledger
from gpulab.views.report.job.rank_lanes import rank_lanes
from gpulab.views.report.job.skew_map import skew_caption, skew_map
from gpulab.views.report.job.wait_matrix import group_lines, wait_matrix
from gpulab.views.report.rank_table import rank_table
from gpulab.views.sheet.sheet import Block, Line, Section
from gpulab.wording import percent

_MIN_WAIT_FRAC = 0.01  # of a step, on the rank that waits most: shorter waits need no picture


def job_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """Return the sections about the ranks of a job: table, waits, skew, ledger and bandwidths; () for a single run."""
    table = rank_table(runs)
    if table is None:
        return ()
    with_ledger = [(run, ledger) for run in runs if (ledger := build_ledger(run, find_steps(run))) is not None]
    waits = job_waits(runs)
    sections = [Section("Ranks of the job", (table,))]
    if waits is not None:
        sections += _wait_sections(waits)
    if ledger_blocks := job_ledger(with_ledger, waits):
        sections.append(Section("Where the step time of all ranks goes", ledger_blocks, folded=True))
    if any(_communicates(run, ledger) for run, ledger in with_ledger):
        sections.append(Section("Bandwidth of collectives", bandwidth_blocks(bandwidths(runs)), folded=True))
    return tuple(sections)


def _wait_sections(waits: JobWaits) -> tuple[Section, ...]:
    step_ns = float(np.median([rank.steps.traced_ns or 1 for rank in waits.matched.ranks]))
    largest_frac = float(waits.waits_ns.max()) / step_ns
    if largest_frac < _MIN_WAIT_FRAC:
        text = f"No rank waits for another one for more than {percent(_MIN_WAIT_FRAC)} of a step."
        return (Section("Who waits for whom", (Line(text),)),)
    blocks: tuple[Block, ...] = (*group_lines(waits), wait_matrix(waits))
    skew = (Line(skew_caption(waits), soft=True), skew_map(waits))
    sections = [Section("Who waits for whom", blocks), Section("Skew of the ranks in each step", skew)]
    if (lanes := rank_lanes(waits)) is not None:
        sections.append(Section("Ranks on one time axis", (lanes,)))
    return tuple(sections)


def _communicates(run: Run, ledger: Ledger) -> bool:
    return collectives(run, find_steps(run), ledger) is not None
