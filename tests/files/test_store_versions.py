"""Files of other schemas: an older one opens as if written today, a newer one with a note of what was passed over."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from gpulab import store
from gpulab.columns import Column
from gpulab.errors import StoreError
from gpulab.run import Gap, Gpu, Loader, Machine, Recording, Source
from gpulab.store import older
from gpulab.store.unpacking import Unpacked
from gpulab.tables import EVENTS, GRIDS
from tests.support.runs.stored_runs import full_run, parts_of, same, with_meta, with_part, with_table, write

# Written by the gpulab of commit 913392d, the last with schema 1.0; schema_1_0.py beside them tells how.
OLD = Path(__file__).parents[1] / "data" / "schema_1_0.gpulab"
OLD_TRACE = OLD.with_name("schema_1_0_of_a_trace.gpulab")


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


def columns(rows):
    return {
        column.name: rows.words(column.name).to_list() if column.dtype == "words" else rows[column.name].tolist()
        for column in rows.table.columns
    }


# Older.


def test_the_events_of_a_file_of_schema_1_0_are_as_they_were_written():
    names = (
        "ProfilerStep#{}",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "aten::größe",
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "gemm",
        "cudaMemcpyAsync",
        "cudaDeviceSynchronize",
        "only its grid is told",
        "nothing is told",
        "occupancy zero",
        "Memcpy HtoD",
    )
    starts_us = (0, 1, 22, 23, 27, 30, 32, 40, 41, 45, 46, 50)
    assert columns(store.open(OLD).event_rows) == {
        "kind": [2, 3, 0, 5, 5, 12, 7, 6, 12, 12, 12, 13] * 4,
        "name": [name.format(step) for step in range(4) for name in names],
        "start_ns": [100_000 * step + 1000 * start for step in range(4) for start in starts_us],
        "dur_ns": [99_500, 20_001, 9250, 3000, 2500, 10_000, 4000, 50_000, 3125, 0, 1000, 5000] * 4,
        "thread": [thread for step in range(4) for thread in (0, 0, 1 + step % 2, 0, 0, -1, 0, 0, -1, -1, -1, -1)],
        "device": [-1, -1, -1, -1, -1, 1, -1, -1, 1, 1, 1, 1] * 4,
        "stream": [-1, -1, -1, -1, -1, 7, -1, -1, 7, 7, 7, 20] * 4,
        "correlation": [
            link if link < 0 else 10 * step + link
            for step in range(4)
            for link in (-1, -1, -1, 1, 2, 1, 3, -1, 2, -1, -1, 3)
        ],
        "bytes": [-1, -1, -1, -1, -1, -1, 4096, -1, -1, -1, -1, 4096] * 4,
    }


def test_the_grids_of_a_file_of_schema_1_0_stand_beside_the_kernels_that_tell_one():
    grids = store.open(OLD).grid_rows
    assert grids["event"].tolist() == [5, 8, 10, 17, 20, 22, 29, 32, 34, 41, 44, 46]
    assert grids["grid"].tolist() == [784, 6, -1] * 4
    assert grids["block"].tolist() == [256, -1, -1] * 4
    told = [share for step in range(4) for share in (0.37 + step / 100, np.nan, 0.0)]
    assert grids["occupancy_frac"].tobytes() == np.array(told, np.float32).tobytes()
    assert (grids["registers"] == -1).all()
    assert (grids["shared_bytes"] == -1).all()


def test_the_samples_and_marks_of_a_file_of_schema_1_0_are_as_they_were_written():
    run = store.open(OLD)
    marks, gpu, host = run.mark_rows, run.gpu_rows, run.host_rows
    assert marks["kind"].tolist() == [0, 1] * 3
    assert marks["start_ns"].tolist() == [0, 1000, 2000, 3000, 4000, 5000]
    assert marks["end_ns"].tolist() == [7, 1007, 2007, 3007, 4007, 5007]
    assert marks["yielded"].tolist() == [True, False] * 3
    assert marks["loader"].tolist() == marks["epoch"].tolist() == [0, -1] * 3
    assert marks["process_cpu_end_ns"].tolist() == [0, 1000, 2000, 3000, 4000, 5000]
    assert gpu["at_ns"].tolist() == [0, 80_000, 160_000, 240_000, 320_000]
    assert gpu["late_ns"].tolist() == [0, 1, 2, 3, 4]
    assert gpu["util_frac"].tolist() == pytest.approx([0.4, 1.0, 1.6, 2.2, 2.8], rel=1e-15)
    assert gpu["throttle_bits"].tolist() == pytest.approx([1.1, 2.75, 4.4, 6.05, 7.7], rel=1e-15)
    assert np.isnan(gpu["energy_j"]).all()
    assert host["read_bytes"].tolist() == pytest.approx([1.4, 91 / 30, 14 / 3, 6.3], rel=1e-15)
    assert np.isnan(host["workers"][0])
    assert host["workers"][1:].tolist() == [0, 1, 2]
    assert host.words("frame").to_list() == ["batch (feed.py:7)", None, "batch (feed.py:7)", "loop (feed.py:12)"]


def test_what_a_run_of_schema_1_0_says_of_itself_is_as_it_was_written():
    run = store.open(OLD)
    assert (run.name, run.outcome, run.rank, run.span_ns) == ("of old", "ValueError", 5, 399_500)
    assert run.source == Source(how="recorded", device="unknown GPU")
    assert run.machine == Machine(
        gpus=(Gpu(index=0, name="NVIDIA H100", memory_bytes=68_719_476_736, mig=False),), cores=8
    )
    assert run.began_ns == 1_767_225_600_123_456_789
    assert (run.threads, run.main_thread) == (("thread 42", "thread 43", "thread 44"), 0)
    assert run.loaders == (Loader(workers=0, batch_size=32, dataset="Images"),)
    assert run.facts == {"threads": "8"}
    assert run.recording == Recording(
        windows_ns=((0, 400_000),),
        pauses_ns=((399_000, 400_000),),
        activities=("cpu", "cuda"),
        left_out=(Gap(what="power", why="not told", fix="none"),),
        lost={"event that is not JSON": 2},
    )
    tables = (run.shape_rows, run.collective_rows, run.wait_rows, run.memory_rows)
    assert [len(rows) for rows in tables] == [0, 0, 0, 0]


def test_a_file_of_schema_1_0_may_have_tables_without_rows():
    run, whole = store.open(OLD_TRACE), store.open(OLD)
    assert {"marks.parquet", "gpu_samples.parquet", "host_samples.parquet"} <= set(parts_of(OLD_TRACE))
    assert (len(run.mark_rows), len(run.gpu_rows), len(run.host_rows)) == (0, 0, 0)
    first = whole.event_rows.where(np.arange(12))
    assert columns(run.event_rows) == columns(first)
    assert run.grid_rows["event"].tolist() == [5, 8, 10]
    assert run.recording.left_out == ()


def test_an_old_file_saved_anew_is_of_this_schema_and_equal(tmp_path):
    run = store.open(OLD)
    path = store.save(run, tmp_path / "anew.gpulab")
    assert "grids.parquet" in parts_of(path)
    assert same(run, store.open(path))


def test_an_old_file_whose_events_tell_no_grid_has_no_grids(tmp_path):
    path = write(tmp_path / "old.gpulab", parts_of(OLD))
    with_table(path, "events", lambda table: table.drop_columns(["grid", "block", "occupancy_frac"]))
    run = store.open(path)
    assert len(run.event_rows) == 48
    assert len(run.grid_rows) == 0
    with_part(path, "events.parquet", None)
    assert len(store.open(path).event_rows) == 0


def test_a_change_of_the_schema_is_made_to_files_before_it_only(monkeypatch):
    def doubled(tables):
        rows = tables["events"]
        tables["events"] = Unpacked({**rows.columns, "dur_ns": rows.columns.pop("half_ns") * 2}, rows.count, ())

    half = Column("half_ns", "int64", "half of how long it took")
    monkeypatch.setattr(older, "CHANGES", (*older.CHANGES, older.Change((1, 2), {"events": (half,)}, doubled)))
    for schema, gone in (((1, 0), ["grid", "block", "occupancy_frac", "half_ns"]), ((1, 1), ["half_ns"]), ((1, 2), [])):
        wanted = [column.name for column in older.wanted(EVENTS, schema)]
        assert wanted == [*(column.name for column in EVENTS.columns), *gone]
        assert older.wanted(GRIDS, schema) == GRIDS.columns
        tables = {"events": Unpacked({"half_ns": np.array([1, 2]), "grid": np.array([7, -1])}, 2, ())}
        older.bring_up(tables, schema)
        assert tables["events"].columns.get("dur_ns", np.empty(0)).tolist() == ([2, 4] if gone else [])
        assert ("grids" in tables) == (schema == (1, 0))


def test_what_an_older_file_lacks_is_absent(saved):
    with_table(saved, "grids", lambda table: table.drop_columns(["occupancy_frac", "block"]))
    with_table(saved, "events", lambda table: table.drop_columns(["name"]))
    with_table(saved, "marks", lambda table: table.drop_columns(["yielded"]))
    with_meta(saved, lambda document: [document["run"].pop(field) for field in ("facts", "rank")])
    with_part(saved, "gpu_samples.parquet", None)
    run = store.open(saved)
    assert np.isnan(run.grid_rows["occupancy_frac"]).all()
    assert (run.grid_rows["block"] == -1).all()
    assert not run.mark_rows["yielded"].any()
    assert run.event_rows.words("name").to_list() == [None] * 50
    assert (run.facts, run.rank, len(run.gpu_rows)) == ({}, None, 0)
    assert len(run.events) == 50


@pytest.mark.parametrize(
    ("table", "column"), [("marks", "end_ns"), ("events", "kind"), ("grids", "event"), ("memory", "at_ns")]
)
def test_a_table_without_its_times_or_its_events_is_refused(saved, table, column):
    with_table(saved, table, lambda rows: rows.drop_columns([column]))
    with pytest.raises(StoreError, match=f"the table {table} lacks its column {column}"):
        store.open(saved)


# Newer.


def test_a_newer_major_schema_is_refused_with_the_advice_to_upgrade(saved):
    with_meta(saved, lambda document: (document.update(schema=[2, 0]), document.pop("run"), document.pop("sha256")))
    with pytest.raises(StoreError, match="newer gpulab") as error:
        store.open(saved)
    assert "upgrade" in error.value.fix


def test_a_newer_minor_schema_opens_and_says_what_was_passed_over(saved):
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
    assert same(full_run(), dataclasses.replace(run, recording=full_run().recording))


def test_a_note_of_what_was_passed_over_stays_short(saved):
    def newer(document):
        document["run"] |= {f"{number:02} {'long' * 100}": 1 for number in range(40)}

    with_meta(saved, newer)
    what = store.open(saved).recording.left_out[-1].what
    assert what.startswith("parts of the file: 00 longlong")
    assert what.endswith(", and 30 more")
    assert len(what) < 1200


def test_rows_of_an_unknown_kind_are_passed_over_with_what_stands_beside_them(saved):
    def newer(table):
        kinds = table["kind"].to_numpy().copy()
        kinds[[0, 1, 2, 30]] = 99
        return table.set_column(0, "kind", pa.array(kinds))

    with_table(saved, "events", newer)
    run, whole = store.open(saved), full_run()
    kept = [row for row in range(50) if row not in (0, 1, 2, 30)]
    assert run.event_rows["start_ns"].tolist() == whole.event_rows["start_ns"][kept].tolist()
    assert "events: 4 rows of a kind that is not known" in run.recording.left_out[-1].what
    for mine, theirs in ((run.grid_rows, whole.grid_rows), (run.wait_rows, whole.wait_rows)):
        beside = {kept[row] for row in mine["event"].tolist()}
        assert beside == set(theirs["event"].tolist()) & set(kept)
    grids = whole.grid_rows["grid"][np.isin(whole.grid_rows["event"], kept)]
    assert run.grid_rows["grid"].tolist() == grids.tolist()


def test_a_column_that_a_newer_schema_widened_is_read_as_long_as_it_fits(saved):
    def wider(table):
        place = table.schema.get_field_index("thread")
        return table.set_column(place, "thread", table["thread"].cast(pa.int64()))

    with_table(saved, "events", wider)
    assert same(full_run(), store.open(saved))

    def too_wide(table):
        values = table["group_size"].to_numpy().astype(np.int64)
        values[0] = 2**31
        return table.set_column(table.schema.get_field_index("group_size"), "group_size", pa.array(values))

    with_table(saved, "collectives", too_wide)
    with pytest.raises(StoreError, match="its column group_size holds int64, not int32"):
        store.open(saved)


def test_plain_text_where_a_dictionary_was_is_read(saved):
    with_table(saved, "events", lambda table: table, use_dictionary=False)
    assert store.open(saved).event_rows.words("name").to_list() == full_run().event_rows.words("name").to_list()


def test_absent_numbers_may_be_nulls(saved):
    def nulls(table):
        place = table.schema.get_field_index("bytes")
        return table.set_column(place, "bytes", pa.nulls(len(table), pa.int64()))

    with_table(saved, "events", nulls)
    assert store.open(saved).event_rows["bytes"].tolist() == [-1] * 50


def test_readers_of_schema_1_0_are_told_of_tables_that_they_pass_over(saved):
    # They pass over a table without a word, but note a field of the run that they do not know.
    document = json.loads(parts_of(saved)["run.json"])
    assert document["run"]["more_tables"] == [
        *("grids", "shapes", "collectives", "waits", "memory"),
        *("worker_samples", "stalls", "allocator", "holders"),
    ]
    assert store.open(saved).recording == full_run().recording
