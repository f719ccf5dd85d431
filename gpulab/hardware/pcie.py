"""PCIe link between host and GPU: rates by the standard, and rates that large copies reach."""

from __future__ import annotations

# One direction of 16 lanes, as the PCI Express standard states it.
_X16_BYTES_PER_S = {3: 15.8e9, 4: 31.5e9, 5: 63e9}

# Rate per lane of a large pinned copy, by generation: 75-80 % of the lane's rate, as measured on x16 cards.
LANE_BYTES_PER_S = {1: 0.19e9, 2: 0.38e9, 3: 0.75e9, 4: 1.55e9, 5: 3.1e9, 6: 6.2e9}


def standard_bytes_per_s(generation: int, lanes: int) -> float | None:
    """Return the rate of a link by the standard, in one direction; None for an unlisted generation."""
    rate = _X16_BYTES_PER_S.get(generation)
    return rate * lanes / 16 if rate else None


def pinned_copy_bytes_per_s(generation: float, lanes: float) -> float | None:
    """Return the rate of a large pinned copy over a link; None for an unknown generation."""
    lane = LANE_BYTES_PER_S.get(int(generation))
    return lane * lanes if lane else None
