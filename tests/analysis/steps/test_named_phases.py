"""Phases that the program names: they partition the run, and batches of an evaluation are no training steps."""

import random
from dataclasses import replace

import numpy as np
import pytest

from gpulab.analysis.data.training_loader import training_loader_index
from gpulab.analysis.events.named_phases import loop_marks, phase_spans
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.phases import PhaseKind, find_phases, loop_phases
from gpulab.intervals import intersect
from gpulab.phase_names import means_evaluation, means_training
from gpulab.rules import diagnose
from gpulab.run import Loader
from gpulab.tables import PHASES, MarkKind
from gpulab.views.report.phase_table import run_phases
from tests.cases.data.slow_evaluation.case import evaluated
from tests.support.runs.made_runs import MS, mark, rows, run_of

LOADERS = [Loader(name="train_loader"), Loader(name="val_loader")]


def named(*phases):
    return rows(PHASES, [{"name": name, "start_ns": round(a * MS), "end_ns": round(b * MS)} for name, a, b in phases])


def batches(count, start_ms, *, updates=True, **settings):
    """Calls of a DataLoader every 10 ms, with an update after each batch."""
    marks = []
    for at in (start_ms + 10.0 * number for number in range(count)):
        marks.append(mark(at, 1.0, **settings))
        marks += [mark(at + 9.0, 0.0, kind=MarkKind.OPTIMIZER)] if updates else []
    return [*marks, mark(start_ms + 10.0 * count, 0.1, yielded=False, **settings)]


def shares(run):
    """Milliseconds of each phase by its name, or its kind without one."""
    return {phase.name or phase.kind.value: phase.total_ns / MS for phase in find_phases(run)}


def test_time_counts_for_the_innermost_phase():
    phases = named(("outer", 0, 100), ("inner", 20, 50), ("innermost", 30, 40), ("inner", 60, 70))
    run = run_of(marks=batches(9, 10.0), phase_rows=phases, windows=[])
    ms = {name: spans.total_ns / MS for name, spans in phase_spans(run).items()}
    assert ms == {"outer": 60.0, "inner": 30.0, "innermost": 10.0}


@pytest.mark.parametrize("seed", range(20))
def test_at_each_instant_the_phase_that_began_last_counts(seed):
    dice = random.Random(seed)
    ranges = [(dice.choice("abc"), start, start + dice.randrange(0, 40)) for start in dice.sample(range(100), 12)]
    run = run_of(marks=[mark(0, 120)], phase_rows=named(*ranges), windows=[])
    expected = dict.fromkeys("abc", 0)
    for at in range(120):
        running = [(start, name) for name, start, end in ranges if start <= at < end]
        if running:
            expected[max(running)[1]] += MS
    spans = phase_spans(run)
    assert {name: spans[name].total_ns for name in spans} == {name: expected[name] for name in spans}


@pytest.mark.parametrize("seed", range(20))
def test_named_phases_partition_the_run_exactly(seed):
    dice = random.Random(seed)
    marks = batches(20, 5.0) + batches(6, 300.0, loader=1, updates=False) + batches(20, 400.0, epoch=1)
    names = ("training", "train more", "validation", "generation", "sanity check")
    ranges = [(dice.choice(names), at := dice.uniform(-50, 600), at + dice.uniform(0, 200)) for _ in range(8)]
    run = run_of(marks=marks, loaders=LOADERS, phase_rows=named(*ranges), windows=[], pauses=[(100, 120), (320, 330)])
    for phases in (find_phases(run), loop_phases(run)):
        assert sum(phase.total_ns for phase in phases) == run.span_ns
        for index, phase in enumerate(phases):
            assert 0 <= phase.waiting_ns <= phase.total_ns
            assert not any(intersect(phase.spans, other.spans).total_ns for other in phases[index + 1 :])
    assert sum(phase.updates for phase in find_phases(run)) <= 40


def test_the_batches_of_a_named_validation_are_no_steps_where_no_optimizer_is_seen():
    """As with an optimizer that is no torch.optim.Optimizer: the DataLoader with more batches would be trained on."""
    training, validation = batches(10, 0.0, updates=False), batches(30, 110.0, loader=1, updates=False)
    unnamed = run_of(marks=training + validation, loaders=LOADERS, windows=[])
    run = run_of(marks=training + validation, loaders=LOADERS, windows=[], phase_rows=named(("validation", 105, 415)))
    assert len(find_steps(unnamed)) == 30
    assert len(find_steps(run)) == 10
    assert training_loader_index(loop_marks(run)) == 0


def test_a_validation_over_the_training_data_is_no_training():
    marks = batches(10, 0.0) + batches(10, 110.0, epoch=1, updates=False) + batches(10, 220.0, epoch=2)
    run = run_of(marks=marks, loaders=LOADERS, windows=[], phase_rows=named(("validation", 105, 215)))
    phases = {phase.name or phase.kind.value: phase for phase in find_phases(run)}
    assert (phases["validation"].batches, phases["validation"].passes) == (10, 1)
    assert (phases["training"].batches, phases["training"].updates) == (20, 20)
    assert len(find_steps(run)) == 20


