"""Which prediction a comparison checks: that of the change which the settings of both runs show."""

import dataclasses
from pathlib import Path

import pytest

import gpulab
from gpulab.comparison import compare, measured_prediction
from gpulab.comparison.compared_prediction import ChangeEvidence
from gpulab.comparison.recorded_changes import RecordedChange, recorded_changes, unapplied_setting
from gpulab.rules import diagnose
from gpulab.run import Loader, Model, Optimizer
from gpulab.tables import SHAPES, EventKind
from gpulab.views.compare.comparison import comparison_view
from gpulab.views.sheet.sheet import Answer
from tests.support.runs.made_runs import NO_WORKERS, awaited, event, loader_call, mark, rows, run_of

DATASETS = Path(__file__).resolve().parents[2] / "recorded_runs"
FIX_WORKERS = 4  # of the first finding of loop(40)


def loop(wait_ms, loader=NO_WORKERS, **more):
    events, marks, at = [], [], 0.0
    for number in range(60):
        events.append(loader_call(at, wait_ms, workers=loader.workers))
        events += awaited("ampere_sgemm", at + wait_ms, 60, number=3 * number)
        marks.append(mark(at, wait_ms))
        at += wait_ms + 60
    return run_of(events, marks=marks, loaders=[loader], windows=[(at * 0.4, at * 0.9)], **more)


def with_workers(workers, **more):
    return dataclasses.replace(NO_WORKERS, workers=workers, **more)


@pytest.fixture(scope="module")
def before():
    return loop(40)


def rewrites_of(before, after):
    return [(change.setting, change.rewrites) for change in recorded_changes(diagnose(before), diagnose(after))]


def test_the_first_finding_of_the_loop_sets_the_number_of_workers(before):
    finding = diagnose(before).first
    assert (finding.rule, finding.rewrites) == ("no_workers", f"workers={FIX_WORKERS}")


def test_the_fix_of_a_finding_is_recognised_by_its_values(before):
    result = compare(before, loop(3, with_workers(FIX_WORKERS, persistent_workers=True)))
    assert result.prediction.evidence is ChangeEvidence.SETTINGS
    assert result.acted_on.rule == "no_workers"
    assert result.predicted == diagnose(before).first.gain
    assert measured_prediction(result).kind == "no_workers"


def test_another_value_is_predicted_by_its_what_if(before):
    result = compare(before, loop(3, with_workers(5)))
    assert result.acted_on is None
    assert result.prediction.rewrites == "workers=5"
    assert measured_prediction(result, result.prediction.rewrites).kind == "workers=5"
    assert "num_workers 0 -> 5" in str(comparison_view(result))


def test_two_values_are_predicted_together(before):
    result = compare(before, loop(3, with_workers(5, pin_memory=True)))
    unpinned = dataclasses.replace(before, loaders=(with_workers(0, pin_memory=False),))
    both = compare(unpinned, loop(3, with_workers(5, pin_memory=True)))
    assert [change.setting for change in result.prediction.settings] == ["num_workers"]  # the other was unknown before
    assert [change.rewrites for change in both.prediction.settings] == ["workers=5", "pin_memory"]


def test_a_fix_that_both_runs_lack_is_not_checked(before):
    result = compare(before, loop(20))
    assert result.predicted is None
    assert result.in_predicted_range is None
    assert measured_prediction(result) is None
    assert f"num_workers={FIX_WORKERS}" in result.prediction.refusal


def test_a_number_of_workers_in_the_advice_of_another_topic_is_an_alternative(before):
    finding, after = diagnose(before).first, loop(20)
    assert unapplied_setting(finding, after) == f"num_workers={FIX_WORKERS}"
    assert unapplied_setting(dataclasses.replace(finding, topic="host"), after) == ""
    assert unapplied_setting(finding, loop(20, with_workers(FIX_WORKERS))) == ""


def test_a_change_that_no_what_if_models_is_not_checked(before):
    photos = dataclasses.replace(before, loaders=(with_workers(0, dataset="Photos"),))
    result = compare(photos, loop(3, with_workers(0, dataset="Packed")))
    assert result.predicted is None
    assert "dataset Photos -> Packed" in result.prediction.refusal
    assert "No prediction to check" in str(comparison_view(result))


def test_another_remedy_of_a_finding_is_recognised_by_its_class():
    small = {"name": "loader", "dataset": "Photos", "batches": 60, "batch_bytes": 1000, "batch_size": 16}
    photos = loop(40, with_workers(0, **small))
    (cached,) = (remedy for remedy in diagnose(photos).first.alternatives if "Cached(" in remedy.fix)
    result = compare(photos, loop(1, with_workers(0, **{**small, "dataset": "Cached"})))
    assert result.prediction.evidence is ChangeEvidence.SETTINGS
    assert result.acted_on.label == cached.label
    assert result.predicted == cached.gain
    assert "No prediction to check" not in str(comparison_view(result))


