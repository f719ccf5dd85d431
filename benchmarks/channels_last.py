"""Train small convolutional networks on the CPU in NCHW and in channels_last: `python benchmarks/channels_last.py`.

The figures behind the rule `nchw_on_cpu`. Steps of both formats alternate in one process, on one thread, and their CPU
time is compared, so that other programs matter little. The factor is how much faster the convolutions alone would have
to be to save as much.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

ROUNDS, WARM_UP_ROUNDS, STEPS = 9, 2, 2
CLASSES = 10


def convolution(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
    """Convolution, batch normalisation, ReLU."""
    return [nn.Conv2d(inputs, outputs, 3, stride, 1), nn.BatchNorm2d(outputs), nn.ReLU()]


def head(channels: int) -> list[nn.Module]:
    """Mean over the image, and a linear layer."""
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]


def inverted_residual(inputs: int, outputs: int, stride: int = 1) -> nn.Module:
    """The block of MobileNet v2, whose middle convolution is depthwise."""
    inner = 4 * inputs
    depthwise = nn.Conv2d(inner, inner, 3, stride, 1, groups=inner, bias=False)
    layers = [nn.Conv2d(inputs, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()]
    layers += [depthwise, nn.BatchNorm2d(inner), nn.ReLU6()]
    return nn.Sequential(*layers, nn.Conv2d(inner, outputs, 1, bias=False), nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Layers whose output is added to their input."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """Return the sum, after a ReLU."""
        return torch.relu(images + self.layers(images))


def residual(channels: int) -> nn.Module:
    """The block of a ResNet."""
    last = [nn.Conv2d(channels, channels, 3, 1, 1), nn.BatchNorm2d(channels)]
    return Residual(*convolution(channels, channels), *last)


def bottleneck(channels: int) -> nn.Module:
    """The block of a ResNet-50: most of its convolutions are 1x1."""
    inner = channels // 4
    first = [nn.Conv2d(channels, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU()]
    last = [nn.Conv2d(inner, channels, 1, bias=False), nn.BatchNorm2d(channels)]
    return Residual(*first, *convolution(inner, inner), *last)


def normalised(norm: Callable[[int], nn.Module]) -> nn.Module:
    """Three convolutions with another normalisation."""
    layers: list[nn.Module] = []
    for inputs, outputs, stride in ((3, 32, 1), (32, 64, 2), (64, 64, 1)):
        layers += [nn.Conv2d(inputs, outputs, 3, stride, 1), norm(outputs), nn.ReLU()]
    return nn.Sequential(*layers, *head(64))


# By name: the network, and the shape of its batch.
NETWORKS: Mapping[str, tuple[Callable[[], nn.Module], tuple[int, int, int, int]]] = {
    "MobileNet-like": (
        lambda: nn.Sequential(
            *convolution(3, 16, 2), inverted_residual(16, 24, 2), inverted_residual(24, 40, 2), *head(40)
        ),
        (32, 3, 96, 96),
    ),
    "ResNet-like": (
        lambda: nn.Sequential(*convolution(3, 32), residual(32), *convolution(32, 64, 2), residual(64), *head(64)),
        (32, 3, 32, 32),
    ),
    "ResNet-like, one image": (
        lambda: nn.Sequential(*convolution(3, 32, 2), residual(32), *convolution(32, 64, 2), residual(64), *head(64)),
        (1, 3, 128, 128),
    ),
    "bottlenecks": (
        lambda: nn.Sequential(*convolution(3, 64, 2), bottleneck(64), bottleneck(64), *head(64)),
        (16, 3, 96, 96),
    ),
    "VGG-like": (
        lambda: nn.Sequential(*convolution(3, 32), nn.MaxPool2d(2), *convolution(32, 64), nn.MaxPool2d(2), *head(64)),
        (16, 3, 64, 64),
    ),
    "no normalisation": (
        lambda: nn.Sequential(nn.Conv2d(1, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 5), *head(32)),
        (64, 1, 28, 28),
    ),
    "GroupNorm": (lambda: normalised(lambda channels: nn.GroupNorm(8, channels)), (16, 3, 64, 64)),
    "InstanceNorm": (lambda: normalised(nn.InstanceNorm2d), (4, 3, 96, 96)),
}


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print(f"{'network':24}{'NCHW, ms':>10}{'channels_last':>15}{'convolutions':>14}{'factor':>8}")
    for name, (network, shape) in NETWORKS.items():
        nchw, last = step(network, shape, torch.contiguous_format), step(network, shape, torch.channels_last)
        times_s: dict[Callable[[], None], list[float]] = {nchw: [], last: []}
        for _ in range(ROUNDS):
            for run, spent_s in times_s.items():
                spent_s.append(cpu_time_s(run))
        nchw_s, last_s = (statistics.median(times_s[run][WARM_UP_ROUNDS:]) for run in (nchw, last))
        share = convolution_share(nchw)
        factor = 1 / (1 - (1 - last_s / nchw_s) / share)
        print(f"{name:24}{1e3 * nchw_s:>10.1f}{nchw_s / last_s:>14.2f}x{share:>14.0%}{factor:>7.2f}x", flush=True)


def step(
    network: Callable[[], nn.Module], shape: tuple[int, int, int, int], layout: torch.memory_format
) -> Callable[[], None]:
    """Return a function that trains one step."""
    torch.manual_seed(0)
    model = network()
    model.to(memory_format=layout)  # type: ignore[call-overload]  # the stubs of PyTorch know only its use with 4D tensors
    images, labels = torch.randn(shape), torch.randint(0, CLASSES, (shape[0],))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def train() -> None:
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return train


def cpu_time_s(run: Callable[[], None]) -> float:
    """Return the CPU time of a step."""
    began_s = time.process_time()
    for _ in range(STEPS):
        run()
    return (time.process_time() - began_s) / STEPS


def convolution_share(run: Callable[[], None]) -> float:
    """Return the share of convolutions in the time of a step's operators."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        run()
    averages = profiler.key_averages()
    names = ("aten::convolution", "aten::convolution_backward")
    convolutions = sum(each.cpu_time_total for each in averages if each.key in names)
    return float(convolutions / sum(each.self_cpu_time_total for each in averages))


if __name__ == "__main__":
    main()
