"""All ranks of a job replayed together: laws, planted delays, and an independent oracle of the schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import gpulab
from gpulab.analysis.ranks.collectives import KINDS
from gpulab.errors import RunError
from gpulab.questions import predict_ranks
from gpulab.replay.job.job_graph import build_job_graph
from gpulab.replay.job.joint_sweep import joint_sweep
from gpulab.replay.job.scaling import later_last_arrival_ns, ring_transfer_ns
from gpulab.rules import diagnose
from tests.support.runs.made_jobs import job, overlapped_step_ends, step_ends

MS = 1e6


def late(rank, more_ms, usual_ms=40.0):
    return lambda each, step: usual_ms + more_ms * (each == rank)


def rotating(more_ms, usual_ms=40.0, ranks=4):
    return lambda each, step: usual_ms + more_ms * (each == step % ranks)


def oracle_ms(compute_ms, transfer_ms=5.0, *, ranks=4, **more):
    """The mean step time of such a job."""
    steps = 240
    ends = step_ends(compute_ms, transfer_ms, ranks=ranks, steps=steps, **more)
    return float(np.mean(ends[-1])) / steps


@pytest.mark.parametrize("compute_ms", [late(2, 0), late(2, 15), rotating(15)], ids=["equal", "late", "rotating"])
def test_a_replay_without_changes_reproduces_the_recording(compute_ms):
    schedule = joint_sweep(build_job_graph(job(compute_ms)))
    assert schedule.rank_steps_ns == pytest.approx([oracle_ms(compute_ms) * MS] * 4, rel=1e-3)


def test_each_rank_waits_for_the_last_one():
    schedule = joint_sweep(build_job_graph(job(late(2, 15))))
    waits = np.nanmean(schedule.wait_ns, axis=0)
    assert waits == pytest.approx([15 * MS, 15 * MS, 0, 15 * MS], abs=0.01 * MS)


def test_clocks_of_ranks_are_aligned_by_their_collectives():
    offsets = [0.0, 250.0, 3.0, 1_000.0]
    graph = build_job_graph(job(late(2, 15), offset_ms=lambda rank: offsets[rank]))
    assert -graph.offset_ns / MS == pytest.approx(offsets, abs=0.01)
    assert joint_sweep(graph).step_ns == pytest.approx(oracle_ms(late(2, 15)) * MS, rel=1e-3)


@pytest.mark.parametrize("more_ms", [3.0, 15.0, 120.0])
def test_without_the_straggler_the_job_takes_as_long_as_one_that_has_none(more_ms):
    prediction = predict_ranks(job(late(2, more_ms)), "no_straggler")
    assert prediction.likely_ns == pytest.approx(oracle_ms(late(2, 0)) * MS, rel=0.01)


def test_without_one_of_two_late_ranks_the_others_wait_for_the_second():
    compute_ms = lambda rank, step: {1: 60.0, 3: 50.0}.get(rank, 40.0)  # noqa: E731
    prediction = predict_ranks(job(compute_ms), "no_straggler")
    assert prediction.likely_ns == pytest.approx(oracle_ms(late(3, 10)) * MS, rel=0.01)
    both = predict_ranks(job(compute_ms), "no_straggler=3")
    assert both.speedup == pytest.approx(1.0, abs=0.01)


def test_with_balanced_work_the_step_takes_the_mean():
    prediction = predict_ranks(job(rotating(20)), "balance")
    assert prediction.likely_ns == pytest.approx(oracle_ms(late(0, 0, 45.0)) * MS, rel=0.01)


@pytest.mark.parametrize("compute_ms", [late(2, 15), rotating(20)], ids=["late", "rotating"])
def test_seldom_exchanged_gradients_average_delays_that_rotate(compute_ms):
    prediction = predict_ranks(job(compute_ms, steps=22), "no_sync=4")
    assert prediction.best_ns <= oracle_ms(compute_ms, synced_every=4) * MS <= prediction.worst_ns


def test_a_faster_link_shortens_the_data_but_not_the_latency():
    prediction = predict_ranks(job(late(0, 0), 20.0), "bandwidth=4")
    least, most = oracle_ms(late(0, 0), 5.0) * MS, oracle_ms(late(0, 0), 5.0 + 0.03) * MS
    assert least <= prediction.likely_ns <= most
    assert prediction.floor_ns == pytest.approx(oracle_ms(late(0, 0), 0.0) * MS, rel=0.01)


@pytest.mark.parametrize("compute_ms", [late(0, 0), late(2, 15)], ids=["equal", "late"])
@pytest.mark.parametrize(("buckets", "transfer_ms"), [(2, 6), (2, 20), (3, 20), (3, 60), (5, 20), (5, 60), (20, 20)])
def test_an_exchange_during_the_backward_pass_takes_as_long_as_one_that_was_made_so(compute_ms, transfer_ms, buckets):
    given = {"backward_ms": 25.0, "buckets": buckets}
    prediction = predict_ranks(job(compute_ms, transfer_ms, **given), "overlap")
    ends = overlapped_step_ends(compute_ms, 25.0, transfer_ms, buckets=buckets, ranks=4, steps=40)
    made_ns = float(np.mean(ends[-1])) / 40 * MS
    slack_ns = 1e-3 * made_ns
    assert prediction.floor_ns <= made_ns + slack_ns
    assert prediction.best_ns - slack_ns <= made_ns <= prediction.worst_ns + slack_ns


def test_overlap_is_refused_if_no_kernel_is_known_to_be_of_the_backward_pass():
    with pytest.raises(RunError, match="backward pass cannot be identified"):
        predict_ranks(job(late(0, 0)), "overlap")


def test_groups_of_ranks_do_not_wait_for_each_other():
    ranks = job(late(1, 30), groups=["a", "a", "b", "b"])
    schedule = joint_sweep(build_job_graph(ranks))
    assert schedule.rank_steps_ns == pytest.approx([77 * MS, 77 * MS, 47 * MS, 47 * MS], rel=1e-2)


@pytest.mark.parametrize("text", ["no_straggler", "balance", "bandwidth=2", "compress", "no_sync=2", "ranks=64"])
def test_the_bound_lies_below_the_range_and_the_range_around_the_likely_step(text):
    prediction = predict_ranks(job(late(2, 15)), text)
    assert prediction.floor_ns <= prediction.best_ns <= prediction.likely_ns <= prediction.worst_ns


def test_changes_together_are_replayed_together():
    together = predict_ranks(job(late(2, 15), 20.0), "no_straggler, bandwidth=4")
    assert together.likely_ns == pytest.approx(oracle_ms(late(2, 0), 5.02) * MS, rel=0.01)


def test_a_ring_of_as_many_ranks_takes_as_long_and_a_longer_one_no_less():
    transfer, kind = np.array([5e6, 3e5]), np.array([KINDS.index("all-reduce"), KINDS.index("all-gather")])
    now = np.array([4, 4])
    assert ring_transfer_ns(transfer, kind, now, to_ranks=4, latency_ns=2e4) == pytest.approx(transfer)
    times = [ring_transfer_ns(transfer, kind, now, to_ranks=n, latency_ns=2e4) for n in (4, 8, 64, 512)]
    assert (np.diff(times, axis=0) > 0).all()
    # Without latency, all-reduce tends to twice the time of the data, of which four ranks take 2 * 3/4.
    endless = ring_transfer_ns(transfer[:1], kind[:1], now[:1], to_ranks=10**6, latency_ns=0.0)
    assert endless == pytest.approx(transfer[:1] * 4 / 3, rel=1e-3)


def test_the_last_of_more_ranks_arrives_later_only_if_arrivals_vary():
    equal, varying = (joint_sweep(build_job_graph(job(each))) for each in (late(0, 0), rotating(20)))
    assert later_last_arrival_ns(equal, 64) == pytest.approx((0.0, 0.0), abs=0.1 * MS)
    least, most = later_last_arrival_ns(varying, 64)
    assert 0 <= least <= most


def test_ranks_that_launch_in_different_orders_are_refused():
    graph = build_job_graph(job(late(0, 0)))
    op = graph.joint.op.copy()
    op[[0, 1], 0] = op[[1, 0], 0]  # the first rank launches the first two collectives the other way round
    with pytest.raises(RunError, match="different orders"):
        joint_sweep(replace(graph, joint=replace(graph.joint, op=op)))


@pytest.mark.parametrize("ranks", [[0], [0, 5]], ids=["one rank", "different steps"])
def test_runs_that_cannot_be_matched_are_refused(ranks):
    runs = job(late(0, 0), steps=8)
    others = job(late(0, 0), steps=2)
    chosen = [runs[0]] if len(ranks) == 1 else [runs[0], others[1]]
    with pytest.raises(RunError, match="cannot be replayed together"):
        build_job_graph(chosen)


def test_the_report_names_the_gain_that_the_replay_of_all_ranks_gives():
    ranks = job(late(2, 30))
    first = diagnose(ranks).first
    assert first.rule == "straggler"
    assert first.gain.best_ns <= oracle_ms(late(2, 0)) * MS <= first.gain.worst_ns
    assert first.gain.best_ns >= first.gain.floor_ns


def test_the_view_shows_waits_now_and_then():
    view = gpulab.whatif(job(late(2, 30)), "no_straggler")
    assert view.prediction.speedup == pytest.approx(77 / 47, rel=0.01)
    rows = next(
        block for section in view.sheet.blocks for block in getattr(section, "blocks", ()) if hasattr(block, "rows")
    ).rows
    assert [row.cells[0] for row in rows] == ["0", "1", "2", "3"]
    assert [float(row.cells[1]) for row in rows] == pytest.approx([30, 30, 0, 30], abs=0.1)
    assert [float(row.cells[2]) for row in rows] == pytest.approx([0, 0, 0, 0], abs=0.1)


def test_without_changes_all_changes_of_the_communication_are_ranked():
    text = str(gpulab.whatif(job(late(2, 30))))
    assert text.index("no_straggler") < text.index("bandwidth=2")


def test_a_change_of_the_loop_is_made_on_all_ranks_or_refused_for_a_reason():
    with pytest.raises(RunError, match="DataLoader"):
        gpulab.whatif(job(late(0, 0)), "workers=4")
    with pytest.raises(RunError, match="did you mean no_straggler"):
        gpulab.whatif(job(late(0, 0)), "nostraggler")


def test_a_straggler_is_named_by_the_number_of_its_rank():
    ranks = [replace(run, rank=run.rank + 4) for run in job(late(2, 30))]
    assert predict_ranks(ranks, "no_straggler=6").likely_ns == predict_ranks(ranks, "no_straggler").likely_ns
    with pytest.raises(RunError, match="there is no rank 2"):
        predict_ranks(ranks, "no_straggler=2")


def test_seldom_exchanges_happen_in_the_same_steps_of_ranks_that_recorded_different_ones():
    everything, later = job(rotating(20), steps=26), job(rotating(20), steps=26, first_step=3)
    prediction = predict_ranks([later[0], *everything[1:]], "no_sync=4")
    assert prediction.best_ns <= oracle_ms(rotating(20), synced_every=4) * MS <= prediction.worst_ns
