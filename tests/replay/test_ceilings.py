"""A ceiling is a bound: a virtual run is made twice, before and after a change, and never gains more than was stated.

The two differ by the change alone: the host's Python takes no time.
"""

from itertools import pairwise

import pytest

from gpulab.errors import RunError
from gpulab.questions import predict
from gpulab.questions import prepare_scene as scene_of

torch = pytest.importorskip("torch")

from gpulab.virtual.device.recorder import OpRecorder  # noqa: E402
from gpulab.virtual.host.costs import HostCosts  # noqa: E402
from gpulab.virtual.session import VirtualGpu  # noqa: E402

ROUNDING = 1.002
STEPS = 5
nn = torch.nn


@pytest.fixture(autouse=True)
def python_takes_no_time(monkeypatch):
    monkeypatch.setattr(OpRecorder, "take_python_ns", lambda self: 0)


def perceptron(widths, batch, activation=nn.ReLU):
    layers = [layer for inner, outer in pairwise(widths) for layer in (nn.Linear(inner, outer), activation())]
    return nn.Sequential(*layers), (batch, widths[0])


def images(channels, pixels, batch):
    first = [nn.Conv2d(3, channels, 7, 2, 3), nn.MaxPool2d(3, 2, 1)]
    layers = [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*first, *layers, nn.AdaptiveAvgPool2d(1)), (batch, 3, pixels, pixels)


def transformer(width, heads, length, batch):
    return nn.TransformerEncoderLayer(width, heads, 4 * width, batch_first=True), (batch, length, width)


NETWORKS = {
    "products alone": lambda times: perceptron([8192] * 3, int(8192 * times)),
    "passes over memory": lambda times: perceptron([256] * 3, int(262_144 * times), nn.GELU),
    "what fits into the cache": lambda times: perceptron([1024] * 4, int(4096 * times)),
    "odd sizes": lambda times: perceptron([777, 2048, 129, 64], int(20_000 * times)),
    "tiny": lambda times: perceptron([64] * 3, int(32 * times)),
    "images": lambda times: images(64, 224, int(32 * times)),
    "attention": lambda times: transformer(768, 12, 512, int(16 * times)),
}


def played(gpu, make, *, half=None, tf32=False, last=False, times=1.0):
    """A few training steps on a virtual GPU."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    order = torch.channels_last if last else torch.contiguous_format
    try:
        with VirtualGpu(gpu, host=HostCosts.reference()) as device, torch.device("cuda"):
            model, size = make(times)
            model = model.to(memory_format=order)
            optimizer = torch.optim.SGD(model.parameters())
            data = torch.randn(size).contiguous(memory_format=order)
            for _ in range(STEPS):
                with torch.autocast("cuda", dtype=half, enabled=half is not None):
                    loss = model(data).square().mean()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    return device.run


CHANGES = {
    "amp=bf16": {"half": torch.bfloat16},
    "amp=fp16": {"half": torch.float16},
    "tf32": {"tf32": True},
    "channels_last": {"last": True},
    "batch=x0.5": {"times": 0.5},
    "batch=x2": {"times": 2},
}


OTHERS = ("products alone", "passes over memory", "images")


@pytest.mark.full
@pytest.mark.parametrize(
    ("gpu", "network_"),
    [
        *(("h100", layers) for layers in NETWORKS),
        ("t4", "images"),
        ("l4", "products alone"),
        *(
            pytest.param(gpu, layers, marks=pytest.mark.night)
            for gpu in ("t4", "l4")
            for layers in OTHERS
            if (gpu, layers) not in (("t4", "images"), ("l4", "products alone"))
        ),
    ],
)
def test_no_virtual_run_gains_more_than_its_ceiling(gpu, network_):
    before = played(gpu, NETWORKS[network_])
    step_ns = scene_of(before).step_ns
    checked = 0
    for change, apply in CHANGES.items():
        if change == "channels_last" and network_ != "images":
            continue
        try:
            stated = predict(before, change, samples=2)
        except RunError:
            continue  # as bfloat16 on a T4
        gained = stated.work_factor * step_ns / scene_of(played(gpu, NETWORKS[network_], **apply)).step_ns
        assert gained <= stated.bound * ROUNDING, f"{change}: {gained:.2f}x, at most {stated.bound:.2f}x was stated"
        assert stated.speedup <= stated.bound * ROUNDING
        checked += 1
    assert checked >= 2
