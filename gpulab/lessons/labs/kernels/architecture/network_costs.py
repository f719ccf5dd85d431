"""Count what a network costs, on the meta device: parameters, arithmetic, and bytes saved for the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpulab.lessons.labs.memory.memory_counters import saved_bytes

if TYPE_CHECKING:
    from torch import nn

STAGES = ((5, 64), (5, 128), (5, 256))  # blocks and channels of each stage at depth 1 and width 1
SIDE = 64  # pixels per side of an image at resolution 1


@dataclass(frozen=True, kw_only=True)
class NetworkCost:
    """Cost of a forward pass of one batch, and what it saves for the backward pass."""

    parameters: int
    flops: int  # of products and convolutions; a multiplication and an addition count as two
    saved_bytes: int


def network_cost(make: Callable[[], nn.Module], shape: Sequence[int]) -> NetworkCost:
    """Count the cost of a network for an input of this shape, in float32. Nothing is computed."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        network, x = make(), torch.empty(*shape)
        with FlopCounterMode(display=False) as counter:
            stored = saved_bytes(lambda: network(x), network)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return NetworkCost(parameters=parameters, flops=counter.get_total_flops(), saved_bytes=stored)


def scaled_network(depth: float, width: float) -> Any:
    """Build a convolutional network of three stages, with more blocks (`depth`) and channels (`width`).

    Blocks are rounded, channels are rounded to multiples of 8, as in EfficientNet.
    """
    from torch import nn

    layers: list[Any] = []
    previous = 3
    for blocks, channels in STAGES:
        wide = 8 * max(1, round(channels * width / 8))
        for block in range(round(blocks * depth)):
            stride = 2 if block == 0 else 1
            layers += [nn.Conv2d(previous, wide, 3, stride=stride, padding=1), nn.BatchNorm2d(wide), nn.ReLU()]
            previous = wide
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(previous, 10))


def scaled_cost(depth: float = 1.0, width: float = 1.0, resolution: float = 1.0, batch: int = 8) -> NetworkCost:
    """Count the cost of `scaled_network` for a batch of images, whose side grows with `resolution`."""
    side = 8 * round(SIDE * resolution / 8)
    return network_cost(lambda: scaled_network(depth, width), (batch, 3, side, side))
