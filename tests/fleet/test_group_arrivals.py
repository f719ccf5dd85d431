"""Stragglers of a job from the summaries of its ranks; the oracle is the analysis of the complete runs."""

from dataclasses import replace

import numpy as np
import pytest

from gpulab.analysis.ranks.stragglers import find_straggler
from gpulab.fleet.group_arrivals import group_arrivals
from gpulab.fleet.summarise import summarise_run
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import MS

JOB = case_module("straggler")


def summaries_of(runs):
    return [summarise_run(run, f"rank_{run.rank}.json.gz") for run in runs]


@pytest.mark.parametrize(
    ("case_name", "clause"),
    [
        ("provoked_by_one_rank_that_builds_its_batches_itself", " that waits for data"),
        ("provoked_by_one_rank_whose_gpu_runs_at_a_lower_clock", " with a lower GPU clock"),
        ("provoked_by_one_rank_that_has_more_to_compute", " with longer kernel times"),
    ],
)
def test_summaries_give_the_straggler_of_the_complete_runs_and_its_cause(case_name, clause):
    runs = getattr(JOB, case_name)()
    expected = find_straggler(runs)
    (group,) = group_arrivals(summaries_of(runs))
    assert (group.late_rank, group.last_frac, group.steps, group.collectives) == (
        JOB.LATE,
        expected.last_frac,
        expected.steps,
        expected.collectives,
    )
    assert (group.others_wait_ns, group.gain_ns, group.waits_ns) == (
        expected.others_wait_ns,
        expected.gain_ns,
        expected.waits_ns,
    )
    assert group.is_persistent
    assert group.cause.clause == clause


def test_ranks_that_take_turns_are_no_stragglers_but_their_waits_are_long():
    (group,) = group_arrivals(summaries_of(JOB.spared_as_ranks_take_turns_in_being_late()))
    assert (group.is_persistent, group.has_long_wait) == (False, True)
    assert len(group.late_ranks) > 1
    assert sum(steps for _, steps in group.late_ranks) == group.steps


def test_the_clock_of_each_host_is_compared_by_the_common_end_of_collectives():
    runs = JOB.provoked_by_one_rank_that_has_more_to_compute()
    ahead_ms = [0, 0, 0, 0, 0, 7, 0, -3]
    runs = [replace(run, began_ns=10**18 + ahead * MS) for run, ahead in zip(runs, ahead_ms, strict=True)]
    (group,) = group_arrivals(summaries_of(runs))
    assert group.clock_offset_ns == tuple(ahead * MS for ahead in ahead_ms)
    assert group.late_rank == JOB.LATE


def test_a_missing_rank_does_not_prevent_the_comparison_of_the_others():
    runs = JOB.provoked_by_one_rank_that_has_more_to_compute()
    (group,) = group_arrivals(summaries_of([*runs[:5], *runs[6:]]))
    assert (group.late_rank, len(group.ranks), group.size) == (JOB.LATE, 7, 8)


def test_a_rank_that_recorded_other_steps_costs_only_itself():
    runs = JOB.provoked_by_one_rank_that_has_more_to_compute()
    runs = [numbered(run, 40) for run in runs[:-1]] + [numbered(runs[-1], 900)]
    (group,) = group_arrivals(summaries_of(runs))
    assert (group.late_rank, group.ranks, group.unmatched) == (JOB.LATE, tuple(range(7)), 1)


def numbered(run, first, **more):
    rows = run.collective_rows
    columns = {"sequence": np.arange(6) + first, **more}
    return replace(run, collective_rows=rows.table.rows({**rows.columns, **columns}))


def test_each_process_group_has_its_straggler():
    runs = JOB.provoked_by_one_rank_that_has_more_to_compute()

    def in_group(run):
        text = run.collective_rows.text("group")
        named = replace_words(text, f"dp{run.rank // 4}")
        return numbered(run, 0, group=named, group_size=np.full(6, 4, np.int32))

    groups = group_arrivals(summaries_of([in_group(run) for run in runs]))
    assert [(group.group, group.ranks, group.is_persistent) for group in groups] == [
        ("dp0", (0, 1, 2, 3), True),
        ("dp1", (4, 5, 6, 7), False),
    ]
    assert groups[0].late_rank == JOB.LATE


def replace_words(text, word):
    from gpulab.rows import TextColumn

    return TextColumn(text.codes, tuple(word for _ in text.vocabulary))
