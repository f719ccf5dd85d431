"""Every change that can be predicted keeps the laws of predictions, alone and with others, on made and real runs."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import gpulab
from gpulab.errors import RunError
from gpulab.questions import predict as asked
from gpulab.questions import prepare_scene
from gpulab.replay import parsing
from gpulab.replay.prediction import predict, refusal_reason
from gpulab.replay.rewrite import GRADES, MIDDLE, Change, Draw
from gpulab.replay.rewrites.catalogue import REWRITES
from gpulab.replay.sweep import sweep
from gpulab.rules import diagnose
from gpulab.tables import EventKind
from gpulab.views.rule_page import page as rule_page
from tests.support.runs.made_runs import NO_WORKERS, event, loader_call, mark, run_of
from tests.support.runs.simulated_machine import Call, run_like

TRACES = (
    "v100_resnet50_workers0",
    "v100_resnet50_workers4",
    "v100_ns_resolution",
    "h100_timesformer_inference",
    "h100_bert_small_inference",
    "b200_eager",
)
NAMES = [rewrite.name for rewrite in REWRITES]
# Ends of steps never come later for a lower cost; a step is the difference of two ends, and the median of several.
SLACK = 1.001
# What a number means in these: more of it is more of the change.
VALUES = {
    "batch": 4.0,
    "accumulate": 4,
    "gpu": "h100",
    "workers": 4,
    "bucket_mb": 100.0,
    "item_cost": 0.5,
    "python": 0.5,
}


# What bounds every change models nothing: there is nothing it could not know.
BOUNDS = {"free_input", "instant_gpu", "instant_host"}


def page_text(text):
    return " ".join(str(text).split())


def on_a_cpu():
    events, marks, at = [], [], 0.0
    for _ in range(60):
        events += [loader_call(at, 30.0), event(EventKind.OP, "aten::mm", at + 31.0, 9.0)]
        events += [event(EventKind.OP, "aten::add", at + 41.0 + number * 0.01, 0.006) for number in range(200)]
        marks.append(mark(at, 30.0, cpu_ms=20.0))
        at += 50.0
    return run_of(events, marks=marks, loaders=[NO_WORKERS], windows=[(at * 0.4, at * 0.9)])


def made_scenes():
    loop = [Call(loads_us=900.0), *[Call(host_us=20.0, kernel_us=40.0)] * 30, Call(waits=True), Call(host_us=400.0)]
    return {"gpu": prepare_scene(run_like(loop, steps=10)), "cpu": prepare_scene(on_a_cpu())}


@pytest.fixture(scope="module")
def scenes(shared):
    real = {}
    for name in TRACES:
        path = shared / "traces" / f"{name}.json.gz"
        if path.exists():
            real[name] = prepare_scene(gpulab.load(path))
    return {**made_scenes(), **real}


def chosen(name):
    rewrite = next(each for each in REWRITES if each.name == name)
    value = rewrite.default if rewrite.default is not None else VALUES[name]
    return Change(rewrite, value)


def told(scenes, name):
    """The scenes that can tell of a change."""
    return [(place, scene) for place, scene in scenes.items() if refusal_reason(scene, (chosen(name),)) is None]


@pytest.mark.parametrize("name", NAMES)
def test_a_change_has_a_page_a_grade_and_words(name):
    rewrite = chosen(name).rewrite
    page = rewrite.edit.__doc__ or ""
    assert len(page.split()) > 12
    assert rewrite.grade in GRADES
    assert rewrite.about
    assert rewrite.bound_label
    assert bool(rewrite.value_help) == (rewrite.parse is not None)
    page_shown = page_text(rule_page(name))
    for part in re.split(r"Models: |Priced from: |Cannot know: | \* (?=[A-Z])", page_text(page)):
        assert part.strip().rstrip(".")[1:] in page_shown  # a sentence begins with a capital


@pytest.mark.parametrize("name", sorted(set(NAMES) - BOUNDS))
def test_the_page_of_a_change_says_what_is_modelled_and_what_that_cannot_know(name):
    page = str(rule_page(name))
    for heading in ("Model", "Not modelled"):
        assert len(re.findall(rf"^{heading}(?:: \S|\n  \S)", page, re.MULTILINE)) == 1


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_a_prediction_is_a_range_around_a_middle_above_a_bound(name, scenes):
    for place, scene in told(scenes, name):
        prediction = predict(scene, (chosen(name),), samples=20)
        assert 0 < prediction.floor_ns <= prediction.best_ns <= prediction.likely_ns <= prediction.worst_ns, place
        assert np.isfinite(prediction.speedup)


@pytest.mark.parametrize("name", NAMES)
def test_no_draw_of_a_change_beats_its_bound(name, scenes):
    for place, scene in told(scenes, name):
        one = chosen(name)
        ceiling = sweep(one.rewrite.best_case(scene.graph, one.value)).step_ns
        for draw in (Draw(default_position=0.0), MIDDLE, Draw(default_position=1.0), Draw(number=1, count=40)):
            assert sweep(one.rewrite.edit(scene.graph, one.value, draw)).step_ns >= ceiling / SLACK, (place, draw)


@pytest.mark.parametrize("name", NAMES)
def test_a_worse_draw_never_gives_a_shorter_step(name, scenes):
    for place, scene in told(scenes, name):
        one = chosen(name)
        lengths = [
            sweep(one.rewrite.edit(scene.graph, one.value, Draw(default_position=at))).step_ns
            for at in (0.0, 0.25, 0.5, 1.0)
        ]
        assert all(low <= SLACK * high for low, high in itertools.pairwise(lengths)), (place, lengths)


@pytest.mark.parametrize("name", NAMES)
def test_a_change_leaves_the_graph_it_was_given_as_it_was(name, scenes):
    for _, scene in told(scenes, name):
        before = sweep(scene.graph).step_ns
        one = chosen(name)
        one.rewrite.edit(scene.graph, one.value, MIDDLE)
        assert sweep(scene.graph).step_ns == before


@pytest.mark.parametrize("name", [each.name for each in REWRITES if each.grade == "A"])
def test_taking_something_away_never_makes_a_step_longer(name, scenes):
    for place, scene in told(scenes, name):
        one = chosen(name)
        edited = one.rewrite.edit(scene.graph, one.value, MIDDLE)
        assert sweep(edited).step_ns <= SLACK * sweep(scene.graph).step_ns, place


def test_no_change_is_no_change(scenes):
    for scene in scenes.values():
        prediction = predict(scene, ())
        assert abs(prediction.likely_ns - prediction.step_ns) <= 0.005 * prediction.step_ns
        assert prediction.floor_ns <= prediction.step_ns


def test_the_order_in_which_changes_are_asked_for_does_not_matter(scenes):
    scene = scenes["gpu"]
    able = [
        name for name in NAMES if refusal_reason(scene, (chosen(name),)) is None and name not in ("batch", "sync_every")
    ]
    texts = [name if chosen(name).rewrite.default is not None else f"{name}={VALUES[name]}" for name in able]
    for one, other in itertools.combinations(texts, 2):
        forth = predict(scene, parsing.parse_changes(f"{one} {other}"), samples=2)
        back = predict(scene, parsing.parse_changes(f"{other}, {one}"), samples=2)
        assert (forth.likely_ns, forth.best_ns, forth.worst_ns) == (back.likely_ns, back.best_ns, back.worst_ns)


def test_changes_together_are_replayed_together_and_stay_above_their_common_bound(scenes):
    scene = scenes["gpu"]
    both = predict(scene, parsing.parse_changes("free_input instant_gpu"))
    one, other = (predict(scene, parsing.parse_changes(name)) for name in ("free_input", "instant_gpu"))
    assert both.likely_ns <= min(one.likely_ns, other.likely_ns)
    assert both.speedup <= both.bound
    assert both.speedup != pytest.approx(one.speedup * other.speedup, rel=0.01)


def test_both_floors_at_once_leave_next_to_nothing(scenes):
    for place in ("gpu", *TRACES):
        if place in scenes:
            prediction = predict(scenes[place], parsing.parse_changes("instant_gpu instant_host"))
            assert prediction.likely_ns < 0.2 * prediction.step_ns


# What people type.


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("instant_gpu", ["instant_gpu"]),
        ("instant-gpu,instant_host", ["instant_gpu", "instant_host"]),
        ("  instant_host   instant_gpu ", ["instant_gpu", "instant_host"]),
        ("workers = 6, free_input", ["workers=6", "free_input"]),
        ("", []),
    ],
)
def test_changes_may_be_separated_by_commas_or_spaces(typed, meant):
    assert [str(each) for each in parsing.parse_changes(typed)] == meant


@pytest.mark.parametrize(
    ("typed", "why", "fix"),
    [
        ("instantgpu", "the changes are", "did you mean instant_gpu"),
        ("turbo", "the changes are", "--help"),
        ("instant_gpu=2", "'2'", "alone"),
        ("instant_gpu, instant_gpu", "in ", "once"),
        ("workers=many", "", "a number"),
        ("workers=-1", "", "a number"),
    ],
)
def test_invalid_input_is_an_error_with_a_fix(typed, why, fix):
    with pytest.raises(RunError) as error:
        parsing.parse_changes(typed)
    assert why in error.value.why
    assert fix in error.value.fix


def test_a_run_without_events_cannot_be_asked():
    run = run_of((), marks=[mark(at, 1.0) for at in range(0, 200, 10)], loaders=[NO_WORKERS], windows=[])
    with pytest.raises(RunError):
        asked(run, "free_input")


def test_a_refused_run_says_why_and_what_to_record(recorded):
    run = gpulab.load(recorded("a100_ddp_8ranks_rank.json.gz"))
    with pytest.raises(RunError) as error:
        asked(run, "instant_gpu")
    assert "streams" in error.value.why
    assert error.value.fix


def test_a_run_is_asked_by_its_own_method_as_well():
    run = on_a_cpu()
    assert str(run.whatif("free_input")) == str(gpulab.whatif(run, "free_input"))
    assert run.whatif("free_input").prediction.bound > 1


# The pair that was measured: the same training with 0 workers and with 4, by the authors of PyTorch's profiler.


def test_from_the_run_without_workers_the_step_with_four_is_predicted(recorded):
    before = gpulab.load(recorded("v100_resnet50_workers0.json.gz"))
    after = gpulab.load(recorded("v100_resnet50_workers4.json.gz"))
    prediction = asked(before, "workers=4")
    measured_ns = gpulab.diagnose(after).steps.step_ns
    assert prediction.best_ns <= measured_ns <= prediction.worst_ns
    assert prediction.likely_ns == pytest.approx(measured_ns, rel=0.10)
    assert prediction.floor_ns <= measured_ns


@pytest.mark.parametrize("asked", ["gpulab.whatif(run, 'amp=bf16')", "run.whatif('amp=bf16')"])
def test_an_editor_completes_what_a_prediction_has(asked):
    """By Jedi, which completes in IPython and reads types alone: nothing is run."""
    jedi = pytest.importorskip("jedi")
    code = f"import gpulab\ndef ask(run: gpulab.Run) -> None:\n    told = {asked}\n    told."
    offered = {each.name for each in jedi.Script(code).complete(4, 9)}
    assert {"prediction", "run", "save", "html_page"} <= offered


@pytest.mark.parametrize("name", ["case01", "worked_example"])
def test_every_number_of_workers_has_the_bound_of_the_finding_about_workers(name):
    """On a CPU: the wait for data was measured in each step, and no number of workers shortens the rest."""
    run = gpulab.load(Path(__file__).resolve().parents[2] / "recorded_runs" / name / "run.gpulab")
    finding = next(each for each in diagnose(run).findings if each.rewrites.startswith("workers="))
    bounds = {asked(run, f"workers={workers}").cold_bound for workers in (1, 2, 8)}
    assert max(bounds) == pytest.approx(min(bounds)) == pytest.approx(finding.gain.cold_bound)
