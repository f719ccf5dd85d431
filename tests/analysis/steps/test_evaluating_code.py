"""Evaluations without a DataLoader: between updates, by samples of the main thread, with recorded forward passes."""

import json
from dataclasses import replace

import numpy as np
import pytest

from gpulab.analysis.steps.phase_ledger import phase_ledger
from gpulab.analysis.steps.phases import PhaseKind, code_evaluations, find_phases, loop_phases, training_share
from gpulab.cli.summary import summary_json
from gpulab.phase_names import EVAL_MODE
from gpulab.rules import diagnose
from gpulab.run import RepeatedInputs
from gpulab.run_summary import summary
from gpulab.tables import HOST_SAMPLES, MARKS, MarkKind
from tests.cases.data.slow_evaluation.case import evaluated
from tests.cases.steps.frequent_evaluation.case import STEP_MS, estimated
from tests.support.runs.made_runs import MS, NO_WORKERS, host_sample, mark, rows

THREE = 3 * 300 * MS


def test_evaluations_lie_between_updates_that_are_further_apart_than_usual():
    code = code_evaluations(estimated())
    assert code.function == "estimate_loss"
    assert code.spans.total_ns == THREE
    assert [int(at) for at in code.spans.start_ns] == [200 * MS, 700 * MS, 1200 * MS]


def test_forward_passes_without_a_backward_pass_are_counted_where_they_were_recorded():
    recorded = code_evaluations(estimated()).recorded
    assert (recorded.calls, recorded.passes) == (30, 30)
    assert code_evaluations(estimated(recorded=False)).recorded is None


def test_the_eval_mode_of_the_models_is_evidence_without_a_name():
    code = code_evaluations(estimated(word=EVAL_MODE))
    assert (code.function, code.spans.total_ns) == ("", THREE)


def test_training_evaluations_and_other_code_partition_the_run():
    run = estimated(pauses=[(450, 500)])
    phases = {phase.kind: phase for phase in loop_phases(run)}
    assert sum(phase.total_ns for phase in phases.values()) == run.span_ns
    assert phases[PhaseKind.EVALUATION].times == phases[PhaseKind.EVALUATION].occurrences == 3
    assert phases[PhaseKind.TRAINING].updates == 40


@pytest.mark.parametrize(
    "arguments",
    [
        {"training_word": "estimate_loss"},
        {"ran": "aten::randperm"},
        {"word": None},
        {"evaluation_ms": 0.0},
        {"every": 100},
    ],
)
def test_code_that_tells_nothing_apart_from_training_is_no_evaluation(arguments):
    assert code_evaluations(estimated(**arguments)) is None


def test_evaluations_shorter_than_the_distance_of_samples_are_completed_by_those_as_long():
    """Twenty samples a second do not meet each evaluation of 45 ms."""
    code = code_evaluations(estimated(every=2, evaluation_ms=45.0, sample_ms=107.0))
    assert len(code.spans.start_ns) == 19
    assert code.spans.total_ns == pytest.approx(19 * 45 * MS, rel=0.05)


@pytest.mark.parametrize(("word", "count"), [(EVAL_MODE, 3), ("test", 4)])
def test_after_the_last_update_only_a_function_counts(word, count):
    samples = [*dicts_of_samples(estimated()), *(host_sample(at, evaluation=word) for at in range(1720, 2600, 50))]
    longer = replace(estimated(), span_ns=2600 * MS, host_rows=rows(HOST_SAMPLES, samples))
    assert len(code_evaluations(longer).spans.start_ns) == count


@pytest.mark.parametrize(("loop_end_ms", "count"), [(2200, 4), (1650, 3)])
def test_after_the_last_update_the_eval_mode_counts_until_the_dataloader_has_no_more_batches(loop_end_ms, count):
    run = estimated()
    samples = [*dicts_of_samples(run), *(host_sample(at, evaluation=EVAL_MODE) for at in range(1720, 2200, 50))]
    updates = [mark(end_ns / MS - 1, 1, kind=MarkKind.OPTIMIZER) for end_ns in run.mark_rows["end_ns"].tolist()]
    calls = [mark(1, 1), mark(loop_end_ms - 1, 1, yielded=False)]
    longer = replace(
        run,
        span_ns=2600 * MS,
        host_rows=rows(HOST_SAMPLES, samples),
        mark_rows=rows(MARKS, [*updates, *calls]),
        loaders=(NO_WORKERS,),
    )
    spans = code_evaluations(longer).spans
    assert len(spans.start_ns) == count
    assert spans.end_ns[-1] <= loop_end_ms * MS