def test_a_change_that_was_not_recorded_is_the_first_fix_if_its_finding_is_gone():
    # Of a trace, the number of workers is unknown.
    gone = compare(loop(40, Loader(workers=0)), loop(0, Loader()))
    assert gone.prediction.evidence is ChangeEvidence.RESOLVED
    assert gone.prediction.is_of_change


def test_a_prediction_that_may_be_about_another_change_is_no_miss():
    unknown = compare(loop(40, Loader(workers=0)), loop(30, Loader()))
    assert unknown.prediction.evidence is ChangeEvidence.NONE
    assert unknown.reasons == ()
    assert unknown.why == ""
    assert measured_prediction(unknown) is None
    assert "unknown" in str(comparison_view(unknown))


def test_settings_of_model_optimizer_and_pytorch_name_their_what_ifs(before):
    model, adam = Model(kind="Net", compiled=False, channels_last=False), Optimizer(kind="Adam")
    facts = {"float32_matmul_precision": "highest", "threads": "2"}
    one = dataclasses.replace(before, models=(model,), optimizers=(adam,), facts=facts)
    other = dataclasses.replace(
        before,
        models=(dataclasses.replace(model, compiled=True, channels_last=True),),
        optimizers=(dataclasses.replace(adam, fused=True),),
        facts={"float32_matmul_precision": "high", "threads": "1"},
    )
    assert rewrites_of(one, one) == []
    assert rewrites_of(one, other) == [
        ("torch.compile", "compile"),
        ("channels_last", "channels_last"),
        ("fused", "optimizer=fused"),
        ("threads", ""),
        ("float32_matmul_precision", "tf32"),
    ]
    assert {rewrites for _, rewrites in rewrites_of(other, one)} == {""}


def test_a_value_is_in_a_fix_only_as_a_whole(before):
    finding = dataclasses.replace(diagnose(before).first, fix="loader = DataLoader(data, num_workers=12)", advice="")
    assert RecordedChange("num_workers", "0", "12").is_in_fix_of(finding)
    assert not RecordedChange("num_workers", "0", "1").is_in_fix_of(finding)
    assert not RecordedChange("batch_size", "8", "12").is_in_fix_of(finding)


def test_an_invalid_comparison_says_nothing_about_its_prediction(before):
    short = run_of(
        [event for at in range(3) for event in (loader_call(at * 63, 3, 1), *awaited("k", at * 63 + 3, 60, number=at))],
        loaders=[with_workers(FIX_WORKERS)],
    )
    result = compare(before, short)
    assert not result.conclusive
    text = str(comparison_view(result))
    assert text.startswith("No verdict")
    assert "inside the predicted range" not in text
    assert "outside the predicted range" not in text


def test_half_precision_shows_in_the_types_of_matrix_operators(before):
    def typed(dtype):
        operators = [event(EventKind.OP, "aten::mm", 10 * number, 5) for number in range(4)]
        shapes = [
            {"event": number, "shapes": "[[8,8],[8,8]]", "dtypes": f'["{dtype}","{dtype}"]'} for number in range(4)
        ]
        return run_of(operators, shape_rows=rows(SHAPES, shapes))

    single, half = typed("float"), typed("c10::BFloat16")
    assert rewrites_of(single, half) == [("dtype of matrix products", "amp=bf16")]
    assert rewrites_of(half, single) == rewrites_of(single, single) == []


@pytest.mark.parametrize(
    ("case", "setting"), [("case01", "num_workers"), ("case06", "num_workers"), ("case08", "fused")]
)
def test_recorded_pairs_show_which_change_was_made(case, setting):
    folder = DATASETS / case
    one, other = gpulab.load(folder / "run.gpulab"), gpulab.load(folder / "fixed.gpulab")
    result = compare(one, other)
    assert [change.setting for change in result.prediction.settings] == [setting]
    assert result.acted_on is result.before.first
    assert result.in_predicted_range


def claim_of(compared):
    return next(block.claim for block in comparison_view(compared).sheet.blocks if isinstance(block, Answer))


def test_the_speed_for_the_same_work_stands_beside_the_step_times_if_a_step_does_more_work(before):
    gain = dataclasses.replace(diagnose(before).first.gain, work_ratio=2.0)
    twice = compare(before, loop(140), predicted=gain)  # 200 ms instead of 100 ms
    assert twice.ratio == pytest.approx(0.5)
    assert claim_of(twice).startswith("Slower")
    assert "the same work is done as fast as before" in claim_of(twice)
    assert "the same work is done 2.00x as fast" in claim_of(compare(before, loop(40), predicted=gain))
    assert "the same work" not in claim_of(compare(before, loop(140), predicted=diagnose(before).first.gain))
