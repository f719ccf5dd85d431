"""Many ranks: who is late, why, and nobody where nobody is; GPUs that do nothing; one process that feeds several."""

from dataclasses import replace

import numpy as np
import pytest

import gpulab
from gpulab.analysis.ranks.data_parallel import worked
from gpulab.analysis.ranks.stragglers import arrivals
from gpulab.analysis.steps.detection import steps
from gpulab.analysis.steps.ledger import ledger
from gpulab.errors import RunError
from gpulab.files import Ranks
from gpulab.rules import diagnose
from gpulab.tables import Kind
from tests.support.runs.cases import case_module
from tests.support.runs.made_runs import MS, collective, event, moving, rank_of, stepped

JOB, DP, IDLE = case_module("straggler"), case_module("data_parallel"), case_module("idle_gpus")
LATE = JOB.LATE


def finding(rule, made, peers=()):
    return next((each for each in diagnose(made, peers).findings if each.rule == rule), None)


# Who is late.


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ("provoked_by_one_rank_that_builds_its_batches_itself", "whose data comes late"),
        ("provoked_by_one_rank_whose_gpu_runs_at_a_lower_clock", "whose GPU runs at a lower clock"),
        ("provoked_by_one_rank_that_has_more_to_compute", "whose GPU takes longer for its kernels"),
    ],
)
def test_of_eight_ranks_the_late_one_is_named_with_what_holds_it_up(made, why):
    diagnosis = diagnose(Ranks(tuple(getattr(JOB, made)())))
    assert diagnosis.run.rank == LATE
    assert diagnosis.first.rule == "straggler"
    assert f"rank {LATE}, {why}" in diagnosis.verdict
    assert diagnosis.first.numbers["rank"] == LATE


