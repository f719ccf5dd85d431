"""Several ranks: stragglers and their causes; idle GPUs; DataParallel."""

from dataclasses import replace

import numpy as np
import pytest

import gpulab
from gpulab.analysis.ranks.data_parallel import gpu_busy_shares
from gpulab.analysis.ranks.stragglers import find_straggler
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.errors import RunError
from gpulab.files import Ranks
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import MS, collective, collective_columns, event, rank_of, stepped

JOB, DP, IDLE = case_module("straggler"), case_module("data_parallel"), case_module("idle_gpus")
LATE = JOB.LATE


def finding(rule, runs, peers=()):
    return next((each for each in diagnose(runs, peers).findings if each.rule == rule), None)


# Which rank is late.


@pytest.mark.parametrize(
    ("case_name", "cause"),
    [
        ("provoked_by_one_rank_that_builds_its_batches_itself", "waits for data"),
        ("provoked_by_one_rank_whose_gpu_runs_at_a_lower_clock", "lower GPU clock"),
        ("provoked_by_one_rank_that_has_more_to_compute", "longer kernel times"),
    ],
)
def test_the_straggler_of_eight_ranks_is_named_with_its_cause(case_name, cause):
    diagnosis = diagnose(Ranks(tuple(getattr(JOB, case_name)())))
    assert diagnosis.run.rank == LATE
    assert diagnosis.first.rule == "straggler"
    assert f"Rank {LATE} is a straggler" in diagnosis.verdict
    assert cause in diagnosis.verdict
    assert diagnosis.first.numbers["rank"] == LATE


