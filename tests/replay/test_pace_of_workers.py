"""What a faster step gains where DataLoader workers set the pace: nothing, on a GPU."""

import pytest

import gpulab
from gpulab.analysis.steps.detection import find_steps
from gpulab.analysis.steps.ledger import build_ledger
from gpulab.files.datasets import dataset
from gpulab.replay.parsing import parse_changes
from gpulab.replay.prediction import build_replay_model, predict


@pytest.fixture(scope="module")
def late_workers():
    """A recording on an H100: eight workers compute items, and the GPU waits for them for 78 % of the time."""
    run = dataset("h100_11").load_fixed()
    steps = find_steps(run)
    return build_replay_model(run, steps, build_ledger(run, steps))


@pytest.mark.parametrize("change", ["compile", "instant_gpu", "amp"])
def test_other_changes_gain_nothing(late_workers, change):
    prediction = predict(late_workers, parse_changes(change))
    assert prediction.speedup == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("change", "least"), [("free_input", 3.0), ("item_cost=0.5", 1.5)])
def test_faster_loading_gains_what_it_saves(late_workers, change, least):
    assert predict(late_workers, parse_changes(change)).speedup > least


def test_the_first_finding_is_about_the_workers():
    first = gpulab.diagnose(dataset("h100_11").load_fixed()).first
    assert first is not None
    assert first.rule == "too_few_workers"
