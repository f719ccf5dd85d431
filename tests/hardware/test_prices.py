"""Prices: what the user gives, else a dated list; never a guess for an unknown GPU."""

from __future__ import annotations

import pytest

from gpulab.errors import GpulabError
from gpulab.hardware.prices import Prices, parse_prices, user_prices


@pytest.mark.parametrize(("text", "name", "price", "currency"), [
    ("2.50", "anything", 2.5, "USD"),
    ("2.50 EUR", "anything", 2.5, "EUR"),
    ("€2.5", "anything", 2.5, "EUR"),
    ("H100=3.20,A100=1.60", "NVIDIA H100 80GB HBM3", 3.2, "USD"),
    ("H100=3.20,A100=1.60", "NVIDIA A100-SXM4-80GB", 1.6, "USD"),
    ("H100=3.20,1.10", "Tesla T4", 1.1, "USD"),
    ("H100=3.20", "Tesla T4", None, "USD"),
    ("A10=1", "NVIDIA A100-SXM4-80GB", None, "USD"),
])  # fmt: skip
def test_a_price_is_found_by_the_name_of_the_gpu(text, name, price, currency):
    prices = parse_prices(text)
    assert (prices.per_hour(name), prices.currency) == (price, currency)
    assert prices.source == "prices as given"


def test_the_list_has_prices_of_common_gpus_and_says_its_date():
    prices = Prices()
    assert prices.per_hour("NVIDIA H100 80GB HBM3") > prices.per_hour("NVIDIA A100-SXM4-80GB") > 0
    assert prices.per_hour("A GPU of the future") is None
    assert "2026" in prices.source


@pytest.mark.parametrize("text", ["", "cheap", "H100=", "-3", "H100=1;A100=2", "1 USD,H100=2 EUR"])
def test_what_is_no_price_is_refused(text):
    with pytest.raises(GpulabError):
        parse_prices(text)


def test_the_environment_sets_price_and_co2(monkeypatch):
    monkeypatch.setenv("GPULAB_PRICE", "1.5")
    monkeypatch.setenv("GPULAB_CO2", "350")
    assert (user_prices().per_hour("x"), user_prices().co2_g_per_kwh) == (1.5, 350)
    monkeypatch.setenv("GPULAB_CO2", "much")
    with pytest.raises(GpulabError):
        user_prices()
