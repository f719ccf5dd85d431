"""A few hundred damaged files of the ten thousand that `make fuzz` opens."""

from __future__ import annotations

import json

import pytest

from gpulab import trace
from tests.support import fuzz
from tests.support.tiers import at_night


@pytest.mark.full
def test_damaged_files_give_a_run_or_an_error_that_says_what_to_do():
    tally, failures, _ = fuzz.run(range(at_night(1000, otherwise=100)), seed=1)
    assert not failures
    assert set(tally) == {"a run", "a part, and what was lost", "refused with a reason"}


def test_every_undamaged_fuzz_input_is_read_completely():
    for name, text in fuzz.originals():
        if name != "run.gpulab":
            assert len(trace.read(text).event_rows) == 180, name


@pytest.mark.parametrize("maker", fuzz.MAKERS[:2] + fuzz.MAKERS[5:])
def test_every_kind_of_damage_changes_the_text(maker):
    text = json.dumps({"traceEvents": list(fuzz.events())}).encode()
    dice = fuzz.random.Random(3)
    assert any(maker(dice, text) != text for _ in range(5))


def test_a_fuzz_timeout_is_a_failure(monkeypatch):
    monkeypatch.setattr(fuzz, "LIMIT_S", 1)

    def endless(*_args, **_more):
        while True:
            pass

    monkeypatch.setattr(fuzz.store, "is_run", endless)
    _, failures, _ = fuzz.run([0], seed=1)
    assert "TooLong" in failures[0]
