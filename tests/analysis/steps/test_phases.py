"""Phases partition a run: training, evaluations by their DataLoader, pauses of the profiler, other code."""

import random

import pytest

from gpulab.analysis.steps.phases import PhaseKind, find_phases, training_steps
from gpulab.intervals import intersect
from gpulab.rules import diagnose
from gpulab.run import Loader
from gpulab.tables import MarkKind
from tests.cases.data.slow_evaluation.case import evaluated
from tests.support.runs.made_runs import MS, mark, run_of


def by_kind(run):
    return {phase.kind: phase for phase in find_phases(run)}


def updated(at_ms):
    return mark(at_ms, 0.0, kind=MarkKind.OPTIMIZER)


def test_an_evaluation_after_each_epoch_is_a_phase():
    phases = by_kind(evaluated(fetch_ms=20.0, compute_ms=5.0))
    training, evaluation = phases[PhaseKind.TRAINING], phases[PhaseKind.EVALUATION]
    assert (training.updates, training.batches, training.passes) == (100, 100, 5)
    assert (evaluation.batches, evaluation.passes, evaluation.loader) == (50, 5, 1)
    assert training.total_ns == pytest.approx(5 * 200 * MS, rel=0.01)
    assert evaluation.total_ns == pytest.approx(5 * 250 * MS, rel=0.01)
    assert evaluation.waiting_frac == pytest.approx(0.8, abs=0.01)
    assert training.waiting_frac == pytest.approx(0.1, abs=0.01)


def test_an_evaluation_within_an_epoch_is_no_training():
    marks = []
    for step in range(40):
        at = 10.0 * step + (50.0 if step >= 20 else 0.0)
        marks += [mark(at, 1.0), updated(at + 9.0)]
    marks += [mark(200.0 + 10 * n, 5.0, loader=1) for n in range(4)] + [mark(240.0, 0.1, loader=1, yielded=False)]
    marks.append(mark(450.0, 0.1, yielded=False))
    marks.sort(key=lambda row: row["start_ns"])
    phases = by_kind(run_of(marks=marks, loaders=[Loader(), Loader()], windows=[]))
    assert phases[PhaseKind.EVALUATION].total_ns == pytest.approx(40 * MS, abs=MS)
    assert phases[PhaseKind.TRAINING].total_ns == pytest.approx(410 * MS, abs=MS)


def test_a_loop_without_a_dataloader_is_training_from_its_first_step_to_its_last_update():
    phases = by_kind(run_of(marks=[updated(100.0 + 10 * n) for n in range(11)], windows=[]))
    assert phases[PhaseKind.TRAINING].total_ns == 110 * MS
    assert phases[PhaseKind.TRAINING].batches == 0


def test_two_loaders_that_are_trained_on_together_are_one_phase():
    marks = []
    for step in range(20):
        at = 10.0 * step
        marks += [mark(at, 1.0), mark(at + 1.0, 1.0, loader=1), updated(at + 9.0)]
    phases = by_kind(run_of(marks=marks, loaders=[Loader(), Loader()], windows=[]))
    assert PhaseKind.EVALUATION not in phases
    assert phases[PhaseKind.TRAINING].batches == 40


def test_a_run_without_updates_has_passes_and_no_training():
    phases = by_kind(run_of(marks=[mark(10.0 * n, 1.0) for n in range(20)], loaders=[Loader()], windows=[]))
    assert PhaseKind.TRAINING not in phases
    assert phases[PhaseKind.PASSES].batches == 20


def test_a_batch_taken_to_look_at_it_is_no_evaluation():
    marks = [
        mark(0.0, 30.0, loader=1),
        *(row for n in range(20) for row in (mark(50 + 10 * n, 1), updated(59 + 10 * n))),
    ]
    phases = by_kind(run_of(marks=marks, loaders=[Loader(), Loader()], windows=[]))
    assert PhaseKind.EVALUATION not in phases


def test_a_program_with_a_dataloader_for_each_client_has_one_evaluation():
    marks, at = [], 0.0
    for client in range(12):
        for _ in range(10):
            marks += [mark(at, 1.0, epoch=client), updated(at + 9.0)]
            at += 10.0
        marks.append(mark(at, 0.1, epoch=client, yielded=False))
        marks += [mark(at + 1 + 5 * n, 1.0, loader=1 + client) for n in range(3)]
        marks.append(mark(at + 16, 0.1, loader=1 + client, yielded=False))
        at += 20.0
    loaders = [Loader(name="train_loader"), *(Loader(name="self.testloader") for _ in range(12))]
    (evaluation,) = (
        phase
        for phase in find_phases(run_of(marks=marks, loaders=loaders, windows=[]))
        if phase.kind is PhaseKind.EVALUATION
    )
    assert (evaluation.passes, evaluation.batches) == (12, 36)
    assert evaluation.total_ns == pytest.approx(12 * 15.1 * MS, rel=0.01)


def test_optimizers_that_take_turns_step_once_in_each_training_step():
    critic_twice = [0, 1, 0, 0, 1, 0] * 5
    marks = [{**updated(10.0 * n), "optimizer": number} for n, number in enumerate(critic_twice)]
    run = run_of(marks=marks, windows=[])
    (training,) = (phase for phase in find_phases(run) if phase.kind is PhaseKind.TRAINING)
    assert (training.updates, training_steps(run, training)) == (30, 20)


def test_a_run_without_marks_has_no_phases():
    assert find_phases(run_of(windows=[])) == ()


@pytest.mark.parametrize("seed", range(30))
def test_phases_partition_the_run_exactly(seed):
    dice = random.Random(seed)
    marks, at = [], dice.uniform(0, 50)
    for _ in range(dice.randrange(1, 200)):
        loader, epoch = dice.randrange(3), dice.randrange(3)
        marks.append(mark(at, took := dice.uniform(0, 8), loader=loader, epoch=epoch, yielded=dice.random() < 0.95))
        at += took + dice.uniform(0, 5)
        if dice.random() < 0.3:
            marks.append(updated(at))
    pauses = sorted((start, start + 20) for start in (dice.uniform(0, at) for _ in range(3)))
    run = run_of(marks=marks, loaders=[Loader()] * 3, windows=[], pauses=pauses)
    phases = find_phases(run)
    assert sum(phase.total_ns for phase in phases) == run.span_ns
    for index, phase in enumerate(phases):
        assert 0 <= phase.waiting_ns <= phase.total_ns
        assert not any(intersect(phase.spans, other.spans).total_ns for other in phases[index + 1 :])


def test_leaving_out_two_of_three_evaluations_is_within_the_predicted_range():
    often = evaluated(fetch_ms=1.0, compute_ms=20.0)  # 5 passes of 210 ms, and 100 steps of 10 ms
    (finding,) = (each for each in diagnose(often).findings if each.rule == "frequent_evaluation")
    before_ms, after_ms = 1000 + 5 * 210, 1000 + 5 * 210 / 3
    assert finding.gain.step_ns == pytest.approx(before_ms / 100 * 1e6, rel=0.02)
    assert finding.gain.best_ns <= after_ms / 100 * 1e6 * 1.02
    assert finding.gain.worst_ns >= after_ms / 100 * 1e6
    assert finding.gain.floor_ns == pytest.approx(10e6, rel=0.02)