def dicts_of_samples(run):
    words = run.host_rows.text("evaluation").to_list()
    return [host_sample(at / MS, evaluation=word) for at, word in zip(run.host_rows["at_ns"], words, strict=True)]


def test_an_evaluation_with_a_dataloader_is_counted_once():
    samples = [host_sample(at, evaluation="validate") for at in range(205, 400, 20)]
    run = replace(evaluated(fetch_ms=1.0, compute_ms=20.0), host_rows=rows(HOST_SAMPLES, samples))
    assert code_evaluations(run) is None


@pytest.mark.parametrize(("recorded", "confidence"), [(True, "likely"), (False, "suspect")])
def test_the_finding_is_likely_if_forward_passes_were_recorded(recorded, confidence):
    (finding,) = (f for f in diagnose(estimated(recorded=recorded)).findings if f.rule == "frequent_evaluation")
    assert finding.confidence == confidence
    assert finding.numbers["passes"] == 3
    assert "estimate_loss()" in finding.claim
    step_ns = (THREE + 40 * STEP_MS * MS) / 40
    assert finding.gain.step_ns == pytest.approx(step_ns, rel=0.02)
    assert finding.gain.floor_ns == pytest.approx(STEP_MS * MS, rel=0.02)


def test_steps_with_an_evaluation_are_no_stalls():
    run = estimated(every=8, evaluation_ms=60.0)
    assert "periodic_stalls" not in {finding.rule for finding in diagnose(run).findings}


def test_the_ledger_of_a_phase_partitions_its_recorded_time_exactly():
    phases = {phase.kind: phase for phase in find_phases(estimated())}
    evaluation = phase_ledger(estimated(), phases[PhaseKind.EVALUATION])
    assert evaluation.recorded_ns == 300 * MS
    assert sum(int(part.sum()) for part in evaluation.ledger.part_ns.values()) == evaluation.recorded_ns
    assert evaluation.ledger.part_ns["compute"].sum() == 30 * 8 * MS
    label, share = evaluation.largest
    assert (label, share) == (evaluation.ledger.label("compute"), pytest.approx(0.8))


def test_a_phase_without_recorded_events_has_no_ledger():
    run = estimated(recorded=False)
    assert all(phase_ledger(run, phase) is None for phase in find_phases(run))
    assert not np.any(run.event_rows["kind"])


def test_summaries_have_the_share_of_training_and_evaluations_and_the_ledger_of_each_phase():
    diagnosis = diagnose(estimated())
    phases = {phase["kind"]: phase for phase in json.loads(summary_json(diagnosis))["phases"]}
    assert sum(phase["time_s"] for phase in phases.values()) == pytest.approx(diagnosis.run.span_ns / 1e9)
    evaluation, training = phases["evaluation"], phases["training"]
    assert (evaluation["evaluated_by"], evaluation["times"]) == ("estimate_loss", 3)
    assert sum(evaluation["ledger_ms"].values()) == pytest.approx(1e3 * evaluation["recorded_s"])
    fields = summary(diagnosis)
    assert fields["evaluation_frac"] == evaluation["share"]
    assert fields["training_frac"] == training["share"]
    unrecorded = json.loads(summary_json(diagnose(estimated(recorded=False))))["phases"]
    assert {phase["ledger_ms"] for phase in unrecorded} == {None}
    assert "evaluation_frac" not in summary(diagnose(estimated(evaluation_ms=0.0)))


@pytest.mark.parametrize(("evaluation_ms", "is_informative_only"), [(300.0, False), (900.0, True)])
def test_what_a_training_step_gains_is_weighed_by_the_share_of_the_training(evaluation_ms, is_informative_only):
    again = RepeatedInputs(kind="Net", name="net", calls=1, step_frac=0.13)
    run = replace(estimated(evaluation_ms=evaluation_ms), repeated_inputs=(again,))
    finding = next(finding for finding in diagnose(run).findings if finding.rule == "repeated_inputs")
    assert finding.informs_only == is_informative_only


def test_the_share_of_the_training_is_one_without_evaluations():
    assert training_share(estimated(evaluation_ms=0.0)) == 1.0
    assert training_share(estimated()) == pytest.approx(800 / 1700, abs=0.05)
