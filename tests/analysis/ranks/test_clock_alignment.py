"""Clocks of ranks: planted offsets and drifts are recovered, jitter is stated as the error."""

from __future__ import annotations

import numpy as np
import pytest

from gpulab.analysis.ranks.clock_alignment import align_clocks
from tests.support.runs.made_jobs import job
from tests.support.runs.mesh_jobs import Exchange, mesh_job

MS = 1e6
ALL = tuple(range(4))
OFFSETS_MS = (0.0, 250.0, 3.0, 1_000.0)


def lock_step(step):
    return [(lambda rank: 40.0 + 7 * (rank == step % 4), [Exchange("0", ALL)])]


def jittered(deviation_ms, seed=0):
    draw = np.random.default_rng(seed)
    return lambda rank, number: float(draw.normal(0, deviation_ms))


def test_planted_offsets_are_recovered():
    alignment = align_clocks(job(lambda rank, step: 40 + 15 * (rank == 2), offset_ms=lambda rank: OFFSETS_MS[rank]))
    assert [-clock.offset_ns / MS for clock in alignment.clocks] == pytest.approx(OFFSETS_MS, abs=1e-3)
    assert alignment.error_ns == pytest.approx(0, abs=10)


@pytest.mark.parametrize("drift", [0.0, 20e-6, -50e-6, 200e-6])
def test_aligned_times_are_the_true_times_within_the_stated_error(drift):
    steps, jitter_ms = 120, 0.02

    def clock(rank, at_ms):
        return OFFSETS_MS[rank] + at_ms * (1 + drift * rank)

    made = mesh_job(lock_step, ranks=4, steps=steps, clock=clock, jitter=jittered(jitter_ms))
    alignment = align_clocks(made.runs)
    true_ms = np.linspace(100, 5_000, 50)
    for rank, side in enumerate(alignment.clocks):
        local_ns = np.array([clock(rank, at) * MS for at in true_ms]).astype(np.int64)
        wrong_ms = np.abs(side.aligned_ns(local_ns) / MS - true_ms)
        assert wrong_ms.max() < 0.02
        assert side.error_ns / MS < 4 * jitter_ms
        if rank:
            assert side.error_ns / MS > jitter_ms
            assert side.drift_frac == pytest.approx(-drift * rank, abs=5e-6)


def test_jitter_alone_is_not_reported_as_drift():
    drifts = [
        clock.drift_frac
        for seed in range(20)
        for clock in align_clocks(mesh_job(lock_step, ranks=4, steps=30, jitter=jittered(0.05, seed)).runs).clocks
    ]
    assert np.count_nonzero(drifts) <= 1


def test_one_collective_that_ends_late_does_not_move_a_clock():
    made = mesh_job(lock_step, ranks=4, steps=12, jitter=lambda rank, number: 30.0 * (rank == 1 and number == 5))
    assert align_clocks(made.runs).clocks[1].offset_ns == pytest.approx(0, abs=1e3)


def test_ranks_without_a_shared_group_are_aligned_through_others():
    pairs = [Exchange("row0", (0, 1)), Exchange("row1", (2, 3))]
    columns = [Exchange("columns", (1, 3))]

    def program(step):
        return [(lambda rank: 20.0, pairs), (lambda rank: 20.0, columns)]

    made = mesh_job(program, ranks=4, clock=lambda rank, at_ms: at_ms + OFFSETS_MS[rank])
    clocks = align_clocks(made.runs).clocks
    assert [clock.through for clock in clocks] == [None, 0, 3, 1]
    assert [-clock.offset_ns / MS for clock in clocks] == pytest.approx(OFFSETS_MS, abs=1e-3)


def test_ranks_of_separate_groups_have_no_offset_and_no_error():
    alignment = align_clocks(job(lambda rank, step: 40.0, groups=["a", "a", "b", "b"]))
    assert [clock.offset_ns is None for clock in alignment.clocks] == [False, False, True, True]
    assert alignment.error_ns is None
    with pytest.raises(ValueError, match="cannot be aligned"):
        alignment.clocks[2].aligned_ns(np.array([0]))


def test_one_rank_has_nothing_to_be_aligned_with():
    assert align_clocks(job(lambda rank, step: 40.0)[:1]) is None
