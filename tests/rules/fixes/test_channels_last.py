"""Advice for convolutions on a CPU: values and parameters stay the same, and code that may fail is not printed."""

from __future__ import annotations

import pytest

import gpulab
from gpulab.capture.hooks.image_layers import image_layers
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


def test_a_recorded_loop_states_the_memory_format_of_its_model():
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    with gpulab.profile("images", level="sensors") as session:
        for batch in torch.utils.data.DataLoader(torch.ones(16, 3, 16, 16), batch_size=4):
            net(batch).sum().backward()
            optimizer.step()
    (model,) = session.run.models
    assert (model.image_convolutions, model.channels_last, model.calls_view) == (2, False, False)
