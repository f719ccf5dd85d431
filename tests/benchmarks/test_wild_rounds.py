"""More rounds of a wild loop go to the changes that may still win, and one disturbed round decides nothing."""

import pytest

from benchmarks.wild.loop import Change, Loop
from benchmarks.wild.outcome import UNCHANGED, Outcome
from benchmarks.wild.verdict import contenders, loop_result, undecided, with_rounds


def outcome(seconds):
    return Outcome(seconds=seconds, cpu_seconds=seconds, samples=64, loss=0.5, optimizer_steps=4, peak_memory_mib=300.0)


def measured(**seconds):
    """Two rounds of a cell that takes 10 s and of changes that take these seconds."""
    changes = tuple(Change(name, "other", edits={"a": "b"}) for name in seconds)
    loop = Loop(
        description="",
        prepare=lambda scale: {},
        cell="",
        changes=changes,
        samples="64",
        seconds=10,
        name="misc/example",
    )
    times = {UNCHANGED: (10.0, 10.0), **seconds}
    return loop_result(loop, {name: [outcome(each) for each in both] for name, both in times.items()}, 1.0)


def test_a_change_that_was_fast_in_one_round_may_win():
    result = measured(faster=(8.0, 8.0), unclear=(8.2, 11.0), slower=(10.0, 9.5))
    assert contenders(result) == ["faster", "unclear"]
    assert undecided(result, contenders(result))
    assert result["best_change"] == "faster"


def test_more_rounds_overrule_two_disturbed_ones():
    result = measured(first=(8.0, 8.0), second=(5.0, 12.0))
    rounds = [{UNCHANGED: outcome(10.0), "first": outcome(8.0), "second": outcome(5.0)} for _ in range(3)]
    changes = with_rounds(result, rounds)["changes"]
    assert with_rounds(result, rounds)["best_change"] == "second"
    assert changes["second"]["ratio"] == pytest.approx(2.0)
    assert changes["second"]["low"] == pytest.approx(2.0)  # the round of 12 s is left out


def test_a_change_without_more_rounds_keeps_its_ratio():
    result = measured(faster=(8.0, 8.0), slower=(10.0, 12.5))
    more = with_rounds(result, [{UNCHANGED: outcome(20.0), "faster": outcome(16.0)}] * 3)
    assert more["changes"]["slower"] == result["changes"]["slower"]
    assert more["base_s"] == [10.0, 10.0, 20.0, 20.0, 20.0]
    assert len(more["changes"]["faster"]["seconds"]) == 5


def test_a_change_that_was_the_fastest_in_every_round_needs_no_more():
    result = measured(faster=(5.0, 5.2), slower=(8.0, 8.2))
    assert contenders(result) == ["faster"]
    assert not undecided(result, contenders(result))
