"""Links between ranks: latency and bandwidth fitted to measured all-reduces, and bandwidths that makers publish."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RankLink:
    """A link between two ranks, as the alpha-beta model describes it."""

    latency_s: float  # of one message
    bytes_per_s: float


@dataclass(frozen=True)
class PublishedLink:
    """The bandwidth of a link in one direction, as its maker or its standard states it."""

    name: str
    bytes_per_s: float
    source: str


_GIGABYTE, _GIGABIT = 1e9, 1e9 / 8
_PCIE_CODING = 128 / 130  # of PCIe 3.0 to 5.0: 130 bits carry 128
_RATE = "its name is its rate"
PUBLISHED_LINKS = (
    PublishedLink("Ethernet, 10 Gbit/s", 10 * _GIGABIT, _RATE),
    PublishedLink("Ethernet, 100 Gbit/s", 100 * _GIGABIT, _RATE),
    PublishedLink("PCIe 4.0 x16", 16 * 16 * _GIGABIT * _PCIE_CODING, "16 lanes of 16 GT/s"),
    PublishedLink("InfiniBand NDR, 400 Gbit/s", 400 * _GIGABIT, _RATE),
    PublishedLink("PCIe 5.0 x16", 16 * 32 * _GIGABIT * _PCIE_CODING, "16 lanes of 32 GT/s"),
    PublishedLink("NVLink of an A100", 300 * _GIGABYTE, "data sheet: 600 GB/s, both ways"),
    PublishedLink("NVLink of an H100", 450 * _GIGABYTE, "data sheet: 900 GB/s, both ways"),
    PublishedLink("NVLink of a B200", 900 * _GIGABYTE, "data sheet: 1,800 GB/s, both ways"),
)


def fitted_link(seconds_by_bytes: Mapping[int, float]) -> RankLink:
    """Fit a link to all-reduces of two ranks: to the smallest and the largest size.

    Two ranks exchange two messages of half of the size each: `2 * latency + size / bandwidth`.
    """
    small, large = min(seconds_by_bytes), max(seconds_by_bytes)
    seconds_per_byte = (seconds_by_bytes[large] - seconds_by_bytes[small]) / (large - small)
    latency_s = (seconds_by_bytes[small] - small * seconds_per_byte) / 2
    return RankLink(max(latency_s, 0.0), 1 / seconds_per_byte)