def test_the_wait_of_the_others_is_exact_and_bounds_what_mending_saves():
    arrived = arrivals(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert (arrived.late, arrived.late_frac, arrived.steps, arrived.matched) == (LATE, 1.0, 4, 4)
    assert arrived.wait_ns == arrived.by_mending_ns == 30 * MS
    gain = finding("straggler", JOB.provoked_by_one_rank_that_builds_its_batches_itself()).gain
    assert gain.floor_ns == 70 * MS


def test_mending_one_of_two_late_ranks_saves_no_more_than_the_way_to_the_next():
    ranks = JOB.job(compute_ms=lambda rank, step: {3: 85, 5: 75}.get(rank, 60))
    arrived = arrivals(ranks)
    assert arrived.late == 3
    assert arrived.by_mending_ns == 10 * MS
    gain = finding("straggler", ranks).gain
    assert gain.best_ns == gain.step_ns - 10 * MS


def test_the_fix_is_that_of_the_late_rank_s_own_diagnosis_and_is_told_once():
    diagnosis = diagnose(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert diagnosis.first.fix.startswith(f"# on rank {LATE}:\n")
    assert "num_workers=" in diagnosis.first.fix
    assert "no_workers" not in [each.rule for each in diagnosis.findings]
    assert ("no_workers", "straggler") in [(each.finding.rule, each.by) for each in diagnosis.masked]


def test_on_a_rank_that_waits_the_wait_explains_its_communication():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    diagnosis = gpulab.diagnose(ranks[0], ranks)
    assert diagnosis.first.rule == "straggler"
    assert ("exposed_communication", "straggler") in [(each.finding.rule, each.by) for each in diagnosis.masked]
    assert diagnosis.first.shown_by.total_ns == 4 * 25 * MS


def test_when_the_others_wait_is_shown_on_the_late_rank_s_own_timeline():
    ranks = JOB.provoked_by_one_rank_that_builds_its_batches_itself()
    shown = finding("straggler", ranks).shown_by
    assert shown.start_ns.tolist() == [(100 * step + 60) * MS for step in range(1, 5)]
    assert shown.end_ns.tolist() == [(100 * step + 90) * MS for step in range(1, 5)]


def test_ranks_that_take_turns_in_being_late_are_told_as_waiting_for_whoever_is_last():
    ranks = JOB.spared_as_ranks_take_turns_in_being_late()
    told = finding("exposed_communication", ranks)
    assert any("25 ms of it is waiting for whichever of the 8 ranks" in sentence for sentence in told.evidence)


def test_a_network_that_is_slow_for_all_is_not_called_waiting():
    told = finding("exposed_communication", JOB.spared_as_the_network_is_slow_for_all())
    assert any("Hardly any of it is waiting" in sentence for sentence in told.evidence)


def test_random_jitter_makes_nobody_a_straggler():
    takes = np.random.default_rng(7).uniform(50, 80, (8, 8))
    ranks = JOB.job(compute_ms=lambda rank, step: float(takes[rank, step]))
    assert arrivals(ranks).wait_ns > 5 * MS  # they do wait, for somebody else in each step
    assert finding("straggler", ranks) is None


# Which collective is which.


def renumbered(run, **columns):
    rows = run.collective_rows
    return replace(run, collective_rows=rows.table.rows({**rows.columns, **columns}))


def test_sequence_numbers_match_ranks_whose_recordings_began_at_different_collectives():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    numbered = [renumbered(run, sequence=np.arange(6) + 40) for run in ranks]
    assert arrivals(numbered).late == LATE
    shifted = [renumbered(run, sequence=np.arange(6) + 40 + (rank == 5)) for rank, run in enumerate(ranks)]
    assert arrivals(shifted).matched == 3  # of the four interior ones, those that all of them recorded


def test_without_sequence_numbers_the_step_s_number_matches_them():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    first = ranks[0].event_rows

    def told_later(word):
        return word.replace("ProfilerStep#", "ProfilerStep#10") if word.startswith("ProfilerStep") else word

    from gpulab.rows import Words

    names = first.words("name")
    moved = Words(names.codes, tuple(map(told_later, names.vocabulary)))
    other = replace(ranks[0], event_rows=first.table.rows({**first.columns, "name": moved}))
    assert arrivals([other, *ranks[1:]]) is None


def test_a_group_of_some_ranks_only_is_not_compared_across_all():
    ranks = [
        renumbered(run, group_size=np.full(6, 4, np.int32))
        for run in JOB.provoked_by_one_rank_that_has_more_to_compute()
    ]
    assert arrivals(ranks) is None


def test_where_ranks_cannot_be_matched_it_is_not_judged_and_why_is_said():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    numbered = [renumbered(run, sequence=np.arange(6) + 100 * rank) for rank, run in enumerate(ranks)]
    unjudged = {each.rule: each for each in diagnose(numbered).unjudged}
    assert "cannot be matched" in unjudged["straggler"].why


def test_a_collective_that_two_streams_run_beside_each_other_is_matched_within_its_group():
    def job(rank):
        def step(at):
            late = 20 if rank == 1 else 0
            return [
                event(Kind.KERNEL, "gemm", at, 40 + late),
                collective("ncclAllReduce", at + 40 + late, 25 - late, moves=moving(10, group="a", size=2)),
                collective("ncclAllReduce", at + 70, 10, moves=moving(10, group="b", size=2), stream=22),
                event(Kind.KERNEL, "adam", at + 85, 10),
            ]

        return rank_of(stepped(step), rank, ranks=2)

    arrived = arrivals([job(0), job(1)])
    assert (arrived.late, arrived.matched, arrived.wait_ns) == (1, 8, 20 * MS)


@pytest.fixture
def a100(recorded):
    return gpulab.load(recorded("a100_ddp_8ranks_rank.json.gz"))


def late_by(run, by_ms):
    """The same rank, which arrives so much later at the longest collective of each step, which ends as before."""
    rows = run.event_rows
    start, dur = rows["start_ns"].copy(), rows["dur_ns"].copy()
    late = (rows["kind"] == Kind.COLLECTIVE) & (dur > (by_ms + 1) * MS)
    start[late] += by_ms * MS
    dur[late] -= by_ms * MS
    return replace(run, event_rows=rows.table.rows({**rows.columns, "start_ns": start, "dur_ns": dur})), int(late.sum())


def test_equal_copies_of_a_real_rank_arrive_together(a100):
    arrived = arrivals([replace(a100, rank=rank) for rank in range(4)])
    assert (arrived.steps, arrived.wait_ns, arrived.waits_ns) == (4, 0, (0, 0, 0, 0))
    assert arrived.matched == 40  # ten collectives a step, in four interior steps


def test_of_real_ranks_the_one_that_comes_late_is_found_and_by_how_much(a100):
    changed, count = late_by(a100, 3)
    ranks = [replace(a100, rank=0), replace(a100, rank=1), replace(changed, rank=2), replace(a100, rank=3)]
    arrived = arrivals(ranks)
    assert arrived.late == 2
    assert arrived.late_frac == 1.0
    assert count > 10
    assert 0 < arrived.wait_ns <= count * 3 * MS
    told = finding("straggler", ranks)
    assert told.numbers["rank"] == 2


# All ranks together.


def test_many_runs_are_diagnosed_by_the_first_where_nobody_is_waited_for():
    ranks = Ranks(tuple(JOB.spared_as_all_ranks_wait_for_their_data_alike()))
    diagnosis = gpulab.diagnose(ranks)
    assert diagnosis.run.rank == 0
    assert diagnosis.first.rule == "no_workers"
    assert diagnosis.first.evidence[-1] == "The same comes first on ranks 1-7."


def test_what_other_ranks_say_stands_beside_it():
    diagnosis = gpulab.diagnose(JOB.provoked_by_one_rank_that_builds_its_batches_itself())
    assert any(sentence.startswith("On ranks 0-2, 4-7, judged alone:") for sentence in diagnosis.first.evidence)


def test_a_report_takes_all_ranks():
    text = str(gpulab.report(Ranks(tuple(JOB.provoked_by_one_rank_that_builds_its_batches_itself()))))
    assert "The other 7 GPUs wait" in text
    assert f"This is rank {LATE}" in text


def test_of_several_traces_of_one_rank_the_first_is_taken():
    ranks = JOB.provoked_by_one_rank_that_has_more_to_compute()
    assert gpulab.diagnose([*ranks, *ranks]).first.rule == "straggler"


def test_one_run_in_a_folder_is_diagnosed_as_it_is_alone():
    run = JOB.provoked_by_one_rank_that_has_more_to_compute()[0]
    alone, among = gpulab.diagnose(run), gpulab.diagnose([run])
    assert [each.claim for each in alone.findings] == [each.claim for each in among.findings]
    assert alone.first.evidence == among.first.evidence


@pytest.mark.parametrize("what", [[], "trace.json", None, 7])
def test_what_is_no_run_is_refused_with_what_to_do(what):
    with pytest.raises(RunError, match="nothing to diagnose"):
        gpulab.diagnose(what)


# One process and several GPUs.


def test_data_parallel_is_replaced_by_one_process_a_gpu_with_its_share_of_the_batch():
    told = finding("data_parallel", DP.provoked_by_four_gpus_in_one_process())
    assert "--nproc-per-node=4" in told.fix
    assert "batch_size=8" in told.fix  # 32 over 4
    assert "net = DDP(net" in told.fix
    assert told.numbers["exposed_ns"] == 25 * MS


def test_data_parallel_that_costs_little_is_an_aside():
    told = finding("data_parallel", DP.provoked_even_where_it_costs_little())
    assert told.aside
    assert told.gain is None


def test_how_busy_each_gpu_was_is_measured_in_interior_steps():
    run = DP.provoked_by_four_gpus_in_one_process()
    found = steps(run)
    assert worked(run, found, ledger(run, found)) == ((0, 0.85), (1, 0.6), (2, 0.6), (3, 0.6))


def test_idle_gpus_beside_one_that_waits_itself_are_an_aside():
    assert not finding("idle_gpus", IDLE.provoked_by_one_gpu_of_four_that_works()).aside
    assert finding("idle_gpus", IDLE.provoked_by_one_gpu_of_two_that_works_a_little()).aside


def test_idle_gpus_are_the_verdict_where_the_one_that_works_is_simply_busy():
    def step(at):
        return [event(Kind.KERNEL, "gemm", at, 99.9)]

    run = replace(rank_of(stepped(step)), gpu_rows=IDLE.provoked_by_one_gpu_of_four_that_works().gpu_rows)
    assert diagnose(run).verdict == "3 of 4 GPUs do nothing while GPU 0 works."


def test_what_other_gpus_did_is_not_judged_from_a_trace_that_does_not_tell(recorded):
    unjudged = {each.rule for each in diagnose(gpulab.load(recorded("v100_resnet50_workers0.json.gz"))).unjudged}
    assert "idle_gpus" in unjudged
