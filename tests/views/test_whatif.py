"""A prediction is told with range, bound and grade; a survey says what would help and what cannot be told."""

import re
from dataclasses import replace

import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.tables import EventKind
from tests.support.runs.made_runs import NO_WORKERS, event, loader_call, mark, run_of
from tests.support.runs.simulated_machine import Call, run_like


@pytest.fixture(scope="module")
def loading():
    """A run on a CPU whose main process builds the batches."""
    events, marks, at = [], [], 0.0
    for _ in range(60):
        events += [loader_call(at, 30.0), event(EventKind.OP, "aten::mm", at + 30.5, 19.0)]
        marks.append(mark(at, 30.0, cpu_ms=3.0))
        at += 50.0
    return run_of(events, marks=marks, loaders=[NO_WORKERS], windows=[(at * 0.4, at * 0.9)])


@pytest.fixture(scope="module")
def on_a_gpu():
    loop = [Call(loads_us=900.0), *[Call(host_us=20.0, kernel_us=40.0)] * 30, Call(waits=True), Call(host_us=400.0)]
    return run_like(loop, steps=10)


def test_the_first_sentence_names_the_changes_and_the_step_before_and_after(loading):
    text = str(loading.whatif("workers=4")).splitlines()[0]
    assert re.match(r"With workers=4.* [\d.]+ ms .*50\.0 ms: [\d.]+x as fast\.", text)


def test_range_bound_and_grade_are_shown_together(loading):
    text = " ".join(str(loading.whatif("workers=4")).split())
    assert re.search(r"Predicted step time: 50.0 -> [\d.]+-[\d.]+ ms \([\d.]+-[\d.]+x\)", text)
    bound = r"Upper bound: [\d.]+x with data loading at no cost, if the rest of the step gets faster[^:]*"
    assert re.search(rf"{bound} Grade of the prediction: B \(A is best, D is worst\):", text)


def test_the_speed_up_of_a_larger_batch_is_per_sample(loading):
    text = " ".join(str(loading.whatif("batch=x2")).split())
    assert re.search(r"for 2\.00x the samples instead of [^:]*: [\d.]+x as fast per sample\.", text)
    assert re.search(r"ms for 2\.00x the samples \([\d.]+-[\d.]+x per sample\)", text)
    assert "per sample" not in str(loading.whatif("workers=4"))


def test_grades_are_explained_wherever_they_are_shown(loading):
    for text in (str(loading.whatif()), str(loading.whatif("workers=4")), str(loading.whatif("workers=4 batch=x2"))):
        assert re.search(r"A[\s(]+(best|is best)", text)
        for grade in set(re.findall(r"x +([A-D])$", text, re.MULTILINE)):
            assert f"{grade} (" in text


def test_every_change_is_explained_in_the_list_of_all(loading):
    text = " ".join(str(loading.whatif()).split())
    assert [rewrite.name for rewrite in REWRITES if not re.search(rf"\b{rewrite.name}(=\S+)?(, \w+)*: ", text)] == []


def test_changes_made_together_are_also_predicted_alone(on_a_gpu):
    text = str(on_a_gpu.whatif("free_input instant_gpu"))
    assert "Each change alone" in text
    assert re.search(r"^ +together ", text, re.MULTILINE)
    assert "Each change alone" not in str(on_a_gpu.whatif("instant_gpu"))


def test_the_predicted_step_is_shown_below_the_recorded_step(on_a_gpu):
    text = str(on_a_gpu.whatif("instant_gpu"))
    assert "One step, recorded and predicted" in text
    assert "critical path" in text.lower()


def test_without_changes_all_predictions_are_listed_largest_first(loading):
    text = str(loading.whatif())
    gains = [float(ratio) for ratio in re.findall(r"^\s*\S+ +[\d.]+ +[\d.]+-[\d.]+ +([\d.]+)x", text, re.MULTILINE)]
    assert len(gains) >= 2
    assert gains == sorted(gains, reverse=True)
    assert "workers" in text
    assert "Cannot be predicted from this run" in text


def test_the_method_of_the_prediction_is_shown(on_a_gpu):
    text = str(on_a_gpu.whatif("instant_gpu"))
    for part in ("Replay error:", "Typical delays:", "Unexplained GPU waits:", "Range:", "%gpuwhy instant_gpu"):
        assert part in text


def test_as_html_it_is_static_and_escaped(on_a_gpu, tmp_path):
    fields = {name: getattr(on_a_gpu, name) for name in on_a_gpu.__dataclass_fields__}
    run = on_a_gpu.__class__(**{**fields, "name": "<script>alert(1)</script>"})
    path = tmp_path / "whatif.html"
    run.whatif("instant_gpu").save(path)
    page = path.read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert all(what.startswith("data:") for what in re.findall(r'(?:src|href)="([^"]*)', page))
    assert "<script" not in page


def test_a_run_of_sensors_alone_says_what_to_record():
    run = run_of((), marks=[mark(at, 1.0) for at in range(0, 200, 10)], loaders=[NO_WORKERS], windows=[])
    with pytest.raises(RunError, match="cannot be used for predictions") as error:
        gpulab.whatif(run)
    assert "%%gpuprofile" in error.value.fix


def test_a_finding_says_how_to_ask_for_its_change_with_others(recorded):
    run = gpulab.load(recorded("v100_ns_resolution.json.gz"))
    assert 'gpulab.whatif(RUN, "amp=fp16, CHANGE, ...")' in str(gpulab.report(run))


def test_a_run_that_the_magics_find_by_name_is_asked_for_by_name(recorded, monkeypatch):
    run = replace(gpulab.load(recorded("v100_ns_resolution.json.gz")), name="case 2")
    monkeypatch.setitem(gpulab.runs._runs, run.name, run)
    monkeypatch.setattr("IPython.get_ipython", object)
    assert '%gpuwhatif "case 2" amp=fp16 CHANGE ...' in " ".join(str(gpulab.report(run)).split())
    monkeypatch.setattr("IPython.get_ipython", lambda: None)  # as in a script
    assert "gpulab.whatif(gpulab.runs['case 2'], \"amp=fp16, CHANGE, ...\")" in " ".join(
        str(gpulab.report(run)).split()
    )


def test_the_run_as_predicted_can_be_reported_and_says_that_it_is_a_prediction(on_a_gpu):
    text = on_a_gpu.whatif("instant_gpu")
    assert gpulab.diagnose(text.run).steps.step_ns == pytest.approx(text.prediction.likely_ns, rel=0.03)
    assert "predicted from a run" in str(gpulab.report(text.run))
