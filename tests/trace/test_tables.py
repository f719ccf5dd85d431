"""Tables: exact columns, absent is not zero, words kept once."""

import dataclasses
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import tables
from gpulab.columns import UNITS, Display, ValueKind
from gpulab.errors import RunError
from gpulab.rows import TextColumn, concat
from gpulab.run import Gpu, Machine
from gpulab.tables import EVENTS, GPU_SAMPLES, HOST_SAMPLES, STEPS, TABLES, WORKER_SAMPLES, EventKind
from tests.support.runs.made_runs import event, rows, run_of

TEXTS = st.lists(st.none() | st.text(max_size=3), max_size=20)


@given(TEXTS)
def test_words_round_trip(texts):
    column = TextColumn.of(texts)
    assert column.to_list() == texts
    assert [column[row] for row in range(len(column))] == texts
    assert len(set(column.vocabulary)) == len(column.vocabulary)


@given(TEXTS)
def test_a_mask_by_word_is_the_mask_by_row(texts):
    column = TextColumn.of(texts)
    mask = column.matching("a" in word for word in column.vocabulary)
    assert mask.tolist() == [text is not None and "a" in text for text in texts]


def some(*names):
    return rows(EVENTS, [event(EventKind.OP, name, at, 1) for at, name in enumerate(names)])


def test_rows_of_parts_joined_keep_their_words():
    joined = concat(EVENTS, [some("a", "b"), some("b", "c"), some()])
    assert joined.text("name").to_list() == ["a", "b", "b", "c"]
    assert joined.text("name").vocabulary == ("a", "b", "c")
    assert len(concat(EVENTS, [])) == 0


SELECTIONS = st.lists(st.integers(0, 3), max_size=6).map(lambda index: np.array(index, np.int64)) | st.lists(
    st.booleans(), min_size=4, max_size=4
).map(np.array)


@given(SELECTIONS)
def test_selected_rows_are_those_of_each_column(selection):
    source = some("a", "b", "c", "d")
    chosen = source.select(selection)
    assert len(chosen) == len(source["start_ns"][selection])
    assert chosen["start_ns"].tolist() == source["start_ns"][selection].tolist()
    assert chosen.text("name").to_list() == np.array(["a", "b", "c", "d"])[selection].tolist()
    assert list(chosen.columns) == list(source.columns)


def test_a_selection_does_not_change_with_the_mask_that_made_it():
    mask, index = np.array([True, False, True]), np.array([0, 2])
    by_mask, by_index = some("a", "b", "c").select(mask), some("a", "b", "c").select(index)
    mask[:], index[:] = False, 1
    assert [rows.text("name").to_list() for rows in (by_mask, by_index)] == [["a", "c"], ["a", "c"]]


@pytest.mark.parametrize("length", [0, 2, 4])
def test_a_mask_of_another_length_is_an_error(length):
    with pytest.raises(IndexError):
        some("a", "b", "c").select(np.ones(length, bool))


def test_selected_rows_are_copied_to_other_processes_without_the_others():
    source = some(*map(str, range(10_000)))
    chosen = source.select(np.array([7, 9]))
    copy = pickle.loads(pickle.dumps(chosen))
    assert copy.text("name").to_list() == ["7", "9"]
    assert type(copy.columns) is dict
    assert {name: len(column) for name, column in copy.columns.items()} == dict.fromkeys(source.columns, 2)


def test_rows_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        some("a")["start_ns"][0] = 5


def test_the_error_for_wrong_columns_names_them():
    with pytest.raises(RunError, match=r"missing: .*kind.*; unknown: colour"):
        EVENTS.rows({"colour": [1]})
    with pytest.raises(RunError, match="differ in length"):
        EVENTS.rows({**{column.name: [] for column in EVENTS.columns}, "start_ns": [1]})


COUNTS_AND_NAMES = {  # what has no unit: kinds, text, numbers of things, and what joins rows
    *("kind", "name", "frame", "yielded", "bytes", "grid", "block", "workers", "workers_blocked"),
    *("thread", "device", "stream", "correlation", "loader", "epoch", "optimizer"),
    *("event", "registers", "shapes", "dtypes", "address", "wait_on_stream", "wait_on_correlation"),
    *("collective", "dtype", "elements_in", "elements_out", "group", "group_description", "group_size", "sequence"),
    *("recorded", "interior", "plain"),
    *(
        "link_generation",
        "link_width",
        "ecc_corrected",
        "ecc_uncorrected",
        "called",
        "library_path",
        "evaluation",
        "others_frame",
        "preempted",
        "worker",
        "blocked",
        "threads",
    ),
    *("what", "retries", "device_allocs", "out_of_memory", "who", "tensors", "largest"),
}


def test_every_column_says_what_it_means_and_its_unit():
    text = tables.describe()
    for table in (*TABLES, STEPS):
        for column in table.columns:
            assert f"  {column.name} " in text
            assert len(column.meaning) > 5
            assert column.name.endswith(tuple(UNITS)) != (column.name in COUNTS_AND_NAMES), column.name


def test_each_reading_of_a_sensor_has_a_label_and_a_limit_that_there_is():
    for table, owner in ((GPU_SAMPLES, Gpu), (HOST_SAMPLES, Machine), (WORKER_SAMPLES, Machine)):
        fields = {field.name for field in dataclasses.fields(owner)}
        readings = [column for column in table.columns if column.dtype == "float64"]
        assert len({column.label for column in readings}) == len(readings)
        for column in readings:
            assert column.label
            assert column.limit is None or column.limit.field in fields
            assert bool(column.flags) == (column.value_kind is ValueKind.FLAGS)
            assert not column.flags or column.display is Display.NOWHERE, "no view shows a mask as a number"


def test_a_counter_is_displayed_as_its_growth_per_second():
    units = {column.name: column.unit for column in (*GPU_SAMPLES.columns, *HOST_SAMPLES.columns)}
    assert (units["power_w"].symbol, units["power_w"].scale) == ("W", 1.0)
    assert (units["util_frac"].symbol, units["util_frac"].scale) == ("%", 100.0)
    assert units["energy_j"].symbol == "W"
    assert units["power_held_s"].symbol == "%"
    assert units["read_bytes"].symbol == "GiB/s"
    assert units["preempted"].symbol == "/s"
    assert units["workers"].symbol == ""


def test_a_frame_has_the_columns_of_the_table_and_shares_their_memory():
    run = run_of([event(EventKind.OP, "aten::mm", 0, 1), event(EventKind.KERNEL, "k", 1, 2)])
    frame = run.events
    assert list(frame.columns) == [column.name for column in EVENTS.columns]
    assert frame.kind.tolist() == ["op", "kernel"]
    assert frame.name.tolist() == ["aten::mm", "k"]
    assert np.shares_memory(frame.dur_ns.to_numpy(), run.event_rows["dur_ns"])


def test_a_run_shows_its_size_and_its_source():
    run = run_of([event(EventKind.OP, "aten::mm", 0, 1500)])
    assert repr(run) == "Run('made', recorded on Made GPU, 2026-01-01, 1 event, 1.5 s)"


def test_a_notebook_shows_rows_as_a_frame():
    run = run_of([event(EventKind.OP, "aten::mm", 0, 1)])
    assert "aten::mm" in run.event_rows._repr_html_()
    assert "<table" in run.event_rows._repr_html_()
