"""Runs of file schema 1, whose tables are Parquet files: they open where pyarrow is installed, and are not trusted."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import gpulab
from gpulab import store
from gpulab.errors import StoreError
from gpulab.store.parquet.thrift import ThriftReader
from tests.support.runs.stored_runs import assert_same_run, full_run, parts_of, signed, with_part, write

pa = pytest.importorskip("pyarrow", reason='pyarrow reads old runs: pip install "gpulab[parquet]"')
parquet = pytest.importorskip("pyarrow.parquet")
runs = pytest.importorskip("tests.support.runs.parquet_runs")
with_parquet_table = runs.with_parquet_table

OLD_RUN = Path(__file__).parents[1] / "support" / "runs" / "schema_1_1.gpulab"  # written by gpulab 0.1, schema 1.1


@pytest.fixture
def saved(tmp_path):
    return runs.save_as_parquet(full_run(), tmp_path / "run.gpulab")


# Compatible.


def test_a_run_that_an_older_gpulab_saved_is_the_same_after_it_is_saved_again(tmp_path):
    assert "events.parquet" in parts_of(OLD_RUN)
    run = store.open(OLD_RUN)
    assert len(run.event_rows) > 0
    path = gpulab.save(gpulab.load(OLD_RUN), tmp_path / "new.gpulab")
    assert "events.columns" in parts_of(path)
    assert assert_same_run(run, store.open(path))


@pytest.mark.parametrize("count", [0, 50])
def test_a_run_of_schema_1_equals_the_saved_one(tmp_path, count):
    run = full_run(count)
    assert assert_same_run(run, store.open(runs.save_as_parquet(run, tmp_path / "run.gpulab")))


def test_without_pyarrow_the_error_says_what_to_install(saved, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(StoreError, match="pyarrow is missing") as error:
        store.open(saved)
    assert 'pip install "gpulab[parquet]"' in error.value.fix


def test_columns_missing_in_an_older_file_are_absent(saved):
    with_parquet_table(saved, "grids", lambda table: table.drop_columns(["occupancy_frac", "block"]))
    run = store.open(saved)
    assert np.isnan(run.grid_rows["occupancy_frac"]).all()
    assert (run.grid_rows["block"] == -1).all()


def test_a_text_column_without_a_dictionary_is_read(saved):
    with_parquet_table(saved, "events", lambda table: table, use_dictionary=False)
    assert store.open(saved).event_rows.text("name").to_list() == full_run().event_rows.text("name").to_list()


def test_absent_numbers_may_be_nulls(saved):
    def nulls(table):
        place = table.schema.get_field_index("bytes")
        return table.set_column(place, "bytes", pa.nulls(len(table), pa.int64()))

    with_parquet_table(saved, "events", nulls)
    assert store.open(saved).event_rows["bytes"].tolist() == [-1] * 50


# Not trusted.


@pytest.mark.full
def test_a_parquet_table_of_arbitrary_bytes_is_rejected_or_gives_a_valid_run(tmp_path):
    # Arrow never sees input that it would trust, or that would crash the process.
    parts, rng = parts_of(runs.save_as_parquet(full_run(5), tmp_path / "x.gpulab")), random.Random(5)
    tables = [name for name in parts if name != "run.json"]
    opened = 0
    for _ in range(100):
        name = rng.choice(tables)
        text = bytearray(parts[name])
        footer = len(text) - 8 - int.from_bytes(text[-8:-4], "little")
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(rng.choice((0, footer)), len(text))
            text[place] = rng.choice((text[place] ^ 1 << rng.randrange(8), 0, 255))
        write(tmp_path / "y.gpulab", signed({**parts, name: bytes(text)}))
        try:
            run = store.open(tmp_path / "y.gpulab")
        except StoreError:
            continue
        opened += 1
        store.save(run, tmp_path / "z.gpulab")
    assert 0 < opened < 50


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dur_ns", pa.array(np.linspace(0, 1, 50))),
        ("bytes", pa.array(["4096"] * 50)),
        ("name", pa.array(range(50))),
        ("start_ns", pa.array(np.arange(50), pa.timestamp("ns"))),
        ("stream", pa.array([[1, 2]] * 50)),
        ("thread", pa.array([{"x": 1}] * 50)),
        ("correlation", pa.array([b"12345678"] * 50, pa.binary(8))),
        ("kind", pa.array([True] * 50)),
        ("device", pa.array(np.arange(50).astype(np.uint16))),
    ],
)
def test_a_column_of_an_unexpected_type_is_rejected(saved, name, values):
    def changed(table):
        return table.set_column(table.schema.get_field_index(name), name, values)

    with_parquet_table(saved, "events", changed)
    with pytest.raises(StoreError, match=f"the table events is damaged: .*({name}|nested columns)"):
        store.open(saved)


def test_a_text_column_with_invalid_utf8_is_rejected(saved):
    def broken(table):
        names = pa.array([b"\xff\xfe"] * len(table), pa.binary())
        return table.set_column(table.schema.get_field_index("name"), "name", names)

    with_parquet_table(saved, "events", broken)
    with pytest.raises(StoreError, match="the table events is damaged"):
        store.open(saved)


# Small files that would take all memory.


def equal_texts(count, length, **options):
    """Parquet of one text in all rows: a few kB, whatever its length."""
    table = pa.table({"kind": np.zeros(count, np.int8), "name": pa.array(["x" * length] * count)})
    buffer = io.BytesIO()
    parquet.write_table(table, buffer, compression="zstd", **options)
    return buffer.getvalue()


def equal_rows(count, times):
    """Parquet of `times` groups of `count` rows, all of them alike."""
    table = pa.table({"kind": np.zeros(count, np.int8), "start_ns": np.zeros(count, np.int64)})
    buffer = io.BytesIO()
    with parquet.ParquetWriter(buffer, table.schema, compression="zstd") as writer:
        for _ in range(times):
            writer.write_table(table, row_group_size=count)
    return buffer.getvalue()


DELTA_TEXTS = {"use_dictionary": ["kind"], "column_encoding": {"name": "DELTA_BYTE_ARRAY"}}
BOMBS = {
    "each text depends on the one before": (
        lambda: equal_texts(2000, 100_000, **DELTA_TEXTS),
        "a page",
    ),
    "one text is huge": (lambda: equal_texts(1, 70_000_000), "more memory"),
    "all rows are alike": (lambda: equal_rows(1_000_000, 5), "more memory"),
}


def test_a_text_in_a_million_rows_is_stored_once_without_the_arrow_schema(saved):
    names = pa.array(["x" * 10_000]).dictionary_encode().take(pa.array(np.zeros(100_000, np.int32)))
    table = pa.table(
        {"kind": np.zeros(100_000, np.int8), "start_ns": np.arange(100_000), "dur_ns": np.ones(100_000, int)}
    )
    buffer = io.BytesIO()
    parquet.write_table(table.append_column("name", names), buffer, compression="zstd", store_schema=False)
    with_part(saved, "events.parquet", buffer.getvalue())
    before = pa.total_allocated_bytes()
    run = store.open(saved)
    assert run.event_rows.text("name").vocabulary == ("x" * 10_000,)
    assert pa.total_allocated_bytes() - before < 20_000_000, "written out it is a gigabyte"


OPEN_AND_TELL = """
import resource, sys
import pyarrow.parquet
from gpulab import errors, store
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    store.open(sys.argv[1], max_bytes=2**26)
except errors.StoreError as error:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, error.why)
"""


@pytest.mark.full
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_memory_bomb_in_parquet_is_rejected_before_it_takes_memory(saved, bomb):
    pytest.importorskip("resource", reason="only Unix reports the peak memory of a process")
    make, why = BOMBS[bomb]
    with_part(saved, "events.parquet", make())
    assert saved.stat().st_size < 100_000
    process = subprocess.run(
        [sys.executable, "-c", OPEN_AND_TELL, str(saved)],
        cwd=Path(store.__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    extra_kilobytes, _, reason = process.stdout.partition(" ")
    assert why in reason
    assert int(extra_kilobytes) < 30_000 * (1024 if sys.platform == "darwin" else 1), "kB on Linux, bytes on macOS"


# The notation of the sizes.


@given(st.binary(max_size=60))
def test_arbitrary_bytes_are_read_as_thrift_or_rejected(text):
    reader = ThriftReader(text, 0, len(text))
    try:
        reader.struct()
    except ValueError:
        return
    assert reader.at <= len(text)


@pytest.mark.parametrize(
    "text", [b"\x1c" * 50, b"\x19\xfc\xff\xff\xff\xff\x07", b"\x15" + b"\xff" * 30, b"\x18\x7f", b"\x1b"]
)
def test_deeply_nested_or_oversized_thrift_is_rejected(text):
    with pytest.raises(ValueError, match="its description"):
        ThriftReader(text, 0, len(text)).struct()


def test_thrift_is_read_according_to_its_specification():
    # Field 1: int -1; field 2: true; field 5: "ab"; field 6: list of 2, -3; field 20: struct of field 1: 300.
    text = b"\x15\x01\x11\x38\x02ab\x19\x25\x04\x05\x0c\x28\x15\xd8\x04\x00\x00"
    assert ThriftReader(text, 0, len(text)).struct() == {1: -1, 2: True, 5: b"ab", 6: [2, -3], 20: {1: 300}}
