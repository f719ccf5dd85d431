"""The printed change of dropout, run on real models: the same rate, weights, and values without training."""

from __future__ import annotations

import pytest

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
