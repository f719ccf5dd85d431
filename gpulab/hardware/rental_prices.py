"""Rental prices of one provider on one day, in dollars per hour and GPU, by the names of `gpulab.hardware.lookup`."""

from __future__ import annotations

from collections.abc import Mapping

RENTAL_SOURCE = "RunPod Secure Cloud, on demand, runpod.io/pricing as of 25 September 2026 (in tgarg01/silybench-data)"
RENTAL_PRICES: Mapping[str, float] = {"rtx4090": 0.74, "a100": 1.59, "h100": 3.49, "h200": 4.59, "b200": 6.79}
