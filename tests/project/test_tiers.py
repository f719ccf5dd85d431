"""Tiers of tests: the first covers every pair of parameters, each test is in one, and a night adds the rest."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.support.tiers import covering_array, every_nth, first_tier, is_night, tiered_product

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("sizes", "strength"), [((2, 2, 3), 2), ((4, 3, 5, 2), 2), ((16, 4), 1), ((3, 3, 3), 3)])
def test_a_covering_array_holds_every_combination_of_so_many_columns(sizes, strength):
    rows = covering_array(sizes, strength)
    for columns in itertools.combinations(range(len(sizes)), strength):
        held = {tuple(row[column] for column in columns) for row in rows}
        assert held == set(itertools.product(*(range(sizes[column]) for column in columns)))


def test_values_of_a_short_axis_take_turns():
    values = [row[1] for row in covering_array((16, 4), 1)]
    assert [values.count(value) for value in range(4)] == [4, 4, 4, 4]


def test_a_product_keeps_every_combination_and_marks_most_of_them_for_the_night():
    cases = tiered_product(range(5), "abc", (True, False))
    assert [case.values for case in cases] == list(itertools.product(range(5), "abc", (True, False)))
    assert sum(not case.marks for case in cases) == len(covering_array((5, 3, 2)))


def test_what_is_left_out_of_the_first_tier_bears_the_mark():
    kept, marked = first_tier("ab", "a")
    assert (kept, [mark.name for mark in marked.marks]) == ("a", ["full"])
    assert [value for value in every_nth(range(6), 3) if isinstance(value, int)] == [0, 3]
    _, second = every_nth([pytest.param(1, 2, id="first"), pytest.param(3, 4, id="second")], 2)
    assert (second.values, second.id, [mark.name for mark in second.marks]) == ((3, 4), "second", ["full"])


def test_the_commands_of_the_makefile_run_each_test_once():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    asked = re.findall(r"-m pytest -m (?:'([^']*)'|(alone)) ", makefile)
    expressions = [quoted or word for quoted, word in asked]
    for full, alone in itertools.product((True, False), repeat=2):
        chosen = [each for each in expressions if eval(each, {"full": full, "alone": alone})]
        assert len(chosen) == 1, (full, alone, chosen)


def test_tests_of_the_night_run_only_then(request):
    ours = [item for item in request.session.items if item.get_closest_marker("night")]
    assert is_night() or ours == []


def test_a_mark_of_the_night_is_enough():
    marks = [case.marks[0].name for case in every_nth("abcd", 2, pytest.mark.night) if not isinstance(case, str)]
    assert marks == ["night", "night"]
