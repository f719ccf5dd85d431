"""Files of other schema versions: parts missing in older files are absent, unknown parts of newer ones are a gap."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from gpulab import store
from gpulab.errors import StoreError
from tests.support.runs.stored_runs import assert_same_run, full_run, parts_of, with_meta, with_part, with_table


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


# Older.


def test_columns_missing_in_an_older_file_are_absent(saved):
    with_table(saved, "grids", lambda table: table.drop_columns(["occupancy_frac", "block"]))
    with_table(saved, "events", lambda table: table.drop_columns(["name"]))
    with_table(saved, "marks", lambda table: table.drop_columns(["yielded"]))
    with_meta(saved, lambda document: [document["run"].pop(field) for field in ("facts", "rank")])
    with_part(saved, "gpu_samples.parquet", None)
    run = store.open(saved)
    assert np.isnan(run.grid_rows["occupancy_frac"]).all()
    assert (run.grid_rows["block"] == -1).all()
    assert not run.mark_rows["yielded"].any()
    assert run.event_rows.text("name").to_list() == [""] * 50
    assert (run.facts, run.rank, len(run.gpu_rows)) == ({}, None, 0)
    assert len(run.events) == 50


@pytest.mark.parametrize(
    ("table", "column"), [("marks", "end_ns"), ("events", "kind"), ("grids", "event"), ("memory", "at_ns")]
)
def test_a_table_without_required_columns_is_rejected(saved, table, column):
    with_table(saved, table, lambda rows: rows.drop_columns([column]))
    with pytest.raises(StoreError, match=f"the table {table} lacks its column {column}"):
        store.open(saved)


# Newer.


def test_a_newer_major_schema_is_rejected_with_the_advice_to_upgrade(saved):
    with_meta(saved, lambda document: (document.update(schema=[2, 0]), document.pop("run"), document.pop("sha256")))
    with pytest.raises(StoreError, match="newer gpulab") as error:
        store.open(saved)
    assert "upgrade" in error.value.fix


def test_a_newer_minor_schema_opens_with_a_gap_for_ignored_parts(saved):
    def newer(document):
        document["schema"] = [1, 9]
        document["mood"] = "sunny"
        document["run"]["weather"] = {"sky": ["blue"]}
        document["run"]["machine"]["altitude_m"] = 12

    with_meta(saved, newer)
    with_table(saved, "events", lambda table: table.append_column("colour", pa.array(["red"] * len(table))))
    with_part(saved, "stacks.parquet", parts_of(saved)["waits.parquet"])
    run = store.open(saved)
    note = run.recording.left_out[-1]
    assert note.what == "parts of the file: weather, events: colour, stacks.parquet"
    assert "schema 1.9" in note.why
    assert "upgrade" in note.fix
    assert assert_same_run(full_run(), dataclasses.replace(run, recording=full_run().recording))


def test_the_gap_for_ignored_parts_is_short(saved):
    def newer(document):
        document["run"] |= {f"{number:02} {'long' * 100}": 1 for number in range(40)}

    with_meta(saved, newer)
    description = store.open(saved).recording.left_out[-1].what
    assert description.startswith("parts of the file: 00 longlong")
    assert description.endswith(", and 30 more")
    assert len(description) < 1200


def test_rows_of_an_unknown_kind_are_dropped_with_their_side_tables(saved):
    def newer(table):
        kinds = table["kind"].to_numpy().copy()
        kinds[[0, 1, 2, 30]] = 99
        return table.set_column(0, "kind", pa.array(kinds))

    with_table(saved, "events", newer)
    run, original = store.open(saved), full_run()
    rows = [row for row in range(50) if row not in (0, 1, 2, 30)]
    assert run.event_rows["start_ns"].tolist() == original.event_rows["start_ns"][rows].tolist()
    assert "events: 4 rows" in run.recording.left_out[-1].what
    for side, original_side in ((run.grid_rows, original.grid_rows), (run.wait_rows, original.wait_rows)):
        events = {rows[row] for row in side["event"].tolist()}
        assert events == set(original_side["event"].tolist()) & set(rows)
    grids = original.grid_rows["grid"][np.isin(original.grid_rows["event"], rows)]
    assert run.grid_rows["grid"].tolist() == grids.tolist()


def test_a_wider_column_of_a_newer_schema_is_read_if_its_values_fit(saved):
    def wider(table):
        place = table.schema.get_field_index("thread")
        return table.set_column(place, "thread", table["thread"].cast(pa.int64()))

    with_table(saved, "events", wider)
    assert assert_same_run(full_run(), store.open(saved))

    def too_wide(table):
        values = table["group_size"].to_numpy().astype(np.int64)
        values[0] = 2**31
        return table.set_column(table.schema.get_field_index("group_size"), "group_size", pa.array(values))

    with_table(saved, "collectives", too_wide)
    with pytest.raises(StoreError, match=r"group_size .*int64.*int32"):
        store.open(saved)


def test_a_text_column_without_a_dictionary_is_read(saved):
    with_table(saved, "events", lambda table: table, use_dictionary=False)
    assert store.open(saved).event_rows.text("name").to_list() == full_run().event_rows.text("name").to_list()


def test_absent_numbers_may_be_nulls(saved):
    def nulls(table):
        place = table.schema.get_field_index("bytes")
        return table.set_column(place, "bytes", pa.nulls(len(table), pa.int64()))

    with_table(saved, "events", nulls)
    assert store.open(saved).event_rows["bytes"].tolist() == [-1] * 50
