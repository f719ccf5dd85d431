"""Numbers and foreign text as words: units, figures, nothing hidden, nothing dangerous."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpulab import wording
from gpulab.wording import (
    clean,
    clean_code,
    did_you_mean,
    duration,
    number,
    percent,
    percent_range,
    ratio,
    ratio_range,
    scale,
    sentence,
    shell_word,
    shorten,
    size,
    unit_of,
    usage_suggestion,
)

UNITS = {"ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9, "h": 3600e9}
UNITS |= {"%": 0.01, "x": 1.0, "": 1.0, "W": 1.0}
UNITS |= {unit: 1024.0**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB"))}
UNITS |= {f"{prefix}B/s": 1000.0**power for power, prefix in enumerate(("", "k", "M", "G", "T", "P"))}

FORMATS: dict[str, Callable[[float | None], str]] = {
    "duration": duration,
    "percent": percent,
    "percent with a decimal": lambda value: percent(value, 1),
    "size": size,
    "ratio": ratio,
    "number": number,
    "quantity": lambda value: wording.quantity(value, "W"),
    "metric": lambda value: wording.metric(value, "B/s"),
}
values = st.floats(1e-3, 1e12) | st.integers(1, 10**12).map(float)


def parsed(text: str) -> tuple[float, float]:
    """The value that a text shows, and half a unit of its last digit."""
    total = half = 0.0
    for digits, unit in re.findall(r"(-?[\d,.]+) ?([a-zA-Z/%]*)", text):
        total += float(digits.replace(",", "")) * UNITS[unit]
        half = 0.5 * 10.0 ** -len(digits.partition(".")[2]) * UNITS[unit]
    return total, half


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (177_300_000, "177 ms"),
        (12_410_000, "12.4 ms"),
        (12_000_000, "12 ms"),
        (8_312_000, "8.31 ms"),
        (412_000, "412 us"),
        (999_400, "999 us"),
        (999_500, "1 ms"),
        (999.5, "1 us"),
        (3_400_000_000, "3.4 s"),
        (119.4e9, "119 s"),
        (119.6e9, "2 min"),
        (125e9, "2 min 5 s"),
        (7199e9, "119 min 59 s"),
        (7800e9, "2 h 10 min"),
        (7, "7 ns"),
        (0.2, "<1 ns"),
        (-0.2, ">-1 ns"),
        (0, "0 ns"),
        (-12_410_000, "-12.4 ms"),
        (-125e9, "-2 min 5 s"),
    ],
)
def test_a_duration_has_three_figures_and_the_unit_that_fits(ns: float, words: str) -> None:
    assert duration(ns) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (size(85_520_809_984), "79.6 GiB"),
        (size(80 * 2**30), "80 GiB"),
        (size(0), "0 B"),
        (size(512), "512 B"),
        (size(1023), "1,023 B"),
        (size(1023.4 * 2**20), "1,023 MiB"),
        (size(1023.6 * 2**20), "1 GiB"),
        (size(-3 * 2**20), "-3 MiB"),
        (percent(0.004), "<1 %"),
        (percent(0.005), "<1 %"),
        (percent(0.0051), "1 %"),
        (percent(0.0001, 1), "<0.1 %"),
        (percent(-0.004), ">-1 %"),
        (percent(0), "0 %"),
        (percent(0.41), "41 %"),
        (percent(12.345), "1,234 %"),
        (percent(0.000012, figures=2), "0.0012 %"),
        (percent(0.004, figures=2), "0.4 %"),
        (ratio(1.514), "1.51x"),
        (ratio(2), "2.00x"),
        (ratio(13.52), "13.5x"),
        (ratio(0.001), "<0.01x"),
        (ratio(123.4), "123x"),
        (percent_range(0.0, 0.2), "0 to 20 %"),
        (percent_range(0.2, 0.204), "20 %"),
        (ratio_range(1.2, 1.514), "1.20-1.51x"),
        (ratio_range(8.5, 12.04), "8.5-12.0x"),
        (ratio_range(1.2, 1.2), "1.20x"),
        (number(1.5), "1.5"),
        (number(1234.6), "1,235"),
        (number(0.01234), "0.0123"),
        (number(64.7, 2), "65"),
        (number(1234.6, 2), "1,235"),
        (number(1.2e-7, 2), "1.2e-07"),
        (wording.metric(989.4e12, "FLOP/s"), "989 TFLOP/s"),
        (wording.metric(999.6e6, "B/s"), "1 GB/s"),
        (wording.metric(0.05, "J"), "0.05 J"),
        (wording.quantity(1410, "MHz"), "1,410 MHz"),
        (wording.quantity(0.2, "W"), "<1 W"),
        (wording.count(1, "step"), "1 step"),
        (wording.count(0, "step"), "0 steps"),
        (wording.count(1234, "step"), "1,234 steps"),
        (wording.count(2.5, "core"), "2.5 cores"),
        (wording.count(2, "batch"), "2 batches"),
        (wording.count(2, "copy", "copies"), "2 copies"),
        (wording.count(1_234_567, "event"), "1,234,567 events"),
        (wording.clock_time(7.9), "0:07"),
        (wording.clock_time(750), "12:30"),
        (wording.clock_time(3723), "1:02:03"),
        (wording.number_ranges([0, 1, 2, 5]), "0-2, 5"),
        (wording.number_ranges([]), ""),
    ],
)
def test_numbers_as_words(text: str, words: str) -> None:
    assert text == words


@pytest.mark.parametrize("absent", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_an_absent_value_is_not_measured(name: str, absent: float | None) -> None:
    assert FORMATS[name](absent) == wording.UNKNOWN == "not measured"


def test_a_scale_and_a_clock_know_absent_values_too() -> None:
    assert scale(12e6)(math.nan) == scale(12e6).number(math.inf) == wording.clock_time(math.nan) == wording.UNKNOWN
    assert scale(math.nan)(12e9) == "12 s"


@given(values, st.sampled_from(sorted(FORMATS)), st.sampled_from([1.0, -1.0]))
def test_what_is_not_zero_is_never_shown_as_zero(value: float, name: str, sign: float) -> None:
    text = FORMATS[name](sign * value)
    assert re.search("[1-9]", text)
    assert text.startswith(("-", ">-")) == (sign < 0)


@given(values, values, st.sampled_from(sorted(FORMATS)))
def test_of_two_values_the_larger_is_never_shown_smaller(one: float, other: float, name: str) -> None:
    low, high = sorted((one, other))
    below, above = FORMATS[name](low), FORMATS[name](high)
    assume(not below.startswith("<") and not above.startswith("<"))
    assert parsed(below)[0] <= parsed(above)[0] * (1 + 1e-12)


@given(values, st.sampled_from(sorted(FORMATS)))
def test_a_value_is_read_back_within_half_of_its_last_digit(value: float, name: str) -> None:
    text = FORMATS[name](value)
    assume(not text.startswith("<"))
    shown, half = parsed(text)
    assert abs(shown - value) <= half + 1e-9 * value


@given(values, st.sampled_from(["duration", "size", "metric", "number", "ratio"]))
def test_a_value_keeps_its_first_three_figures(value: float, name: str) -> None:
    assume(name != "duration" or 10 <= value < 119e9)
    assume(name != "ratio" or value >= 1)
    exact = round(value) if name == "duration" and value < 999 else value
    assert parsed(FORMATS[name](value))[0] == pytest.approx(exact, rel=0.00501)


def test_times_read_together_share_unit_and_decimals() -> None:
    unit = scale(177e6)
    assert unit.range(118e6, 135.4e6) == "118-135"
    assert unit.range(118e6, 118.2e6) == "118"
    assert [scale(12e6)(ns) for ns in (12e6, 1.5e6)] == ["12.0 ms", "1.5 ms"]
    assert scale(999.6e3)(999.6e3) == "1.00 ms"


def test_numbers_of_a_column_have_the_same_decimals_even_if_they_round_to_zero() -> None:
    column = scale(177e6, figures=4)
    assert [column.number(ns) for ns in (0, 10_000, -10_000, -12e6)] == ["0.0", "0.0", "0.0", "-12.0"]
    assert [column.signed_number(ns) for ns in (0, 10_000, -10_000, 12e6)] == ["0.0", "0.0", "0.0", "+12.0"]
    assert [column(ns) for ns in (0, 10_000, -10_000)] == ["0 ms", "<0.1 ms", ">-0.1 ms"]


@given(st.floats(1, 1e13), st.integers(3, 5))
def test_the_longest_of_a_scale_keeps_its_figures(ns: float, figures: int) -> None:
    unit = scale(ns, figures)
    shown = float(unit.number(ns).replace(",", "")) * unit.unit_ns
    assert shown == pytest.approx(ns, rel=10.0 ** (1 - figures), abs=0.51)


@pytest.mark.parametrize(
    "phrase",
    [
        *(
            "an 8 ms",
            "an 8.31 ms",
            "an 11 ms",
            "an 18 ms",
            "an 80 ms",
            "a 110 ms",
            "a 1.8 ms",
            "a <1 ms",
            "an 11,000 ms",
        ),
        *(
            "an H100",
            "an A100",
            "an RTX 4090",
            "a V100",
            "a T4",
            "a Tesla T4",
            "an NVIDIA L4",
            "an all-reduce",
            "a step",
        ),
    ],
)
def test_an_article_fits_its_pronunciation(phrase: str) -> None:
    assert wording.article(phrase.partition(" ")[2]) == phrase


def test_a_sentence_starts_large_and_ends() -> None:
    assert sentence("none needed: all is well") == "None needed: all is well."
    assert sentence("Really?") == "Really?"
    assert sentence("") == ""


HOSTILE = "a\x1b[31m\u202egpj.exe\u2066\x00\ud800\u200b\n\u2028z"


def test_characters_that_cannot_be_seen_are_spelled_out() -> None:
    shown = clean(HOSTILE)
    assert shown.isprintable()
    assert "\\x1b[31m\\u202egpj.exe\\u2066\\x00\\ud800\\u200b\\n\\u2028z" in shown
    assert clean("Zoë 数据 µs 🚀") == "Zoë 数据 µs 🚀"


def test_code_keeps_its_lines_and_nothing_else_unseen() -> None:
    assert clean_code("if x:\n\tprint(1)\r") == "if x:\n    print(1)\\r"


@given(st.text(max_size=300), st.integers(10, 200))
def test_shortened_text_is_short_and_keeps_both_ends(text: str, most: int) -> None:
    short = shorten(text, most)
    assert len(short) <= most
    assert short[:3] == text[:3]
    assert short[-1:] == text[-1:]


@given(st.text(st.characters(), max_size=200))
def test_cleaned_text_can_be_printed_and_written_anywhere(text: str) -> None:
    shown = clean(text)
    shown.encode("utf-8")
    assert not any(ord(character) < 32 for character in shown)


@pytest.mark.parametrize(
    ("word", "typed"), [("before", "before"), ("case 2", '"case 2"'), ('a "b"', "'a \"b\"'"), ("", '""')]
)
def test_a_word_with_a_blank_is_typed_in_quotes(word, typed):
    assert shell_word(word) == typed
    assert shlex.split(typed) == [word]


@pytest.mark.parametrize(
    ("unit", "singular"),
    [
        ("all-reduces for an update of 4 micro-batches", "all-reduce for an update of 4 micro-batches"),
        ("wrong values", "wrong value"),
        ("copies", "copy"),
        ("batches", "batch"),
        ("losses", "loss"),
        ("images/s", "image/s"),
        ("ms per step", "ms per step"),
        ("times as fast", "times as fast"),
        ("(loss)", "(loss)"),
    ],
)
def test_a_unit_of_one_is_in_the_singular(unit, singular):
    assert unit_of(1, unit) == singular
    assert unit_of(2, unit) == unit


@pytest.mark.parametrize(
    ("typed", "near"),
    [("befor", "before"), ("BEFORE", "before"), ("aftr", "after"), ("be", "before"), ("zzz", ""), ("", "")],
)
def test_the_nearest_name_is_suggested_if_there_is_one(typed, near):
    assert did_you_mean(typed, ["before", "after"]) == (f"did you mean {near}?" if near else "")


@pytest.mark.parametrize(
    ("message", "near"),
    [
        ("argument --level: invalid choice: 'trce' (choose from 'sensors', 'trace', 'deep')", "trace"),
        ("argument --level: invalid choice: 'trce' (choose from sensors, trace, deep)", "trace"),
        ("unrecognized arguments: --lvel=trace x", "--level"),
        ("unrecognized arguments: extra", ""),
        ("the following arguments are required: path", ""),
    ],
)
def test_a_message_of_argparse_is_completed_with_the_nearest_word(message, near):
    assert usage_suggestion(message, ["--level", "--steps"]) == (f"did you mean {near}?" if near else "")
