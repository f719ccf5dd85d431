"""Advice for convolutions on a CPU: values and parameters stay the same, and code that may fail is not printed."""

from __future__ import annotations

import pytest

import gpulab
from gpulab.capture.hooks.models import called_code
from gpulab.capture.hooks.models.image_layers import image_layers
from gpulab.rules import diagnose
from tests.cases.kernels.nchw_on_cpu import case

torch = pytest.importorskip("torch")
nn = torch.nn


class Net(nn.Sequential):
    def __init__(self):
        layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3)]
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4))


class WithView(Net):
    def forward(self, images):
        return super().forward(images).view(-1, 4)


def flat(images):
    return images.view(len(images), -1)


def flat_by_reshape(images):
    return images.reshape(len(images), -1)


class WithHelper(Net):
    def forward(self, images):
        return flat(super().forward(images))


class Loss(nn.Module):
    def forward(self, scores):
        return scores.view(-1).square().mean()


def finding(run):
    return next(each for each in diagnose(run).findings if each.rule == "nchw_on_cpu")


def test_after_the_fix_the_optimizer_trains_the_same_parameters_to_the_same_values():
    losses = []
    for code in ("", finding(case.provoked_by_convolutions_in_nchw()).fix):
        torch.manual_seed(0)
        net = Net()
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        before = list(map(id, net.parameters()))
        names = {"net": net}
        images = torch.randn(4, 3, 16, 16)
        exec(code, names)
        net = names["net"]
        assert list(map(id, net.parameters())) == before
        for _ in range(3):
            loss = net(images).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
        assert image_layers(net).channels_last is bool(code)
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_code_is_printed_only_if_no_view_can_fail():
    assert finding(case.provoked_where_the_model_calls_view()).fix == ""
    assert "reshape()" in finding(case.provoked_where_the_model_calls_view()).advice


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        (Net(), (2, False, 0, False)),
        (Net().to(memory_format=torch.channels_last), (2, True, 0, False)),
        (WithView(), (2, False, 0, True)),
        (nn.Sequential(nn.Conv2d(4, 4, 1)), (1, None, 0, False)),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4)), (1, False, 1, False)),
        (nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv1d(4, 4, 3)), None),
        (nn.Linear(4, 4), None),
    ],
)
def test_what_is_recorded_of_a_model(module, expected):
    assert image_layers(module) == expected


def train(model, loss_of):
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for batch in torch.utils.data.DataLoader(torch.ones(16, 3, 16, 16), batch_size=4):
        loss_of(model(batch)).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("make_model", "loss_of", "expected"),
    [
        (Net, torch.sum, False),
        (Net, lambda scores: flat_by_reshape(scores).sum(), False),
        (WithView, torch.sum, True),
        (WithHelper, torch.sum, True),
        (Net, Loss(), True),
        (Net, lambda scores: flat(scores).sum(), True),
        (Net, lambda scores: sum(one.view(-1).sum() for one in scores), True),
    ],
    ids=["plain", "reshape", "model", "function of the model", "loss module", "function of the loss", "generator"],
)
def test_view_is_found_wherever_the_loop_may_call_it(make_model, loss_of, expected):
    with gpulab.profile("images", level="sensors") as session:
        train(make_model(), loss_of)
    assert session.run.models[0].calls_view is expected


def test_code_without_end_may_call_anything(monkeypatch):
    monkeypatch.setattr(called_code, "MOST_PARTS", 1)
    assert called_code.may_call(["view"], called_code.parts_of_value(finding))
    assert not called_code.may_call(["view"], called_code.parts_of_value(flat_by_reshape))


def test_a_recorded_loop_states_the_memory_format_of_its_model():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with gpulab.profile("images", level="sensors") as session:
        for batch in torch.utils.data.DataLoader(torch.ones(16, 3, 16, 16), batch_size=4):
            net(batch).sum().backward()
            optimizer.step()
    (model,) = session.run.models
    assert (model.image_convolutions, model.channels_last, model.calls_view) == (2, False, False)
