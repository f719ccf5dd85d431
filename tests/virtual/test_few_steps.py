"""A loop without waits is diagnosed alike whether it was played for two steps or for ten: its queue fills at first."""

import pytest

torch = pytest.importorskip("torch")

from gpulab.analysis.steps.detection import find_steps  # noqa: E402
from gpulab.questions import diagnose, prepare_scene  # noqa: E402
from gpulab.virtual.host.costs import HostCosts  # noqa: E402
from gpulab.virtual.session import VirtualGpu  # noqa: E402
from tests.support.virtual.python_time import constant_host_time, constant_python_time  # noqa: E402

__all__ = ["constant_host_time", "constant_python_time"]  # fixtures

pytestmark = pytest.mark.usefixtures("constant_host_time")


def played(count, width, batch):
    with VirtualGpu("h100", host=HostCosts.reference()) as device, torch.device("cuda"):
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(4)])
        optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
        data = torch.randn(batch, width)
        for _ in range(count):
            model(data).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return device.run


@pytest.mark.night
@pytest.mark.parametrize(("width", "batch", "tolerance"), [(2048, 4096, 0.01), (4096, 8192, 0.004)])
def test_step_time_and_diagnosis_do_not_depend_on_the_number_of_steps(width, batch, tolerance):
    long = played(12, width, batch)
    step_ns, rule = find_steps(long).step_ns, diagnose(long).first.rule
    for count in range(2, 8):
        short = played(count, width, batch)
        assert find_steps(short).step_ns == pytest.approx(step_ns, rel=tolerance), f"of {count} steps"
        assert diagnose(short).first.rule == rule, f"of {count} steps"
        assert prepare_scene(short).quality.refusal_reason is None
