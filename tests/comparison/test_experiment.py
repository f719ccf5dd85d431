"""Two variants run in turn: the same chance, equal results first, in turn, and nothing left behind."""

import random
import re
import time

import numpy as np
import pytest

import gpulab
from gpulab.capture.seeds import preserve_random_state, seed_everything
from gpulab.errors import CaptureError, RunError
from gpulab.lessons.equality import check_equality

torch = pytest.importorskip("torch")


def trainer(steps=30, extra_s=0.0, calls=None, name="", result=None):
    """A loop that trains from scratch; `calls` keeps who ran when."""

    def train():
        if calls is not None:
            calls.append(name)
        model = torch.nn.Linear(8, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            optimizer.step()
            time.sleep(0.002 + extra_s)
            losses.append(loss.detach())
        return torch.stack(losses) if result is None else result()

    return train


@pytest.fixture(scope="module")
def slower():
    calls = []
    result = gpulab.experiment(
        trainer(calls=calls, name="before"), trainer(extra_s=0.004, calls=calls, name="after"), repeats=3
    )
    return result, calls


def test_variants_warm_up_once_and_then_alternate(slower):
    result, calls = slower
    assert calls == ["before", "after"] * 4
    assert result.order == ("before 1", "after 1", "before 2", "after 2", "before 3", "after 3")


def test_every_run_is_in_the_result_and_the_last_of_each_in_gpulab_runs(slower):
    result, _ = slower
    assert [run.name for run in result.before] == ["before 1", "before 2", "before 3"]
    assert [run.name for run in result.after] == ["after 1", "after 2", "after 3"]
    registered = {name: run for name, run in gpulab.runs.items() if "experiment" in name}
    assert {name: run.began_ns for name, run in registered.items()} == {
        "experiment.before": result.before[-1].began_ns,
        "experiment.after": result.after[-1].began_ns,
    }


def test_the_report_is_a_comparison_with_experiment_details(slower):
    result, _ = slower
    assert result.comparison.ratio < 1
    assert [len(side.runs) for side in result.comparison.sides] == [3, 3]
    text, html = repr(result), result._repr_html_()
    for phrase in (
        "of the medians of 3 runs",
        "bitwise equal (30 values compared)",
        "before 1, after 1, before 2",
    ):
        assert phrase in text
        assert phrase in html
    assert "Where the step time goes" in text


def test_sensors_alone_give_step_times():
    result = gpulab.experiment(trainer(), trainer(), repeats=1, level="sensors")
    assert [len(run.event_rows) for run in (*result.before, *result.after)] == [0, 0]
    assert result.comparison.ratio > 0
    assert result.order == ("before", "after")


def test_variants_with_different_results_are_not_timed():
    calls = []
    with pytest.raises(RunError, match="give different results") as refused:
        gpulab.experiment(
            trainer(calls=calls, name="before"), trainer(calls=calls, name="after", result=lambda: torch.ones(30))
        )
    assert calls == ["before", "after"]
    assert "of the largest value" in refused.value.why
    assert "equal=False" in refused.value.fix


def test_with_equal_false_results_are_reported_as_not_checked():
    result = gpulab.experiment(
        trainer(), trainer(result=lambda: torch.ones(30)), repeats=1, equal=False, level="sensors"
    )
    assert "equal results: not checked" in repr(result)


def test_each_run_gets_the_same_seed_and_random_state_is_restored():
    numbers = []

    def draw():
        numbers.append((random.random(), float(np.random.rand()), float(torch.rand(1))))
        trainer(steps=6)()

    seed_everything(3)
    expected = (random.random(), float(np.random.rand()), float(torch.rand(1)))
    seed_everything(3)
    gpulab.experiment(draw, draw, repeats=2, seed=7, level="sensors")
    assert len(set(numbers)) == 1
    assert len(numbers) == 6
    assert (random.random(), float(np.random.rand()), float(torch.rand(1))) == expected


def test_random_state_is_restored_after_an_error():
    before = random.getstate()

    def failing():
        with preserve_random_state():
            seed_everything(1)
            raise KeyError

    with pytest.raises(KeyError):
        failing()
    assert random.getstate() == before


@pytest.mark.parametrize("fails_at", [1, 2, 4], ids=["in the warm-up", "in the first run", "in a later run"])
def test_an_error_in_a_variant_propagates_and_leaves_nothing_behind(fails_at, nothing_left):
    calls = []

    def failing():
        calls.append("after")
        trainer(steps=6)()
        if len(calls) == fails_at:
            raise ZeroDivisionError("mine")

    names = set(gpulab.runs)
    with pytest.raises(ZeroDivisionError, match="mine"):
        gpulab.experiment(trainer(steps=6), failing, level="sensors", equal=False)
    nothing_left()
    assert set(gpulab.runs) - names <= {"experiment.before", "experiment.after"}
    with gpulab.profile("and on", level="sensors"):  # no recording is left open
        pass


def test_zero_repeats_raise_an_error():
    with pytest.raises(CaptureError, match="0 repeats"):
        gpulab.experiment(trainer(), trainer(), repeats=0)


# Equal results.


def test_without_return_values_nothing_is_checked():
    assert check_equality(None, None).description == "not checked"
    assert check_equality(1.0, 2.0, False).description == "not checked"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1.0, 1.0004),
        ([0.5, 1.0], [0.5004, 1.0]),
        (torch.tensor([1.0, 100.0]), torch.tensor([1.05, 100.0])),  # beside the largest value, and not each by itself
        ({"loss": [1.0], "weights": torch.ones(3)}, {"loss": [1.0], "weights": torch.ones(3) * 1.0001}),
        (torch.ones(2, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16) * 1.02),
        (np.float64(1), np.float64(1 + 1e-8)),
        (torch.ones(2), np.ones(2)),
        (torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 2])),
        (1, 1.0),
        (torch.tensor([1.0, float("nan"), float("inf")]), torch.tensor([1.0, float("nan"), float("inf")])),
        ("done", "done"),
        (torch.ones(2, requires_grad=True), torch.ones(2)),
        ((1, [2, {"a": torch.eye(2)}]), (1, [2, {"a": torch.eye(2)}])),
        (torch.empty(0), torch.empty(0)),
    ],
)
def test_results_are_equal_within_the_tolerance_of_their_types(one, other):
    assert check_equality(one, other).checked


