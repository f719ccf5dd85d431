"""Span arithmetic against sets of integers: small enough to count by hand, and counted by another algorithm."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpulab.intervals import (
    Coverage,
    Spans,
    clip,
    covered_ns,
    gaps,
    intersect,
    longest_spans,
    no_spans,
    spans_longer_than,
    subtract,
    union,
    union_of,
)

SPANS = st.lists(st.tuples(st.integers(-30, 30), st.integers(-5, 15)), max_size=12)


def spans(pairs):
    start = np.array([start for start, _ in pairs], np.int64)
    return union(start, start + np.array([length for _, length in pairs], np.int64))


def instants(pairs):
    return {at for start, length in pairs for at in range(start, start + length)}


def covered(spans):
    return {at for start, end in zip(spans.start_ns, spans.end_ns, strict=True) for at in range(start, end)}


def same(one, other):
    return [ends.tolist() for ends in one] == [ends.tolist() for ends in other]


def is_normal(spans):
    return bool((spans.end_ns > spans.start_ns).all() and (spans.start_ns[1:] > spans.end_ns[:-1]).all())


@given(SPANS)
def test_a_union_covers_what_its_spans_cover_and_is_in_normal_form(pairs):
    covered_spans = spans(pairs)
    assert covered(covered_spans) == instants(pairs)
    assert is_normal(covered_spans)
    assert covered_spans.total_ns == len(instants(pairs))


@given(SPANS)
def test_a_union_of_a_union_is_itself(pairs):
    covered_spans = spans(pairs)
    assert same(union(*covered_spans), covered_spans)
    assert same(union_of(covered_spans, covered_spans), covered_spans)
    assert same(intersect(covered_spans, covered_spans), covered_spans)
    assert not subtract(covered_spans, covered_spans).total_ns


@given(st.lists(SPANS, max_size=4))
def test_several_merge_to_what_at_least_one_covers(several):
    covered_spans = union_of(*map(spans, several))
    assert covered(covered_spans) == set().union(*map(instants, several))
    assert is_normal(covered_spans)
    assert same(covered_spans, union_of(*map(spans, reversed(several))))


@given(SPANS, st.randoms())
def test_the_order_of_spans_does_not_matter(pairs, random):
    shuffled = list(pairs)
    random.shuffle(shuffled)
    assert same(spans(pairs), spans(shuffled))


@given(SPANS, SPANS)
def test_intersection_and_difference_are_those_of_sets(one, other):
    assert covered(intersect(spans(one), spans(other))) == instants(one) & instants(other)
    assert covered(subtract(spans(one), spans(other))) == instants(one) - instants(other)
    assert is_normal(intersect(spans(one), spans(other)))
    assert is_normal(subtract(spans(one), spans(other)))
    assert same(intersect(spans(one), spans(other)), intersect(spans(other), spans(one)))


@given(SPANS, SPANS)
def test_covered_and_uncovered_time_sum_to_the_window(one, other):
    covered_spans = spans(one)
    inside, outside = intersect(covered_spans, spans(other)), subtract(covered_spans, spans(other))
    assert inside.total_ns + outside.total_ns == covered_spans.total_ns


@given(SPANS, st.integers(-40, 40), st.integers(0, 60))
def test_gaps_and_clip_partition_a_window(pairs, start, length):
    window = set(range(start, start + length))
    assert covered(gaps(spans(pairs), start, start + length)) == window - instants(pairs)
    assert covered(clip(spans(pairs), start, start + length)) == window & instants(pairs)
    assert is_normal(gaps(spans(pairs), start, start + length))
    assert same(gaps(gaps(spans(pairs), -40, 130), -40, 130), clip(spans(pairs), -40, 130))


@given(SPANS, st.lists(st.tuples(st.integers(-40, 40), st.integers(-3, 40)), max_size=8))
def test_covered_time_of_many_windows_is_that_of_each(pairs, windows):
    start = [start for start, _ in windows]
    end = [start + length for start, length in windows]
    expected = [len(instants(pairs) & set(range(a, b))) for a, b in zip(start, end, strict=True)]
    assert covered_ns(spans(pairs), start, end).tolist() == expected
    coverage = Coverage.of(spans(pairs))
    assert coverage.covered_ns(start, end).tolist() == expected
    assert coverage.total_ns == len(instants(pairs))


@given(SPANS, st.lists(st.integers(-50, 60), min_size=1, max_size=12))
def test_adjoining_windows_partition_what_is_covered(pairs, edges):
    edges = sorted([-100, *edges, 100])
    coverage = Coverage.of(spans(pairs))
    per_interval = coverage.covered_ns(edges[:-1], edges[1:])
    assert per_interval.tolist() == [int(coverage.covered_ns(a, b)) for a, b in pairwise(edges)]
    assert per_interval.sum() == coverage.total_ns
    assert coverage.covered_before_ns(edges).tolist() == [0, *per_interval.cumsum().tolist()]


@given(SPANS, st.integers(-3, 20))
def test_longest_spans_are_selected(pairs, than):
    covered_spans = spans(pairs)
    lengths = [(int(end - start), -int(start)) for start, end in zip(*covered_spans, strict=True)]
    assert (
        spans_longer_than(covered_spans, than).end_ns - spans_longer_than(covered_spans, than).start_ns
    ).tolist() == [n for n, _ in lengths if n > than]
    for count in (0, 1, 3, 99):
        best = longest_spans(covered_spans, count)
        assert is_normal(best)
        expected_lengths = sorted(
            ((int(end - start), -int(start)) for start, end in zip(*best, strict=True)), reverse=True
        )
        assert expected_lengths == sorted(lengths, reverse=True)[:count]


def test_spans_of_today_in_unix_nanoseconds_lose_nothing():
    start = np.array([1_795_248_160_898_977_301], np.int64)
    merged = union(start, start + 1)
    assert merged.total_ns == 1
    assert int(merged.start_ns[0]) == 1_795_248_160_898_977_301


def test_empty_spans_give_empty_results():
    some = Spans(np.array([1]), np.array([2]))
    assert union([], []).total_ns == 0
    assert intersect(no_spans(), some).total_ns == intersect(some, no_spans()).total_ns == 0
    assert subtract(some, no_spans()).total_ns == 1
    assert covered_ns(no_spans(), [0], [9]).tolist() == [0]
    assert gaps(no_spans(), 3, 3).total_ns == 0
    assert union_of().total_ns == union_of(no_spans(), no_spans()).total_ns == 0
    assert Coverage.of(no_spans()).covered_ns([0, 9], [9, 20]).tolist() == [0, 0]
    assert Coverage.of(some).covered_ns([], []).tolist() == []
    assert longest_spans(no_spans(), 3).total_ns == spans_longer_than(no_spans(), 0).total_ns == 0
