"""Files of other schema versions: parts missing in older files are absent, unknown parts of newer ones are a gap."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gpulab import store
from gpulab.errors import StoreError
from gpulab.rows import TextColumn
from tests.support.runs.stored_runs import assert_same_run, full_run, parts_of, with_column, with_meta, with_part


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


# Older.


def test_columns_missing_in_an_older_file_are_absent(saved):
    for table, column in (("grids", "occupancy_frac"), ("grids", "block"), ("events", "name"), ("marks", "yielded")):
        with_column(saved, table, column, None)
    with_meta(saved, lambda document: [document["run"].pop(field) for field in ("facts", "rank")])
    with_part(saved, "gpu_samples.columns", None)
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
    with_column(saved, table, column, None)
    with pytest.raises(StoreError, match=f"the table {table} lacks its column {column}"):
        store.open(saved)


# Newer.


def test_a_newer_major_schema_is_rejected_with_the_advice_to_upgrade(saved):
    with_meta(saved, lambda document: (document.update(schema=[3, 0]), document.pop("run"), document.pop("sha256")))
    with pytest.raises(StoreError, match="newer gpulab") as error:
        store.open(saved)
    assert "upgrade" in error.value.fix


def test_a_newer_minor_schema_opens_with_a_gap_for_ignored_parts(saved):
    def newer(document):
        document["schema"] = [2, 9]
        document["mood"] = "sunny"
        document["run"]["weather"] = {"sky": ["blue"]}
        document["run"]["machine"]["altitude_m"] = 12

    with_meta(saved, newer)
    with_column(saved, "events", "colour", TextColumn.of(["red"] * 50))
    with_part(saved, "stacks.columns", parts_of(saved)["waits.columns"])
    run = store.open(saved)
    note = run.recording.left_out[-1]
    assert note.what == "parts of the file: weather, events: colour, stacks.columns"
    assert "schema 2.9" in note.why
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
    kinds = full_run().event_rows["kind"].copy()
    kinds[[0, 1, 2, 30]] = 99
    with_column(saved, "events", "kind", kinds)
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
    with_column(saved, "events", "thread", full_run().event_rows["thread"].astype(np.int64))
    with_column(saved, "grids", "occupancy_frac", full_run().grid_rows["occupancy_frac"].astype(np.float64))
    assert assert_same_run(full_run(), store.open(saved))
    sizes = full_run().collective_rows["group_size"].astype(np.int64)
    sizes[0] = 2**31
    with_column(saved, "collectives", "group_size", sizes)
    with pytest.raises(StoreError, match=r"group_size .*int64.*int32"):
        store.open(saved)
