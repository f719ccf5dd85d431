"""The timeline's script formats numbers like gpulab.wording: a table of values is formatted by both."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gpulab.views.timeline.script import bundle_script
from gpulab.wording import duration, number, percent, quantity, size
from tests.support.front_end.browser import browser

pytestmark = pytest.mark.browser

FIGURES = (0, 1, 1.5, 2.25, 4.125, 7, 9.995, 9.999, 12, 12.25, 12.345, 99.95, 100, 110.5, 999.4, 999.5, 999.6)
SIZES = (1, 1.5, 80, 999.5, 1000, 1023.4, 1023.6)
VALUES = [
    *(figure * 10.0**power for figure in FIGURES for power in range(-3, 13)),
    *(figure * 1024.0**power for figure in SIZES for power in range(6)),
]

# The call in format.js, and the equivalent function in Python.
PAIRS: dict[str, Callable[[float | None], str]] = {
    "span(value)": duration,
    "share(value)": percent,
    'reading(value, { format: "percent" })': percent,
    'reading(value, { format: "bytes" })': size,
    'reading(value, { format: "number", unit: "W" })': lambda value: quantity(value, "W"),
    'reading(value, { format: "number", unit: "°C" })': lambda value: quantity(value, "°C"),
    'reading(value, { format: "number" })': number,
}


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    with browser() as chromium:
        yield chromium.new_page()


@pytest.mark.parametrize("call", PAIRS)
def test_the_script_formats_numbers_like_python(page: Any, call: str) -> None:
    source = bundle_script("drawing/format.js")
    texts = page.evaluate(f"(values) => {{ {source}\nreturn values.map((value) => {call}); }}", VALUES)
    expected = list(map(PAIRS[call], VALUES))
    assert [pair for pair in zip(VALUES, texts, expected, strict=True) if pair[1] != pair[2]] == []


@pytest.mark.parametrize("call", PAIRS)
def test_the_script_formats_a_missing_number_like_python(page: Any, call: str) -> None:
    source = bundle_script("drawing/format.js")
    assert page.evaluate(f"(value) => {{ {source}\nreturn {call}; }}", math.nan) == PAIRS[call](math.nan)
