"""The table of ranks in the report of a job."""

from __future__ import annotations

from dataclasses import replace

import gpulab
from gpulab.run import KILLED
from gpulab.tables import EVENTS, MARKS
from gpulab.views.report.rank_table import MAX_ROWS, rank_table
from tests.support.runs.cases import case_module

JOB = case_module("straggler")


def test_each_rank_has_a_row_whose_parts_sum_to_its_step():
    table = rank_table(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert [row.cells[0] for row in table.rows] == [str(rank) for rank in range(8)]
    for row in table.rows:
        step, *parts = (float(cell) for cell in row.cells[1:6])
        assert abs(sum(parts) - step) <= 0.2


def test_the_late_rank_does_not_wait_and_the_others_do():
    table = rank_table(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    waits = {int(row.cells[0]): float(row.cells[6]) for row in table.rows}
    assert waits.pop(JOB.LATE) == 0
    assert set(waits.values()) == {30.0}
    assert [row.cells[0] for row in table.rows if row.cells[7]] == [str(JOB.LATE)]


def test_a_killed_rank_is_in_the_table_without_numbers():
    runs = list(JOB.provoked_by_one_rank_that_has_more_to_compute())
    empty = replace(runs[2], outcome=KILLED, event_rows=EVENTS.empty(), mark_rows=MARKS.empty())
    runs[2] = empty
    row = rank_table(runs).rows[2]
    assert row.cells == ("2", *["-"] * 7, "killed")


def test_many_ranks_are_not_all_listed():
    run = JOB.provoked_by_one_rank_that_has_more_to_compute()[0]
    table = rank_table([replace(run, rank=rank) for rank in range(100)])
    assert len(table.rows) == MAX_ROWS
    assert "68 more ranks" in table.caption


def test_a_report_of_a_job_has_the_table_and_that_of_a_run_has_not():
    runs = JOB.provoked_by_one_rank_that_has_more_to_compute()
    assert "Ranks of the job" in repr(gpulab.report(runs))
    assert "Ranks of the job" not in repr(gpulab.report(runs[0]))
