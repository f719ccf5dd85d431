"""Blanks in a cell: the solution and the starter come from one text."""

from __future__ import annotations

import pytest

from gpulab import GpulabError
from gpulab.lessons.regions import solution, starter, tasks

CELL = """def loaders():
    # <blank> load with two workers
    # was: first = make(workers=0)
    first = make(workers=2)
    # </blank>
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


def test_the_starter_contains_the_old_code_and_the_task_of_each_blank():
    assert starter(CELL) == (
        "def loaders():\n    # your turn: load with two workers\n    first = make(workers=0)\n"
        "    # your turn: choose a prefetch factor\n    if slow:\n        second = None\n    return first, second"
    )


def test_a_cell_without_blanks_is_the_same_in_every_form():
    cell = "%%gpuprofile before\nx = 1  # was: 2\n\n"
    assert solution(cell) == starter(cell) == cell
    assert tasks(cell) == ()


def test_the_tasks_of_a_cell_are_listed():
    assert tasks(CELL) == ("load with two workers", "choose a prefetch factor")


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ("# <blank> x\nx = 1", "has no end"),
        ("x = 1\n# </blank>", "has no start"),
        ("# <blank> x\n# <blank> y\n# </blank>\n# </blank>", "inside another"),
    ],
)
def test_marks_that_do_not_match_are_an_error(cell, why):
    with pytest.raises(GpulabError, match=why):
        tasks(cell)
