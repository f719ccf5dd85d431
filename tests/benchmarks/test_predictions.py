"""The tally of benchmarks/predictions/predictions.py, and its list of pairs: no loop is run here."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from benchmarks.predictions.pairs import PAIRS
from benchmarks.predictions.predictions import Asked, Outcome, row, summary, tally
from gpulab.replay.parsing import parse_changes


def outcome(*likely, ratio=0.5, work=1, kind="workers", held_out=False, width=0.1, refused=None):
    return Outcome(
        name="a_pair",
        kind=kind,
        spec="workers=2",
        about="two workers",
        held_out=held_out,
        work=work,
        before_ms=(10.0, 10.0, 30.0),
        after_ms=(10 * ratio, 10 * ratio, 90.0),
        asked=tuple(Asked(best=each - width, likely=each, worst=each + width, floor=0.1) for each in likely),
        refused=refused,
    )


def test_what_is_measured_is_the_ratio_of_medians():
    assert outcome(0.5).ratio == pytest.approx(0.5)


def test_a_range_holds_what_lies_between_its_ends():
    assert outcome(0.5, 0.58, 0.65).inside == 2


def test_the_error_of_a_saving_is_its_share_of_the_measured_one():
    assert outcome(0.6).error == pytest.approx(0.2)
    assert outcome(0.4).error == pytest.approx(0.2)
    assert outcome(0.5, 0.6, 0.9).error == pytest.approx(0.2)


def test_larger_steps_are_judged_by_what_a_sample_saves():
    told = outcome(1.2, ratio=2.0, work=4)
    assert told.saving == pytest.approx(0.5)
    assert told.error == pytest.approx(0.4)


def test_next_to_no_saving_has_no_error():
    assert outcome(0.9, ratio=0.99).error is None


def test_every_prediction_counts_and_refusals_are_told():
    told = tally([outcome(0.5, 0.5, 0.9), outcome(0.6, kind="batch"), outcome(kind="batch", refused="no steps")])
    assert told.inside_frac == pytest.approx(3 / 4)
    assert told.error == pytest.approx(0.1)
    assert (told.pairs, told.kinds, told.asked, told.refused) == (3, 2, 4, 1)


def test_a_miss_is_explained_and_what_was_held_out_is_marked():
    missed = outcome(0.9, held_out=True)
    assert "a_pair*" in row(missed)
    assert len(row(missed).splitlines()) == 3
    assert len(row(outcome(0.5)).splitlines()) == 2
    assert "held out" in summary([missed], 60.0)


def test_there_are_enough_pairs_of_enough_kinds_and_half_of_them_are_held_out():
    assert len({pair.name for pair in PAIRS}) == len(PAIRS) >= 20
    assert len({pair.kind for pair in PAIRS}) >= 6
    assert 0.4 <= sum(pair.held_out for pair in PAIRS) / len(PAIRS) <= 0.6


def test_every_pair_asks_for_changes_that_there_are():
    for pair in PAIRS:
        assert parse_changes(pair.spec.format(f=0.5))
        assert ("{f}" in pair.spec) == (pair.alone is not None)
