"""Prices of GPUs per hour, and carbon and energy costs: what the user gives, else a dated list."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpulab.errors import GpulabError
from gpulab.hardware.gpus import SPECS

LIST_DATE = "May 2026"
PRICE_VARIABLE, CO2_VARIABLE = "GPULAB_PRICE", "GPULAB_CO2"
LIST_SOURCE = f"typical on-demand prices of clouds per GPU, {LIST_DATE}; set yours: {PRICE_VARIABLE}=2.50"
# Dollars per hour and GPU: lowest, typical, highest. The range of A100, H100 and H200 is from a published comparison of
# 22 providers (mercatus-ai.com, May 2026), and the typical value is the middle of its second tier. The others are list
# prices of large clouds from memory, unchecked.
_LIST: Mapping[str, tuple[float, float, float]] = {
    "T4": (0.20, 0.40, 0.60),
    "L4": (0.40, 0.70, 1.00),
    "A10": (0.60, 0.90, 1.30),
    "V100": (0.80, 1.50, 3.10),
    "L40S": (0.80, 1.30, 2.00),
    "A100": (0.80, 1.30, 3.00),
    "H100": (1.99, 3.00, 5.00),
    "H200": (2.50, 4.00, 7.00),
    "B200": (3.50, 5.50, 9.00),
}
# The prices of one provider on one day, by names that `gpulab.hardware.lookup` knows, in dollars per hour and GPU.
RENTAL_SOURCE = "RunPod Secure Cloud, on demand, runpod.io/pricing as of 25 September 2026 (in tgarg01/silybench-data)"
RENTAL_PRICES: Mapping[str, float] = {"rtx4090": 0.74, "a100": 1.59, "h100": 3.49, "h200": 4.59, "b200": 6.79}
_ENTRY = re.compile(
    r"^\s*(?:(?P<gpu>[^=]+?)\s*=\s*)?(?P<sign>[$€£]?)\s*(?P<price>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z€£$]*)\s*$"
)
_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP"}


@dataclass(frozen=True, kw_only=True)
class Prices:
    """Prices per GPU-hour by name of the GPU; `everything` is the price of all others (None: that of the list)."""

    by_gpu: Mapping[str, float] = field(default_factory=dict)
    everything: float | None = None
    currency: str = "USD"
    co2_g_per_kwh: float | None = None  # of the electricity; None: not given, and there is no default for a place

    def per_hour(self, driver_name: str) -> float | None:
        """The price of a GPU by the name that its driver gives; None if neither the user nor the list has one."""
        for key, price in self.by_gpu.items():
            if _names(key, driver_name):
                return price
        if self.everything is not None or self.by_gpu:
            return self.everything
        return next((typical for key, (_, typical, _) in _LIST.items() if _names(key, driver_name)), None)

    @property
    def source(self) -> str:
        """Where the prices are from."""
        return "prices as given" if self.by_gpu or self.everything is not None else LIST_SOURCE


def user_prices() -> Prices:
    """Return the prices that the environment sets, else those of the list.

    GPULAB_PRICE is per GPU-hour, as `parse_prices` reads it; GPULAB_CO2 is in g per kWh. Raises GpulabError if one of
    them cannot be read.
    """
    price, co2 = (os.environ.get(name, "").strip() for name in (PRICE_VARIABLE, CO2_VARIABLE))
    prices = parse_prices(price) if price else Prices()
    if not co2:
        return prices
    try:
        return replace(prices, co2_g_per_kwh=float(co2))
    except ValueError:
        raise GpulabError(
            f"{CO2_VARIABLE}={co2!r} cannot be read.",
            why="it is not a number of grams per kWh",
            fix=f"set {CO2_VARIABLE}=350, or remove it",
        ) from None


def parse_prices(text: str) -> Prices:
    """Read "2.50", "2.50 EUR" or "H100=3.20,A100=1.60". Raises GpulabError if it is none of these."""
    by_gpu: dict[str, float] = {}
    everything: float | None = None
    currencies: set[str] = set()
    for entry in text.split(","):
        match = _ENTRY.match(entry)
        if match is None:
            raise GpulabError(
                f"The price {entry.strip()!r} cannot be read.",
                why="it is not an amount per GPU-hour",
                fix='write "2.50", "2.50 EUR" or "H100=3.20,A100=1.60"',
            )
        if match["gpu"]:
            by_gpu[match["gpu"]] = float(match["price"])
        else:
            everything = float(match["price"])
        sign = match["sign"] or match["unit"]
        currencies |= {_SIGNS.get(sign, sign.upper())} if sign else set()
    if len(currencies) > 1:
        raise GpulabError(
            f"The prices {text!r} have several currencies.",
            why=f"they name {' and '.join(sorted(currencies))}, and no rate between them is known",
            fix="give all prices in one currency",
        )
    return Prices(by_gpu=by_gpu, everything=everything, currency=currencies.pop() if currencies else "USD")


def _names(key: str, driver_name: str) -> bool:
    """Whether a key means a GPU: the name of its driver contains it as a word ("A100" in "NVIDIA A100-SXM4-80GB")."""
    return re.search(rf"(?<![A-Za-z0-9]){re.escape(key)}(?![A-Za-z0-9])", driver_name, re.I) is not None


def list_prices() -> dict[str, float]:
    """The typical prices of the list per GPU-hour, by the names of `gpulab.virtual.compare_gpus`."""
    prices = Prices()
    return {spec.name: price for spec in SPECS if (price := prices.per_hour(spec.driver_name)) is not None}