def test_the_wait_of_the_other_ranks_bounds_the_gain():
    timing = find_straggler(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert (timing.index, timing.last_frac, timing.steps, timing.collectives) == (LATE, 1.0, 4, 4)
    assert timing.others_wait_ns == timing.gain_ns == 30 * MS
    gain = finding("straggler", JOB.provoked_by_one_rank_that_builds_its_batches_itself()).gain
    assert gain.floor_ns == 70 * MS


def test_the_gain_is_of_the_late_rank_whatever_number_the_ranks_start_from():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    renumbered = [replace(run, rank=run.rank + 8) for run in ranks]
    straggler, moved = finding("straggler", ranks), finding("straggler", renumbered)
    assert moved.numbers["rank"] == LATE + 8
    assert (moved.gain.best_ns, moved.gain.worst_ns, moved.gain.basis) == (
        straggler.gain.best_ns,
        straggler.gain.worst_ns,
        straggler.gain.basis,
    )


def test_fixing_one_of_two_late_ranks_saves_the_distance_to_the_next():
    ranks = JOB.job(compute_ms=lambda rank, step: {3: 85, 5: 75}.get(rank, 60))
    timing = find_straggler(ranks)
    assert timing.index == 3
    assert timing.gain_ns == 10 * MS
    gain = finding("straggler", ranks).gain
    assert gain.best_ns == gain.step_ns - 10 * MS


def test_the_fix_comes_from_the_stragglers_own_diagnosis():
    diagnosis = diagnose(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert diagnosis.first.fix.startswith(f"# on rank {LATE}:\n")
    assert "num_workers=" in diagnosis.first.fix
    assert "no_workers" not in [each.rule for each in diagnosis.findings]
    assert ("no_workers", "straggler") in [(each.finding.rule, each.explained_by) for each in diagnosis.masked]


def test_on_a_waiting_rank_the_straggler_masks_exposed_communication():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    diagnosis = gpulab.diagnose(ranks[0], ranks)
    assert diagnosis.first.rule == "straggler"
    assert ("exposed_communication", "straggler") in [
        (each.finding.rule, each.explained_by) for each in diagnosis.masked
    ]
    assert diagnosis.first.spans.total_ns == 4 * 25 * MS


def test_the_spans_of_the_wait_are_on_the_stragglers_timeline():
    ranks = JOB.provoked_by_one_rank_that_builds_its_batches_itself()
    spans = finding("straggler", ranks).spans
    assert spans.start_ns.tolist() == [(100 * step + 60) * MS for step in range(1, 5)]
    assert spans.end_ns.tolist() == [(100 * step + 90) * MS for step in range(1, 5)]


def test_ranks_that_are_late_alternately_wait_for_the_last_one():
    ranks = JOB.job(fetch_ms=lambda rank, step: 25 * (rank == step % JOB.RANKS))
    result = finding("exposed_communication", ranks)
    assert any("25 ms" in sentence and "8 ranks" in sentence for sentence in result.evidence)


def test_a_slow_network_is_not_reported_as_waiting():
    result = finding("exposed_communication", JOB.spared_as_the_network_is_slow_for_all())
    assert not any("ranks to arrive" in sentence for sentence in result.evidence)


def test_random_jitter_makes_no_straggler():
    takes = np.random.default_rng(7).uniform(50, 80, (8, 8))
    ranks = JOB.job(compute_ms=lambda rank, step: float(takes[rank, step]))
    assert find_straggler(ranks).others_wait_ns > 5 * MS  # they do wait, for somebody else in each step
    assert finding("straggler", ranks) is None


# Matching collectives across ranks.


def renumbered(run, **columns):
    rows = run.collective_rows
    return replace(run, collective_rows=rows.table.rows({**rows.columns, **columns}))


def test_sequence_numbers_match_recordings_with_different_starts():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    numbered = [renumbered(run, sequence=np.arange(6) + 40) for run in ranks]
    assert find_straggler(numbered).index == LATE
    shifted = [renumbered(run, sequence=np.arange(6) + 40 + (rank == 5)) for rank, run in enumerate(ranks)]
    assert find_straggler(shifted).collectives == 3  # of the four interior ones, those that all of them recorded


def test_without_sequence_numbers_step_numbers_match_the_ranks():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    first = ranks[0].event_rows

    def renamed_step(word):
        return word.replace("ProfilerStep#", "ProfilerStep#10") if word.startswith("ProfilerStep") else word

    from gpulab.rows import TextColumn

    names = first.text("name")
    later_names = TextColumn(names.codes, tuple(map(renamed_step, names.vocabulary)))
    other = replace(ranks[0], event_rows=first.table.rows({**first.columns, "name": later_names}))
    assert find_straggler([other, *ranks[1:]]) is None


def test_a_group_of_some_ranks_only_is_not_compared_across_all():
    ranks = [
        renumbered(run, group_size=np.full(6, 4, np.int32))
        for run in JOB.provoked_by_one_rank_that_has_more_to_compute()
    ]
    assert find_straggler(ranks) is None


def test_unmatched_ranks_are_not_judged():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    numbered = [renumbered(run, sequence=np.arange(6) + 100 * rank) for rank, run in enumerate(ranks)]
    unjudged = {each.rule: each for each in diagnose(numbered).unjudged}
    assert "collectives" in unjudged["straggler"].reason


def test_a_collective_that_two_streams_run_beside_each_other_is_matched_within_its_group():
    def job(rank):
        def step(at):
            late = 20 if rank == 1 else 0
            return [
                event(EventKind.KERNEL, "gemm", at, 40 + late),
                collective("ncclAllReduce", at + 40 + late, 25 - late, moves=collective_columns(10, group="a", size=2)),
                collective("ncclAllReduce", at + 70, 10, moves=collective_columns(10, group="b", size=2), stream=22),
                event(EventKind.KERNEL, "adam", at + 85, 10),
            ]

        return rank_of(stepped(step), rank, ranks=2)

    timing = find_straggler([job(0), job(1)])
    assert (timing.index, timing.collectives, timing.others_wait_ns) == (1, 8, 20 * MS)


@pytest.fixture
def a100(recorded):
    return gpulab.load(recorded("a100_ddp_8ranks_rank.json.gz"))


def late_by(run, by_ms):
    """The same rank, which arrives so much later at the longest collective of each step, which ends as before."""
    rows = run.event_rows
    start, dur = rows["start_ns"].copy(), rows["dur_ns"].copy()
    late = (rows["kind"] == EventKind.COLLECTIVE) & (dur > (by_ms + 1) * MS)
    start[late] += by_ms * MS
    dur[late] -= by_ms * MS
    return replace(run, event_rows=rows.table.rows({**rows.columns, "start_ns": start, "dur_ns": dur})), int(late.sum())


def test_equal_copies_of_a_real_rank_arrive_together(a100):
    timing = find_straggler([replace(a100, rank=rank) for rank in range(4)])
    assert (timing.steps, timing.others_wait_ns, timing.waits_ns) == (4, 0, (0, 0, 0, 0))
    assert timing.collectives == 40  # ten collectives a step, in four interior steps


def test_the_delayed_copy_of_a_real_rank_is_the_straggler(a100):
    changed, count = late_by(a100, 3)
    ranks = [replace(a100, rank=0), replace(a100, rank=1), replace(changed, rank=2), replace(a100, rank=3)]
    timing = find_straggler(ranks)
    assert timing.index == 2
    assert timing.last_frac == 1.0
    assert count > 10
    assert 0 < timing.others_wait_ns <= count * 3 * MS
    result = finding("straggler", ranks)
    assert result.numbers["rank"] == 2


# All ranks together.


def test_without_a_straggler_the_first_rank_is_diagnosed():
    ranks = Ranks(tuple(JOB.spared_as_all_ranks_wait_for_their_data_alike()))
    diagnosis = gpulab.diagnose(ranks)
    assert diagnosis.run.rank == 0
    assert diagnosis.first.rule == "no_workers"
    assert "ranks 1-7" in diagnosis.first.evidence[-1]


def test_the_verdicts_of_other_ranks_are_in_the_evidence():
    diagnosis = gpulab.diagnose(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert any(sentence.startswith("On ranks 0-2, 4-7") for sentence in diagnosis.first.evidence)


def test_a_report_takes_all_ranks():
    text = str(gpulab.report(Ranks(tuple(JOB.provoked_by_one_rank_that_builds_its_batches_itself()))))
    assert "7 GPUs wait" in text
    assert f"This is rank {LATE}" in text


def test_the_first_of_several_traces_of_a_rank_is_used():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    assert gpulab.diagnose([*ranks, *ranks]).first.rule == "straggler"


def test_a_list_with_one_run_gives_the_diagnosis_of_that_run():
    run = JOB.provoked_by_one_rank_that_has_more_to_compute()[0]
    alone, among = gpulab.diagnose(run), gpulab.diagnose([run])
    assert [each.claim for each in alone.findings] == [each.claim for each in among.findings]
    assert alone.first.evidence == among.first.evidence


@pytest.mark.parametrize("what", [[], "no run of this name", None, 7])
def test_an_input_without_a_run_raises_run_error(what):
    with pytest.raises(RunError, match="no run"):
        gpulab.diagnose(what)


# One process and several GPUs.


def test_the_fix_for_data_parallel_is_one_process_per_gpu():
    result = finding("data_parallel", DP.provoked_by_four_gpus_in_one_process())
    assert "--nproc-per-node=4" in result.fix
    assert "batch_size=8" in result.fix  # 32 over 4
    assert "net = DDP(net" in result.fix
    assert result.numbers["exposed_ns"] == 25 * MS


def test_data_parallel_at_little_cost_informs_only():
    result = finding("data_parallel", DP.provoked_even_where_it_costs_little())
    assert result.informs_only
    assert result.gain is None


def test_gpu_busy_shares_are_of_interior_steps():
    run = DP.provoked_by_four_gpus_in_one_process()
    detected_steps = find_steps(run)
    assert gpu_busy_shares(run, detected_steps, build_ledger(run, detected_steps)) == (
        (0, 0.85),
        (1, 0.6),
        (2, 0.6),
        (3, 0.6),
    )


def test_idle_gpus_inform_only_if_the_busiest_gpu_waits():
    assert not finding("idle_gpus", IDLE.provoked_by_one_gpu_of_four_that_works()).informs_only
    assert finding("idle_gpus", IDLE.provoked_by_one_gpu_of_two_that_works_a_little()).informs_only


def test_idle_gpus_are_the_verdict_if_the_working_gpu_is_busy():
    def step(at):
        return [event(EventKind.KERNEL, "gemm", at, 99.9)]

    run = replace(rank_of(stepped(step)), gpu_rows=IDLE.provoked_by_one_gpu_of_four_that_works().gpu_rows)
    first = diagnose(run).first
    assert first.rule == "idle_gpus"
    assert (first.numbers["idle_gpus"], first.numbers["gpus"]) == (3, 4)


def test_idle_gpus_are_not_judged_from_a_trace_of_one_gpu(recorded):
    unjudged = {each.rule for each in diagnose(gpulab.load(recorded("v100_resnet50_workers0.json.gz"))).unjudged}
    assert "idle_gpus" in unjudged


# Ranks on CPUs.


def gloo_ranks(*compute_ms, count=8):
    """Ranks without a GPU, each with an operator of so many ms in each step of 100 ms, then an exchange."""

    def step(compute):
        return lambda at: [
            event(EventKind.OP, "aten::linear", at, compute),
            event(EventKind.OP, "c10d::allreduce_", at + compute, 0.1),
            event(EventKind.ANNOTATION, "gloo:all_reduce", at + compute + 0.2, 95 - compute, thread=1),
        ]

    world = len(compute_ms)
    return [rank_of(stepped(step(compute), count=count), rank, ranks=world) for rank, compute in enumerate(compute_ms)]


def test_a_slow_rank_without_a_gpu_has_longer_compute_times_and_nothing_about_gpus():
    first = diagnose(Ranks(tuple(gloo_ranks(40, 70)))).first
    assert first.rule == "straggler"
    assert first.numbers["rank"] == 1
    assert "compute" in first.claim
    assert "GPU" not in f"{first.claim} {first.advice} {first.fix}"
    assert not first.advice or "cores" in first.advice


def test_equal_ranks_without_a_gpu_have_no_straggler():
    assert finding("straggler", gloo_ranks(60, 60)) is None


def gloo_ranks_in_turn(more_ms, count=12):
    """Two ranks without a GPU that compute for 60 ms, one of them longer; which one is drawn for each step."""
    later = np.random.default_rng(0).integers(0, 2, count)

    def step(rank):
        def events(at):
            compute = 60 + more_ms * (later[round(at / 200)] == rank)
            done = at + 60 + more_ms + 5
            return [
                event(EventKind.OP, "aten::linear", at, compute),
                event(EventKind.OP, "c10d::allreduce_", at + compute, 0.1),
                event(EventKind.ANNOTATION, "gloo:all_reduce", at + compute + 0.2, done - at - compute, thread=1),
            ]

        return events

    return [rank_of(stepped(step(rank), count=count, step_ms=200.0), rank, ranks=2) for rank in range(2)]


@pytest.mark.parametrize(("more_ms", "is_named"), [(11, False), (60, True)])
def test_unequal_compute_on_cpu_cores_needs_a_difference_that_sharing_them_does_not_explain(more_ms, is_named):
    ranks = gloo_ranks_in_turn(more_ms)
    assert find_straggler(ranks).others_wait_ns > 0
    assert (finding("uneven_batches", ranks) is not None) == is_named
