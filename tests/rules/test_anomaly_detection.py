"""Anomaly detection in real loops: found if it is on, and only then."""

import warnings

import pytest

import gpulab

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


def rules_of(is_on):
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that the mode is slow
        with torch.autograd.set_detect_anomaly(is_on), gpulab.profile("anomalies") as session:
            for _ in range(30):
                optimizer.zero_grad()
                loss = net(torch.randn(4, 8)).square().mean()
                loss.backward()
                if any(parameter.grad.isnan().any() for parameter in net.parameters()):
                    raise ArithmeticError
                optimizer.step()
    return {finding.rule for finding in gpulab.diagnose(session.run).findings}


@pytest.mark.parametrize("is_on", [True, False])
def test_the_mode_is_recognized(is_on):
    assert ("anomaly_detection" in rules_of(is_on)) is is_on
