"""Who waits for whom: compared with the simulation that made the ranks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gpulab.analysis.ranks.waits import job_waits
from gpulab.rows import concat
from gpulab.tables import EVENTS, EventKind
from tests.support.runs.made_jobs import job
from tests.support.runs.made_runs import event, rows
from tests.support.runs.mesh_jobs import Exchange, mesh_job

MS = 1e6
INTERIOR = slice(1, -1)


def usual(more_ms):
    return lambda rank, step: 40.0 + more_ms(rank, step)


def grid_program(step):
    """Eight ranks in two rows and four columns; delays that no rule of thumb explains."""
    tensor = [Exchange("tensor0", (0, 1, 2, 3), 1.0), Exchange("tensor1", (4, 5, 6, 7), 1.0)]
    columns = [Exchange(f"data{column}", (column, column + 4), 3.0) for column in range(4)]
    return [
        (lambda rank: 10.0 + (rank * 7 + step * 3) % 5, tensor),
        (lambda rank: 15.0 + 1.07 * ((rank * 5 + step * 11) % 7), tensor),
        (lambda rank: 5.0 + 2 * (rank == 6), columns),
    ]


def true_matrix_ms(made, steps, ranks):
    """Of each rank, the wait for each last rank per step, from the simulated arrivals."""
    matrix = np.zeros((ranks, ranks))
    inside = range(steps)[INTERIOR]
    for step, _, arrivals in made.arrivals:
        if step in inside:
            latest_ms = max(arrivals.values())
            last = [rank for rank, at_ms in arrivals.items() if at_ms > latest_ms - 1e-6]
            for rank, at_ms in arrivals.items():
                for each in last:
                    matrix[rank, each] += (latest_ms - at_ms) / len(last) / len(inside)
    return matrix


def test_the_matrix_is_that_of_the_simulated_arrivals():
    made = mesh_job(grid_program, ranks=8)
    waits = job_waits(made.runs)
    assert waits.matrix_ns / MS == pytest.approx(true_matrix_ms(made, 8, 8), abs=1e-4)
    assert np.diagonal(waits.matrix_ns) == pytest.approx(0)


def test_each_process_group_is_compared_separately():
    groups = {(group.group, group.members) for group in job_waits(mesh_job(grid_program, ranks=8).runs).groups}
    tensor = {("tensor0", (0, 1, 2, 3)), ("tensor1", (4, 5, 6, 7))}
    assert groups == tensor | {(f"data{column}", (column, column + 4)) for column in range(4)}


def test_groups_that_share_a_name_are_not_compared():
    pairs = [Exchange("pair", (0, 1)), Exchange("pair", (2, 3))]
    made = mesh_job(lambda step: [(lambda rank: 10.0 + rank, pairs)], ranks=4)
    assert job_waits(made.runs) is None


def test_a_group_s_matrix_sums_to_the_waits_of_its_members():
    for group in job_waits(mesh_job(grid_program, ranks=8).runs).groups:
        assert group.waits_ns.sum() == pytest.approx(group.caused_ns.sum())


def test_skew_is_the_arrival_after_the_first_where_a_step_differs_most():
    made = mesh_job(grid_program, ranks=8)
    waits = job_waits(made.runs)
    widest = {}
    for step, exchange, arrivals in made.arrivals:
        first = min(arrivals.values())
        spread = max(arrivals.values()) - first
        for rank in exchange.members:
            if spread > widest.get((rank, step), (-1.0, 0.0))[0] + 1e-9:
                widest[rank, step] = spread, arrivals[rank] - first
    for rank in range(8):
        expected = [widest[rank, step][1] for step in range(8)[INTERIOR]]
        assert waits.skew_ns[rank] / MS == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("more_ms", "last_frac"),
    [
        (lambda rank, step: 15.0 * (rank == 2), 1.0),
        (lambda rank, step: 15.0 * (rank == step % 4), 0.25),
    ],
    ids=["persistent", "rotating"],
)
def test_a_persistent_straggler_is_always_last_and_rotating_ones_in_turn(more_ms, last_frac):
    (group,) = job_waits(job(usual(more_ms))).groups
    assert group.last_frac == pytest.approx(last_frac)
    assert group.matrix_ns.sum() / MS == pytest.approx(3 * 15)


def test_ranks_that_arrive_together_wait_for_nobody():
    (group,) = job_waits(job(usual(lambda rank, step: 0))).groups
    assert not group.matrix_ns.any()
    assert not group.last_steps.any()
    assert group.transfer_ns == pytest.approx(5 * MS)


def test_a_wait_that_a_kernel_hides_costs_nothing():
    runs = job(usual(lambda rank, step: 15.0 * (rank == 2)))
    hidden = []
    for run in runs:
        busy = event(EventKind.KERNEL, "elementwise_kernel", 0, run.span_ns / MS, stream=9)
        hidden.append(replace(run, event_rows=concat(EVENTS, [run.event_rows, rows(EVENTS, [busy])])))
    waits = job_waits(hidden)
    assert (waits.matched.wait_ns[:, 0] == 15 * MS).all()
    assert not waits.matrix_ns.any()


def test_a_collective_that_a_rank_of_the_group_lacks_is_not_compared():
    assert job_waits(job(usual(lambda rank, step: 15.0 * (rank == 2)))[:3]) is None


def test_the_clocks_of_the_ranks_do_not_matter():
    shifted = mesh_job(grid_program, ranks=8, clock=lambda rank, at_ms: at_ms + 1_000.0 * rank)
    assert job_waits(shifted.runs).matrix_ns == pytest.approx(job_waits(mesh_job(grid_program, ranks=8).runs).matrix_ns)


def test_ranks_that_arrive_last_together_share_the_wait():
    (group,) = job_waits(job(usual(lambda rank, step: 15.0 * (rank >= 2)))).groups
    assert group.matrix_ns[:2, 2:] / MS == pytest.approx(7.5)
    assert group.last_steps == pytest.approx([0, 0, 4, 4])
