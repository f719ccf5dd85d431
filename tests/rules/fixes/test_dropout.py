"""The printed change of dropout, run on real models: the same rate, weights, and values without training."""

from __future__ import annotations

import pytest

import gpulab
from gpulab.rules import diagnose
from tests.cases.kernels.dropout_on_cpu import case

torch = pytest.importorskip("torch")
nn = torch.nn


def finding(run):
    return next(each for each in diagnose(run).findings if each.rule == "dropout_on_cpu")


def changed(net):
    names = {"net": net}
    exec(finding(case.provoked_by_dropout()).fix, names)
    return names["net"]


def network(**options):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.3, **options), nn.Sequential(nn.ReLU(), nn.Dropout(0.5)))


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_mask_has_the_rate_and_the_scale_of_dropout(rate, dtype):
    torch.manual_seed(0)
    net = changed(nn.Sequential(nn.Dropout(rate)))
    inputs = torch.ones(200_000, dtype=dtype, requires_grad=True)
    output = net(inputs)
    output.sum().backward()
    assert output.dtype == dtype
    assert (output == 0).double().mean() == pytest.approx(rate, abs=0.005)  # five standard deviations
    assert output[output != 0].double().unique().tolist() == pytest.approx([1 / (1 - rate)], rel=0.01)
    assert torch.equal(inputs.grad, output), "the gradient has the same mask"


def test_values_without_training_and_weights_stay_the_same():
    net, inputs = network(), torch.randn(4, 8)
    before, weights = net.eval()(inputs), {name: id(value) for name, value in net.named_parameters()}
    net = changed(net)
    assert torch.equal(net(inputs), before)
    assert {name: id(value) for name, value in net.named_parameters()} == weights
    assert list(net.state_dict()) == list(network().state_dict())


@pytest.mark.parametrize("rate", [0.0, 1.0])
def test_rates_without_random_numbers_stay_as_they_are(rate):
    net = changed(nn.Sequential(nn.Dropout(rate)))
    assert torch.equal(net(torch.ones(9)), torch.full((9,), 1.0 - rate))


def test_dropout_in_place_and_dropout_of_other_classes_stay():
    net = changed(nn.Sequential(nn.Dropout(0.5, inplace=True), nn.Dropout2d(0.5)))
    inputs = torch.ones(2, 3, 4, 4)
    net[0](inputs)
    assert (inputs == 0).any(), "the input is changed"
    assert type(net[1]) is nn.Dropout2d


def test_no_code_is_printed_for_a_model_without_a_variable_or_for_two_models():
    assert finding(case.provoked_where_no_variable_holds_the_model()).fix == ""
    assert finding(case.training(models=2)).fix == ""
    assert finding(case.training(compiled=True)).fix == ""


def test_dropout_of_a_recorded_loop_is_timed():
    net, rows = network(), torch.randn(64, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with gpulab.profile("dropout") as session:
        for _ in range(8):
            optimizer.zero_grad()
            net(rows).sum().backward()
            optimizer.step()
    times = session.run.dropout_times
    assert times.calls == 2
    assert times.bernoulli_ns > 0 < times.uniform_ns


@pytest.mark.parametrize("options", [{"inplace": True}, {"p": 0.0}], ids=["in place", "rate 0"])
def test_what_the_fix_does_not_change_is_not_timed(options):
    net, rows = nn.Sequential(nn.Linear(8, 4), nn.Dropout(**{"p": 0.5, **options})), torch.randn(64, 8)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with gpulab.profile("dropout") as session:
        for _ in range(8):
            optimizer.zero_grad()
            net(rows).sum().backward()
            optimizer.step()
    assert session.run.dropout_times is None


def test_timing_draws_no_random_numbers_of_the_program_and_calls_none_of_its_functions(monkeypatch):
    calls = []
    usual = torch.nn.functional.dropout
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda *args, **more: calls.append(1) or usual(*args, **more))

    def trained():
        net, rows = network(), torch.ones(64, 8)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        for _ in range(8):
            optimizer.zero_grad()
            net(rows).sum().backward()
            optimizer.step()

    trained()
    plain_calls, plain_state = len(calls), torch.get_rng_state()
    calls.clear()
    with gpulab.profile("dropout") as session:
        trained()
    assert session.run.dropout_times.calls == 2
    assert len(calls) == plain_calls
    assert torch.equal(torch.get_rng_state(), plain_state)
