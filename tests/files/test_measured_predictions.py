"""Predictions that were measured are kept in one small file, which the user may read, move, or turn off."""

import json

import pytest

import gpulab
from gpulab import questions
from gpulab.replay.history import History, MeasuredPrediction
from gpulab.run import Loader, Source
from gpulab.tables import EventKind
from gpulab.user_data import predictions
from tests.support.runs.made_runs import NO_WORKERS, event, loader_call, mark, run_of

ONE = MeasuredPrediction(
    kind="workers",
    step_ns=100,
    predicted_ns=60,
    best_ns=50,
    worst_ns=70,
    measured_ns=66,
    device="Made CPU",
    date="2026-01-01",
)


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Where this test's predictions are kept."""
    path = tmp_path / "deep" / "predictions.jsonl"
    monkeypatch.setenv(predictions.VARIABLE, str(path))
    return path


def test_a_stored_prediction_is_read_again(history):
    assert predictions.read_measured_predictions() == ()
    assert predictions.store_prediction(ONE) == history
    assert predictions.read_measured_predictions() == (ONE,)
    assert predictions.read_measured_predictions("another device") == ()


def test_the_same_prediction_is_stored_once(history):
    predictions.store_prediction(ONE)
    predictions.store_prediction(ONE)
    assert len(history.read_text().splitlines()) == 1


def test_each_line_is_json(history):
    predictions.store_prediction(ONE)
    assert json.loads(history.read_text())["kind"] == "workers"


def test_invalid_lines_are_skipped(history):
    predictions.store_prediction(ONE)
    bad = ["", "{", "[]", "null", '{"kind": "workers"}', json.dumps({**vars(ONE), "measured_ns": -1})]
    bad.append(json.dumps({**vars(ONE), "predicted_ns": "soon"}))
    history.write_text("\n".join([*bad, history.read_text()]))
    assert predictions.read_measured_predictions() == (ONE,)


def test_with_storing_disabled_nothing_is_read_or_written(history, monkeypatch):
    predictions.store_prediction(ONE)
    monkeypatch.setenv(predictions.VARIABLE, "off")
    assert predictions.path() is None
    assert predictions.read_measured_predictions() == ()
    assert predictions.store_prediction(ONE) is None


def test_an_unwritable_path_is_ignored(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv(predictions.VARIABLE, str(blocked / "predictions.jsonl"))
    assert predictions.store_prediction(ONE) is None


def test_a_missed_prediction_widens_later_ones_of_its_kind_only():
    missed = tuple(
        MeasuredPrediction(**{**vars(ONE), "measured_ns": 90, "step_ns": 100 + number}) for number in range(20)
    )
    learned = History(missed).error_of("workers")
    assert learned.count == 20
    assert 0.25 < learned.spread < 0.45  # ln 1.5 is 0.41; a twentieth is believed to have been right
    assert History(missed[:1]).error_of("workers").spread < 0.1
    assert History(missed).error_of("amp").spread == 0


def measured(wait_ms, workers=0):
    loader = NO_WORKERS if workers == 0 else Loader(workers=workers, batch_size=32)
    events, marks, at = [], [], 0.0
    for _ in range(60):
        events.append(loader_call(at, wait_ms, workers=workers))
        events.append(event(EventKind.OP, "aten::mm", at + wait_ms, 20.0))
        marks.append(mark(at, wait_ms))
        at += wait_ms + 20.0
    run = run_of(events, marks=marks, loaders=[loader], windows=[(at * 0.4, at * 0.9)])
    here = Source(how="measured", device="Made CPU", date="2026-01-01")
    return run.__class__(**{**{name: getattr(run, name) for name in run.__dataclass_fields__}, "source": here})


def test_a_comparison_of_local_runs_stores_its_prediction(history):
    compared = gpulab.compare(measured(60.0), measured(2.0, workers=2))
    predictions_now = predictions.read_measured_predictions()
    assert len(predictions_now) == 1
    assert predictions_now[0].best_ns <= predictions_now[0].predicted_ns <= predictions_now[0].worst_ns
    assert predictions_now[0].measured_ns == pytest.approx(22e6, rel=0.01)
    assert compared.predicted.step_ns == predictions_now[0].step_ns


def test_a_comparison_of_foreign_runs_stores_no_prediction(history):
    before, after = measured(60.0), measured(2.0, workers=2)
    fields = {name: getattr(after, name) for name in after.__dataclass_fields__}
    fields["source"] = Source(how="recorded", device="Made CPU", date="2026-01-01")
    questions.compare(before, after.__class__(**fields))
    assert predictions.read_measured_predictions() == ()