@pytest.mark.parametrize(
    ("one", "other", "pattern"),
    [
        (1.0, 1.01, "by 0.99 %|by 1 %"),
        (torch.ones(3), torch.ones(4), r"shape \[3\] before, \[4\] after"),
        (
            torch.ones(3, dtype=torch.float64),
            torch.ones(3, dtype=torch.float64) * 1.0001,
            "0.01 % of the largest value",
        ),
        ([1, 2], [1, 2, 3], "2 entries before, 3 after"),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), r"1 of 2 integers differ, for example 2 and 3 at \[1\]"),
        (torch.eye(2), torch.eye(2).flip(0), r"for example 1 and 0 at \[0, 0\]$"),
        (torch.tensor([1, 2]), torch.tensor([1.0, 2.0]), "int64 before, float32 after"),
        (torch.tensor([True]), np.ones(1), "bool before, float64 after"),
        ({"a": 1}, {"b": 1}, "only one of the results has 'a', 'b'"),
        ({"loss": [1.0, {"x": 2.0}]}, {"loss": [1.0, {"x": 3.0}]}, r"at \['loss'\]\[1\]\['x'\]"),
        (torch.tensor([1.0]), torch.tensor([float("nan")]), "not finite"),
        (None, 1.0, "NoneType before, float after"),
        ("done", "failed", "'done' before, 'failed' after"),
    ],
)
def test_different_results_raise_an_error_with_location_and_size(one, other, pattern):
    with pytest.raises(RunError) as refused:
        check_equality(one, other)
    assert re.search(pattern, refused.value.why), refused.value.why


def test_a_given_tolerance_replaces_that_of_the_type():
    assert check_equality(1.0, 1.04, 0.05).checked
    with pytest.raises(RunError, match=r"0.001 %"):
        check_equality(1.0, 1.0004, 1e-5)


def test_models_are_compared_by_their_weights():
    seed_everything(0)
    one = torch.nn.Linear(3, 2)
    seed_everything(0)
    assert check_equality(one, torch.nn.Linear(3, 2)).values == 8
    with pytest.raises(RunError, match=r"'weight'|'bias'"):
        check_equality(one, torch.nn.Linear(3, 2))


def test_incomparable_results_raise_an_error_with_a_fix():
    class Odd:
        pass

    with pytest.raises(RunError, match="cannot be compared") as refused:
        check_equality(Odd(), Odd())
    assert "return a number" in refused.value.fix


def test_the_largest_difference_has_its_location():
    verdict = check_equality(
        {"a": torch.ones(3), "b": torch.tensor([1.0, 1.0005])}, {"a": torch.ones(3), "b": torch.ones(2)}
    )
    assert "at ['b']" in verdict.description
    assert "(5 compared)" in verdict.description
