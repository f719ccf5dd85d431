"""Fixes and blanks in a cell: the solution, the starter and the sabotaged cell come from one text."""

from __future__ import annotations

import pytest

from gpulab import GpulabError
from gpulab.lessons.regions import region_kinds, sabotaged, solution, starter

CELL = """def loaders():
    # <fix>
    # was: first = make(workers=0)
    first = make(workers=2)
    # </fix>
    # <blank> choose a prefetch factor
    # was: if slow:
    # was:     second = None
    second = make(prefetch=4)
    # </blank>
    return first, second"""


def test_the_solution_is_the_cell_without_marks():
    assert solution(CELL) == (
        "def loaders():\n    first = make(workers=2)\n    second = make(prefetch=4)\n    return first, second"
    )


def test_the_starter_contains_the_fixes_and_the_task_of_each_blank():
    assert starter(CELL) == (
        "def loaders():\n    first = make(workers=2)\n    # your turn: choose a prefetch factor\n"
        "    if slow:\n        second = None\n    return first, second"
    )


def test_the_sabotaged_cell_contains_the_old_code():
    assert sabotaged(CELL) == (
        "def loaders():\n    first = make(workers=0)\n    if slow:\n        second = None\n    return first, second"
    )


def test_a_cell_without_regions_is_the_same_in_every_form():
    cell = "%%gpuprofile before\nx = 1  # was: 2\n\n"
    assert solution(cell) == starter(cell) == sabotaged(cell) == cell
    assert region_kinds(cell) == ()


def test_the_kinds_of_the_regions_of_a_cell_are_listed():
    assert region_kinds(CELL) == ("fix", "blank")


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("# <fix>\nx = 1", "has no end"),
        ("x = 1\n# </fix>", "has no start"),
        ("# <fix>\nx = 1\n# </blank>", "has no start"),
        ("# <fix>\n# <blank> y\n# </blank>\n# </fix>", "inside another"),
    ],
)
def test_marks_that_do_not_match_are_an_error(cell, why):
    with pytest.raises(GpulabError, match=why):
        region_kinds(cell)
