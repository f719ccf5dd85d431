"""Summaries of ranks: their size, their form as bytes, and how they are joined."""

import random
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab.analysis.ranks.arrivals import RankArrivals
from gpulab.errors import StoreError
from gpulab.fleet.job_summary import JobSummary, job_of_rank, join, join_all, join_ranks
from gpulab.fleet.rank_summary import (
    MAX_BYTES,
    MAX_COLLECTIVES,
    FirstFinding,
    RankSummary,
    decode,
    encode,
    pack_arrivals,
    sampled_arrivals,
)
from gpulab.fleet.summarise import summarise_run
from gpulab.tables import EventKind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import collective, collective_columns, event, rank_of, stepped

JOB = case_module("straggler")


def finding(rule, worst, best):
    return FirstFinding(rule=rule, claim=f"{rule} is slow", confidence="likely", worst_speedup=worst, best_speedup=best)


speedups = st.none() | st.floats(1, 9)
summaries = st.builds(
    RankSummary,
    path=st.text("abc/", max_size=4),
    error=st.sampled_from(["", "", "broken"]),
    rank=st.none() | st.integers(0, 5),
    began_ns=st.none() | st.integers(0, 3),
    finding=st.none() | st.builds(finding, st.sampled_from(["no_workers", "sync"]), speedups, speedups),
)
# Each file occurs once.
three_jobs = st.lists(summaries, max_size=15, unique_by=lambda summary: summary.path).map(
    lambda some: [join_ranks(*some[part::3]) for part in range(3)]
)


@given(three_jobs)
def test_joining_jobs_is_associative_and_commutative(parts):
    one, two, three = parts
    assert join(join(one, two), three) == join(one, join(two, three))
    assert join(one, two) == join(two, one)
    assert join(one, JobSummary()) == one


def test_the_joined_summary_does_not_depend_on_the_grouping_of_real_ranks():
    ranks = [summarise_run(run, f"{run.rank}.json") for run in JOB.provoked_by_one_rank_that_has_more_to_compute()]
    one_by_one = join_ranks(*ranks)
    shuffled = random.Random(5).sample(ranks, len(ranks))
    assert join_all([join_ranks(*shuffled[:3]), join_ranks(*shuffled[3:4]), join_ranks(*shuffled[4:])]) == one_by_one
    assert [summary.rank for summary in one_by_one.ranks] == list(range(8))


def test_the_example_of_a_finding_is_that_of_the_lowest_rank_and_its_gain_that_of_all():
    ranks = [RankSummary(path=f"{n}", rank=n, finding=finding("sync", n + 1.0, n + 2.0)) for n in (4, 2, 7)]
    ranks[1] = replace(ranks[1], finding=replace(ranks[1].finding, claim="on rank 2"))
    (example,) = join_ranks(*ranks).findings
    assert (example.claim, example.worst_speedup, example.best_speedup) == ("on rank 2", 3.0, 9.0)


def test_a_file_that_could_not_be_read_is_no_rank():
    job = job_of_rank(RankSummary(path="rank_3.json", rank=3, error="is empty"))
    assert (job.ranks, job.unread[0].rank, job.unread[0].reason) == ((), 3, "is empty")


# The summary of a real rank.


@pytest.fixture
def a100(recorded):
    return gpulab.load(recorded("a100_ddp_8ranks_rank.json.gz"))


def test_a_summary_returns_from_bytes_as_it_was(a100):
    summary = summarise_run(a100, "rank_3.json.gz")
    assert decode(encode(summary)) == summary
    assert len(encode(summary)) < 5_000


def test_the_typical_step_of_a_summary_sums_exactly(a100):
    summary = summarise_run(a100, "rank_3.json.gz")
    assert sum(summary.part_ns.values()) == summary.step_ns
    assert (summary.rank, summary.world_size, summary.interior_steps) == (3, 8, 4)


def test_the_device_time_of_a_summary_is_that_of_the_events(a100):
    # By an independent sweep: +1 and -1 at starts and ends.
    rows = a100.event_rows
    on_device = rows["kind"] >= EventKind.KERNEL.value
    start = rows["start_ns"][on_device]
    end = start + rows["dur_ns"][on_device]
    at = np.concatenate([start, end])
    depth = np.concatenate([np.ones(len(start)), -np.ones(len(end))])
    order = np.lexsort((depth, at))
    covered = np.diff(at[order])[np.cumsum(depth[order])[:-1] > 0].sum()
    times = summarise_run(a100, "x").device_time
    assert times.busy_ns == covered
    assert times.window_ns == end.max() - start.min()


def test_a_rank_with_very_many_collectives_has_a_summary_of_at_most_50_kb():
    rng = np.random.default_rng(1)

    def step(at):
        calls = [
            collective("ncclAllReduce", at + n * 0.02, float(rng.uniform(0.001, 0.019)), moves=columns(n % 20))
            for n in range(4_000)
        ]
        return [event(EventKind.KERNEL, "gemm", at + 85, 10), *calls]

    def columns(number):
        return collective_columns(10, group=f"a group with a rather long name, number {number}", size=8)

    summary = summarise_run(rank_of(stepped(step), 0), "/some/folder/rank_0.json.gz")
    assert len(encode(summary)) <= MAX_BYTES
    assert 0 < sum(group.sampled for group in summary.groups) <= MAX_COLLECTIVES
    assert sum(group.collectives for group in summary.groups) == 4_000


def test_damaged_bytes_are_refused(a100):
    with pytest.raises(StoreError):
        decode(encode(summarise_run(a100, "x"))[:-9])


# The sample of collectives.


def arrivals(steps, per_step, seed=0):
    count = steps * per_step
    values = np.random.default_rng(seed).integers(0, 10**9, (3, count))
    return RankArrivals(np.arange(count), np.arange(count), np.repeat(np.arange(steps), per_step), *values)


def test_ranks_choose_the_same_complete_steps():
    samples = [sampled_arrivals(arrivals(50, 20, seed), 200) for seed in (1, 2)]
    assert np.array_equal(samples[0].key, samples[1].key)
    steps, counts = np.unique(samples[0].step, return_counts=True)
    assert len(steps) == 10
    assert set(counts.tolist()) == {20}


def test_ranks_that_recorded_other_steps_share_a_part_of_the_sample():
    everything, later = arrivals(60, 20), arrivals(60, 20).select(np.arange(400, 1200))
    shared = np.intersect1d(sampled_arrivals(everything, 600).key, sampled_arrivals(later, 600).key)
    assert len(shared) >= 3 * 20


def test_steps_with_too_many_collectives_keep_their_first_ones():
    sample = sampled_arrivals(arrivals(6, 1000), 400)
    steps, counts = np.unique(sample.step, return_counts=True)
    assert (len(steps), set(counts.tolist())) == (4, {100})
    assert (sample.key % 1000 < 100).all()


def test_packed_arrivals_keep_every_number():
    original = arrivals(5, 7)
    from gpulab.fleet.rank_summary import GroupSummary

    group = GroupSummary(name="", size=8, collectives=7, moved_bytes=None, sampled=35, columns=pack_arrivals(original))
    for name in ("key", "step", "start_ns", "dur_ns", "exposed_ns"):
        assert np.array_equal(getattr(group.arrivals(), name), getattr(original, name))
