"""The campaign of attacks finds planted differences."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.comparison import differences
from tests.chaos.documented import DOCUMENTED, documented_reason
from tests.chaos.program import Observation, Outcome, Program

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Program(name="planted", recorder="profile", run=lambda _: None)


def observation(**fields):
    return Observation(**{"outcome": Outcome(value="1"), **fields})


def defects(plain, recorded):
    """The differences that nothing documents."""
    found = differences(PROGRAM, plain, recorded)
    return [each.field for each in found if documented_reason(PROGRAM, each, recorded) is None]


@pytest.mark.parametrize(
    ("fields", "defect"),
    [
        ({"outcome": Outcome(value="2")}, "outcome"),
        ({"outcome": Outcome(chain=(("raised", "ValueError", "()"),))}, "outcome"),
        ({"notes": ["another step"]}, "notes"),
        ({"calls": {"len": 2}}, "calls len"),
        ({"stdout": "more"}, "stdout"),
        ({"stderr": "more"}, "stderr"),
        ({"changes": {"fds": ("0", "1")}}, "left behind: fds"),
        ({"rss_growth_bytes": 2**30}, "resident memory"),
        ({"peak_growth_bytes": 2**31}, "peak memory"),
        ({"trouble": "hung"}, "trouble"),
    ],
)
def test_a_planted_difference_is_a_defect(fields, defect):
    assert defects(observation(), observation(**fields)) == [defect]
    assert defects(observation(), observation()) == []


def test_one_more_call_of_a_users_method_is_documented():
    assert defects(observation(calls={"len": 1}), observation(calls={"len": 2})) == []


def test_a_run_that_ends_elsewhere_is_judged_by_what_it_leaves_itself():
    plain = observation(changes={"hooks": ("a", "b")})
    recorded = observation(outcome=Outcome(value="2"), changes={"fds": ("0", "1")})
    assert defects(plain, recorded) == ["outcome", "left behind: fds"]


def test_every_documented_difference_has_a_name_and_a_reason():
    assert len({entry.name for entry in DOCUMENTED}) == len(DOCUMENTED)
    assert all(len(entry.reason) > 20 for entry in DOCUMENTED)
