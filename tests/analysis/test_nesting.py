"""Innermost and outermost events, against a clock that asks at every instant."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.events.nesting import innermost, outermost
from gpulab.tables import EVENTS, Kind
from tests.support.runs.made_runs import event, rows

TREES = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12)


def laid_out(trees, at=0, thread=0):
    """Calls as events: each takes 1 us before, between and after what it holds."""
    events = []
    for tree in trees:
        held, end = laid_out(tree, at + 1, thread)
        events += [event(Kind.OP, "op", at / 1000, (end + 1 - at) / 1000, thread=thread), *held]
        at = end + 2
    return events, at


@given(TREES, TREES, st.randoms())
def test_at_every_instant_the_shortest_call_that_covers_it_is_innermost(one, other, random):
    events = laid_out(one)[0] + laid_out(other, thread=1)[0]
    random.shuffle(events)
    table = rows(EVENTS, events)
    found = innermost(table)
    told = {}
    for start, end, row in zip(*found, strict=True):
        for at in range(start, end, 1000):
            told[int(table["thread"][row]), at] = int(row)
    expected = {}
    for row, each in enumerate(events):
        for at in range(each["start_ns"], each["start_ns"] + each["dur_ns"], 1000):
            key = each["thread"], at
            if key not in expected or each["dur_ns"] < events[expected[key]]["dur_ns"]:
                expected[key] = row
    assert told == expected
    assert found.per_row_ns(len(events)).sum() == 1000 * len(expected)


@given(TREES)
def test_the_outermost_are_the_roots(trees):
    events, _ = laid_out(trees)
    starts = rows(EVENTS, events)["start_ns"][outermost(rows(EVENTS, events))]
    roots = []
    at = 0
    for tree in trees:
        roots.append(at * 1000)
        at = laid_out([tree], at)[1]
    assert np.sort(starts).tolist() == roots


def test_neighbours_that_overlap_by_a_rounded_nanosecond_are_neighbours():
    table = rows(EVENTS, [event(Kind.OP, "a", 0, 1), event(Kind.OP, "b", 0.999999, 1)])
    own = innermost(table).per_row_ns(2)
    assert own.min() >= 999_999
    assert own.sum() == 1_999_999
    assert outermost(table).tolist() == [True, True]
