"""Repeated patterns in a sequence of work, checked with written-out patterns and with a slow search."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.kernels.repeats import (
    MAX_PATTERN_LENGTH,
    MIN_PATTERN_REPEATS,
    find_repeats,
    in_runs_of_equals,
    row_keys,
)

UNIQUE = "-"  # stands for items that differ from all others


def repeats_in(pattern, alone=""):
    letters = np.array([ord(each) for each in pattern])
    key = np.where(letters == ord(UNIQUE), -np.arange(len(letters)) - 1, letters)
    return find_repeats(key, np.isin(letters, [ord(each) for each in alone]))


def begins(pattern, alone=""):
    return np.flatnonzero(repeats_in(pattern, alone).starts_iteration).tolist()


def test_each_loop_iteration_is_found():
    assert begins("xy" + "abc" * 8 + "z") == list(range(2, 26, 3))
    assert repeats_in("xy" + "abc" * 8 + "z").in_loop.tolist() == [False] * 2 + [True] * 24 + [False]


def test_fewer_than_eight_repeats_are_no_loop():
    assert begins("abc" * 7) == []
    assert not repeats_in("abc" * 7).in_loop.any()


def test_an_item_that_never_follows_itself_starts_an_iteration_but_no_loop():
    assert begins("sss", alone="s") == [1, 2]
    assert begins("aaa", alone="s") == []
    assert not repeats_in("sss", alone="s").in_loop.any()


def test_nested_loops_are_found():
    pattern = ("a" * 8 + "b") * 8
    assert set(range(0, 72, 9)) <= set(begins(pattern))
    assert repeats_in(pattern).in_loop.all()


def test_an_item_outside_all_patterns_interrupts_a_loop():
    assert begins("ab-" * 20) == []


def by_search(letters):
    """Places in a stretch that some pattern fills, eight times and more: every stretch tried."""
    member = np.zeros(len(letters), bool)
    for length in range(1, MAX_PATTERN_LENGTH + 1):
        for first in range(len(letters) - MIN_PATTERN_REPEATS * length + 1):
            if all(
                letters[at] == letters[at + length] for at in range(first, first + (MIN_PATTERN_REPEATS - 1) * length)
            ):
                member[first : first + MIN_PATTERN_REPEATS * length] = True
    return member


@given(st.lists(st.tuples(st.text("ab", min_size=1, max_size=3), st.integers(1, 10)), max_size=6))
def test_loops_equal_those_of_a_slow_search(parts):
    letters = "".join(text * times for text, times in parts)
    result = repeats_in(letters)
    assert result.in_loop.tolist() == by_search(letters).tolist()
    assert not (result.starts_iteration & ~result.in_loop).any()


def test_runs_of_eight_equal_items_are_found():
    key = np.array([1] * 8 + [2] * 7 + [1] * 9)
    assert np.flatnonzero(in_runs_of_equals(key)).tolist() == [*range(8), *range(15, 24)]
    assert not in_runs_of_equals(key[:0]).any()


def test_rows_have_the_same_key_if_all_columns_are_equal():
    kinds = row_keys(np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5]), part=np.array([True, True, True, False]))
    assert len(set(kinds.tolist())) == 4
    kinds = row_keys(np.array([1, 1, 2, 1]), np.array([5, 6, 5, 5]), part=np.ones(4, bool))
    assert kinds[0] == kinds[3]
