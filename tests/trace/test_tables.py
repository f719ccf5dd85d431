"""Tables: exact columns, absent is not zero, words kept once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import tables
from gpulab.errors import RunError
from gpulab.rows import Words, concat
from gpulab.tables import EVENTS, STEPS, TABLES, Kind
from tests.support.runs.made_runs import event, rows, run_of

TEXTS = st.lists(st.none() | st.text(max_size=3), max_size=20)


@given(TEXTS)
def test_words_come_back_as_they_went_in(texts):
    words = Words.of(texts)
    assert words.to_list() == texts
    assert [words[row] for row in range(len(words))] == texts
    assert len(set(words.vocabulary)) == len(words.vocabulary)


@given(TEXTS)
def test_a_mask_by_word_is_the_mask_by_row(texts):
    words = Words.of(texts)
    mask = words.matching("a" in word for word in words.vocabulary)
    assert mask.tolist() == [text is not None and "a" in text for text in texts]


def some(*names):
    return rows(EVENTS, [event(Kind.OP, name, at, 1) for at, name in enumerate(names)])


def test_rows_of_parts_joined_keep_their_words():
    joined = concat(EVENTS, [some("a", "b"), some("b", "c"), some()])
    assert joined.words("name").to_list() == ["a", "b", "b", "c"]
    assert joined.words("name").vocabulary == ("a", "b", "c")
    assert len(concat(EVENTS, [])) == 0


def test_rows_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        some("a")["start_ns"][0] = 5


def test_wrong_columns_are_named():
    with pytest.raises(RunError, match=r"missing: .*kind.*; unknown: colour"):
        EVENTS.rows({"colour": [1]})
    with pytest.raises(RunError, match="differ in length"):
        EVENTS.rows({**{column.name: [] for column in EVENTS.columns}, "start_ns": [1]})


UNITS = ("_ns", "_bytes", "_w", "_mhz", "_c", "_j", "_s", "_frac", "_bits")
COUNTS_AND_NAMES = {  # what has no unit: kinds, text, numbers of things, and what joins rows
    *("kind", "name", "frame", "yielded", "bytes", "grid", "block", "workers", "workers_blocked"),
    *("thread", "device", "stream", "correlation", "loader", "epoch"),
    *("event", "registers", "shapes", "dtypes", "address", "wait_on_stream", "wait_on_correlation"),
    *("collective", "dtype", "elements_in", "elements_out", "group", "group_size", "sequence"),
    *("recorded", "interior", "plain"),
    *("link_generation", "link_width", "called", "others_frame", "preempted", "worker", "blocked", "threads"),
    *("what", "retries", "device_allocs", "out_of_memory", "who", "tensors", "largest"),
}


def test_every_column_says_what_it_means_and_its_unit():
    text = tables.describe()
    for table in (*TABLES, STEPS):
        for column in table.columns:
            assert f"  {column.name} " in text
            assert len(column.meaning) > 5
            assert column.name.endswith(UNITS) != (column.name in COUNTS_AND_NAMES), column.name


def test_a_frame_has_the_columns_of_the_table_and_shares_their_memory():
    run = run_of([event(Kind.OP, "aten::mm", 0, 1), event(Kind.KERNEL, "k", 1, 2)])
    frame = run.events
    assert list(frame.columns) == [column.name for column in EVENTS.columns]
    assert frame.kind.tolist() == ["op", "kernel"]
    assert frame.name.tolist() == ["aten::mm", "k"]
    assert np.shares_memory(frame.dur_ns.to_numpy(), run.event_rows["dur_ns"])


def test_a_run_shows_its_size_and_its_source():
    run = run_of([event(Kind.OP, "aten::mm", 0, 1500)])
    assert repr(run) == "Run('made', recorded on Made GPU, 2026-01-01, 1 event, 1.5 s)"


def test_a_notebook_shows_rows_as_a_frame():
    run = run_of([event(Kind.OP, "aten::mm", 0, 1)])
    assert "aten::mm" in run.event_rows._repr_html_()
    assert "<table" in run.event_rows._repr_html_()
