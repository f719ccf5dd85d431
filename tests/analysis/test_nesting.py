"""Innermost and outermost events, against a clock that asks at every instant."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpulab.analysis.events.nesting import enclosing_ranges, innermost, outermost
from gpulab.tables import EVENTS, EventKind
from tests.support.runs.made_runs import event, rows

TREES = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=3), max_leaves=12)


def laid_out(trees, at=0, thread=0):
    """Calls as events: each takes 1 us before, between and after what it holds."""
    events = []
    for tree in trees:
        children, end = laid_out(tree, at + 1, thread)
        events += [event(EventKind.OP, "op", at / 1000, (end + 1 - at) / 1000, thread=thread), *children]
        at = end + 2
    return events, at


@given(TREES, TREES, st.randoms())
def test_at_every_instant_the_shortest_call_that_covers_it_is_innermost(one, other, random):
    events = laid_out(one)[0] + laid_out(other, thread=1)[0]
    random.shuffle(events)
    table = rows(EVENTS, events)
    segments = innermost(table)
    innermost_rows = {}
    for start, end, row in zip(*segments, strict=True):
        for at in range(start, end, 1000):
            innermost_rows[int(table["thread"][row]), at] = int(row)
    expected = {}
    for row, instant in enumerate(events):
        for at in range(instant["start_ns"], instant["start_ns"] + instant["dur_ns"], 1000):
            key = instant["thread"], at
            if key not in expected or instant["dur_ns"] < events[expected[key]]["dur_ns"]:
                expected[key] = row
    assert innermost_rows == expected
    assert segments.per_row_ns(len(events)).sum() == 1000 * len(expected)


@given(TREES)
def test_outermost_rows_are_the_roots_of_the_trees(trees):
    events, _ = laid_out(trees)
    starts = rows(EVENTS, events)["start_ns"][outermost(rows(EVENTS, events))]
    roots = []
    at = 0
    for tree in trees:
        roots.append(at * 1000)
        at = laid_out([tree], at)[1]
    assert np.sort(starts).tolist() == roots


def test_events_that_overlap_by_a_rounding_error_do_not_nest():
    table = rows(EVENTS, [event(EventKind.OP, "a", 0, 1), event(EventKind.OP, "b", 0.999999, 1)])
    self_ns = innermost(table).per_row_ns(2)
    assert self_ns.min() >= 999_999
    assert self_ns.sum() == 1_999_999
    assert outermost(table).tolist() == [True, True]


@given(TREES, TREES, st.randoms())
def test_a_time_lies_in_the_outermost_call_of_its_thread_that_covers_it(one, other, random):
    events = laid_out(one)[0] + laid_out(other, thread=1)[0]
    random.shuffle(events)
    table = rows(EVENTS, events)
    ranges = table.select(outermost(table))
    instants = [(thread, at) for thread in (0, 1, 2) for at in range(-500, 60_000, 500)]
    result = enclosing_ranges(ranges, *zip(*instants, strict=True))
    for (thread, at), row in zip(instants, result.tolist(), strict=True):
        around = [
            number
            for number in range(len(ranges))
            if ranges["thread"][number] == thread
            and ranges["start_ns"][number] <= at < ranges["start_ns"][number] + ranges["dur_ns"][number]
        ]
        assert [row] == (around or [-1])