def test_a_program_that_only_evaluates_has_steps_also_if_it_looked_at_a_batch_before():
    marks = [mark(0.0, 5.0), *batches(12, 20.0, loader=1, updates=False)]
    run = run_of(marks=marks, loaders=LOADERS, windows=[], phase_rows=named(("prediction", 15, 150)))
    assert len(find_steps(run)) == 12


def test_a_phase_within_the_steps_is_listed_and_changes_neither_steps_nor_the_phases_of_the_rules():
    marks = batches(20, 0.0) + batches(5, 250.0, loader=1, updates=False)
    parts = [
        (name, 10.0 * step + a, 10.0 * step + b)
        for step in range(20)
        for name, a, b in (("load the batch", 0, 1.5), ("update", 8, 9.5))
    ]
    plain = run_of(marks=marks, loaders=LOADERS, windows=[])
    run = run_of(marks=marks, loaders=LOADERS, windows=[], phase_rows=named(*parts))
    assert np.array_equal(find_steps(run).start_ns, find_steps(plain).start_ns)
    for one, other in zip(loop_phases(run), loop_phases(plain), strict=True):
        assert (one.kind, one.total_ns, one.updates, one.batches) == (
            other.kind,
            other.total_ns,
            other.updates,
            other.batches,
        )
    table = {row.cells[0]: row.cells[3] for row in run_phases(run, find_phases(run)).rows}
    assert table["load the batch"] == "20 batches"
    assert table["update"] == "20 updates"
    assert shares(run)["update"] == pytest.approx(30.0)


def test_one_named_training_is_the_training_and_several_are_listed():
    marks = batches(10, 20.0) + batches(10, 150.0, epoch=1)
    one = run_of(marks=marks, loaders=LOADERS, windows=[], phase_rows=named(("training", 10, 260)))
    assert shares(one)["training"] == pytest.approx(240.1 + 0.0, abs=1)
    two = run_of(
        marks=marks, loaders=LOADERS, windows=[], phase_rows=named(("train a", 10, 130), ("train b", 140, 260))
    )
    phases = {phase.name: phase for phase in find_phases(two) if phase.name}
    assert {name: (phase.kind, phase.updates, phase.batches) for name, phase in phases.items()} == {
        "train a": (PhaseKind.PART, 10, 10),
        "train b": (PhaseKind.PART, 10, 10),
    }


def test_the_table_lists_every_named_phase_with_its_share_and_escapes_its_name():
    marks = batches(100, 0.0)
    run = run_of(marks=marks, windows=[], loaders=LOADERS, phase_rows=named(("write\x1b[31m logs", 500, 510)))
    table = run_phases(run, find_phases(run))
    (row,) = (row for row in table.rows if row.cells[0].startswith("write"))
    assert "\x1b" not in row.cells[0]
    assert (row.cells[2], row.cells[3]) == ("1.0 %", "1 update, 1 batch")


def test_of_very_many_names_the_longest_are_listed_and_the_table_says_so():
    """As in a program that names every step."""
    marks = batches(2000, 0.0)
    ranges = [(f"step {number}", 10.0 * number, 10.0 * number + (9 if number < 5 else 2)) for number in range(2000)]
    run = run_of(marks=marks, loaders=LOADERS, phase_rows=named(*ranges), windows=[])
    assert sum(phase.total_ns for phase in find_phases(run)) == run.span_ns
    table = run_phases(run, find_phases(run))
    labels = [row.cells[0] for row in table.rows]
    assert {f"step {number}" for number in range(5)} <= set(labels)
    assert len(labels) < 30
    assert "2,000 phases" in table.caption


def test_a_rule_about_evaluations_judges_named_ones_alike():
    plain = evaluated()
    ends = [(200.1 + 452.0 * epoch, 200.1 + 452.0 * epoch + 251.5) for epoch in range(5)]
    run = replace(plain, phase_rows=named(*(("validation", start, end) for start, end in ends)))
    findings = [next(each for each in diagnose(one).findings if each.rule == "slow_evaluation") for one in (plain, run)]
    assert findings[1].numbers["frac"] == pytest.approx(findings[0].numbers["frac"], rel=0.02)
    (phase,) = (phase for phase in find_phases(run) if phase.name)
    assert (phase.batches, phase.passes, phase.loader, phase.times) == (50, 5, 1, 5)
    assert len(find_steps(run)) == len(find_steps(plain))


@pytest.mark.parametrize(
    "name",
    [
        "validation",
        "Validate",
        "val",
        "eval_loop",
        "sanity check",
        "test",
        "tests of A",
        "prediction",
        "inference",
        "on the val set",
    ],
)
def test_names_of_evaluations(name):
    assert means_evaluation(name)
    assert not means_training(name)


@pytest.mark.parametrize("name", ["training", "train", "fit", "train on the validation data"])
def test_names_of_trainings(name):
    assert means_training(name)
    assert not means_evaluation(name)


@pytest.mark.parametrize("name", ["generation", "checkpoint", "latest", "interval", "value function", "fitness", ""])
def test_other_names(name):
    assert not means_training(name)
    assert not means_evaluation(name)
