"""Numbers and foreign text in words: units, figures, nothing hidden, nothing dangerous."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab.wording import clean, clean_code, duration, percent, ratio, scale, sentence, shorten, size


@pytest.mark.parametrize(
    ("ns", "words"),
    [
        (177_300_000, "177 ms"),
        (12_410_000, "12.4 ms"),
        (8_312_000, "8.31 ms"),
        (412_000, "412 us"),
        (999_900, "1.00 ms"),
        (3_400_000_000, "3.40 s"),
        (125e9, "2 min 5 s"),
        (7, "7 ns"),
        (0, "0 ns"),
    ],
)
def test_a_time_has_three_figures_and_the_unit_that_fits(ns, words):
    assert duration(ns) == words


def test_what_was_not_measured_is_said_and_never_shown_as_zero():
    assert (
        duration(None) == duration(math.nan) == percent(None) == percent(math.nan) == size(math.nan) == "not measured"
    )


def test_what_is_there_but_tiny_is_not_shown_as_zero_and_zero_is():
    assert percent(0.0001, 1) == "<0.1 %"
    assert percent(0) == "0 %"
    column = scale(177e6, figures=4)
    assert column.number(10_000) == "<0.1"
    assert column.number(-10_000) == ">-0.1"
    assert column.number(0) == "0"


def test_times_read_together_share_unit_and_decimals():
    unit = scale(177e6)
    assert unit.range(118e6, 135.4e6) == "118-135"
    assert unit.range(118e6, 118.2e6) == "118"


@given(st.floats(1, 1e13), st.integers(3, 5))
def test_the_longest_of_a_scale_keeps_its_figures(ns, figures):
    unit = scale(ns, figures)
    shown = float(unit.number(ns)) * unit.unit_ns
    assert shown == pytest.approx(ns, rel=10.0 ** (1 - figures), abs=0.51)


def test_sizes_and_ratios():
    assert size(85_520_809_984) == "79.6 GiB"
    assert size(0) == "0 B"
    assert size(512) == "512 B"
    assert ratio(1.514) == "1.51x"


def test_a_sentence_starts_large_and_ends():
    assert sentence("none needed: all is well") == "None needed: all is well."
    assert sentence("Really?") == "Really?"
    assert sentence("") == ""


HOSTILE = "a\x1b[31m\u202egpj.exe\u2066\x00\ud800\u200b\n\u2028z"


def test_characters_that_cannot_be_seen_are_spelled_out():
    shown = clean(HOSTILE)
    assert shown.isprintable()
    assert "\\x1b[31m\\u202egpj.exe\\u2066\\x00\\ud800\\u200b\\n\\u2028z" in shown
    assert clean("Zoë 数据 µs 🚀") == "Zoë 数据 µs 🚀"


def test_code_keeps_its_lines_and_nothing_else_unseen():
    assert clean_code("if x:\n\tprint(1)\r") == "if x:\n    print(1)\\r"


@given(st.text(max_size=300), st.integers(10, 200))
def test_shortened_text_is_short_and_keeps_both_ends(text, most):
    short = shorten(text, most)
    assert len(short) <= most
    assert short[:3] == text[:3]
    assert short[-1:] == text[-1:]


@given(st.text(st.characters(), max_size=200))
def test_cleaned_text_can_be_printed_and_written_anywhere(text):
    shown = clean(text)
    shown.encode("utf-8")
    assert not any(ord(character) < 32 for character in shown)
