"""The claims of the course: most are observed on the machine that runs it, and the page lists them all."""

from __future__ import annotations

from gpulab.lessons.course import lessons
from gpulab.lessons.sources import LIVE, MODELLED
from tools import claims

MIN_LIVE_FRAC = 0.6


def test_the_page_lists_the_claims_of_the_stored_notebooks():
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(), "run tools/claims.py"


def test_most_claims_are_live_without_a_gpu():
    stored = claims.stored_claims()
    assert sum(claim.strength == LIVE for claim in stored) >= MIN_LIVE_FRAC * len(stored)


def test_every_notebook_has_claims():
    assert {claim.lesson for claim in claims.stored_claims()} == {one.id for one in lessons()}


def test_the_strength_of_an_experiment_is_that_of_its_best_claim():
    assert claims.strength_of("05.1") == LIVE
    assert claims.strength_of("07.3") == MODELLED
    assert claims.strength_of("99.9") == "mentioned"
