"""Sizes of DDP's buckets are recorded with a run of several ranks, and give CPU collectives their sizes."""

from __future__ import annotations

import numpy as np
import pytest

import gpulab
from gpulab.analysis.ranks.collectives import all_reduce_buckets, collectives
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.run_facts import BUCKETS, bucket_sizes
from gpulab.tables import EventKind
from tests.support.runs.made_runs import event, run_of, stepped


def run_with(sizes, reduces=3):
    def step(at):
        exchanges = [
            event(EventKind.ANNOTATION, "gloo:all_reduce", at + 10 + 8 * index, 7, thread=1) for index in range(reduces)
        ]
        update = event(EventKind.ANNOTATION, "Optimizer.step#SGD.step", at + 38, 1)
        return [event(EventKind.OP, "aten::linear", at, 10), *exchanges, update]

    return run_of(stepped(step, step_ms=40.0), facts={BUCKETS: sizes, "world_size": "2"})


def buckets_of(run):
    steps = find_steps(run)
    return all_reduce_buckets(run, steps, build_ledger(run, steps))


def test_all_reduces_of_a_step_have_the_sizes_of_the_buckets_in_order():
    buckets = buckets_of(run_with("400000,2000000,3000000"))
    assert (buckets.per_step, buckets.small_per_step) == (3, 1)
    assert buckets.total_bytes == 5_400_000


@pytest.mark.parametrize("sizes", ["", "1,2", "1,x,3", "-5,2,3", "9" * 40 + ",1,1"])
def test_sizes_that_do_not_fit_are_unknown(sizes):
    assert buckets_of(run_with(sizes)) is None


def test_many_small_buckets_of_a_cpu_rank_are_named():
    run = run_with("400000,400000,400000")
    assert bucket_sizes(run) == (400_000,) * 3
    finding = next(each for each in gpulab.diagnose(run).findings if each.rule == "small_buckets")
    assert finding.numbers["per_step"] == 3
    assert "cuda" not in finding.fix


def test_one_bucket_of_the_usual_size_is_not_too_small():
    run = run_with("25000000", reduces=1)
    assert not [each for each in gpulab.diagnose(run).findings if each.rule == "small_buckets"]


def test_waits_of_exchanges_at_the_same_time_count_once():
    def step(at):
        return [
            event(EventKind.OP, "aten::linear", at, 10),
            event(EventKind.ANNOTATION, "gloo:all_reduce", at + 10, 20, thread=1),
            event(EventKind.ANNOTATION, "gloo:all_reduce", at + 11, 20, thread=2),
        ]

    run = run_of(stepped(step, step_ms=40.0))
    steps = find_steps(run)
    ledger = build_ledger(run, steps)
    exposed = collectives(run, steps, ledger).exposed_ns
    assert int(np.sum(exposed)) == ledger.spans["communication"].total_ns
