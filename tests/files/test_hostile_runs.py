"""Files made to do harm, with checksums that fit: refused with the reason, before they take memory or the process."""

from __future__ import annotations

import io
import random
import stat
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gpulab import store
from gpulab.errors import StoreError
from gpulab.store.thrift import ThriftReader
from tests.support.runs.stored_runs import assert_same_run, full_run, parts_of, signed, with_part, with_table, write


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


@pytest.mark.full
def test_a_table_of_arbitrary_bytes_is_rejected_or_gives_a_valid_run(tmp_path):
    # Arrow never sees input that it would trust, or that would crash the process.
    parts, rng = parts_of(store.save(full_run(5), tmp_path / "x.gpulab")), random.Random(5)
    tables = [name for name in parts if name != "run.json"]
    opened = 0
    for _ in range(200):
        name = rng.choice(tables)
        text = bytearray(parts[name])
        described = len(text) - 8 - int.from_bytes(text[-8:-4], "little")
        for _ in range(rng.choice((1, 1, 2))):
            place = rng.randrange(rng.choice((0, described)), len(text))
            text[place] = rng.choice((text[place] ^ 1 << rng.randrange(8), 0, 255))
        write(tmp_path / "y.gpulab", signed({**parts, name: bytes(text)}))
        try:
            run = store.open(tmp_path / "y.gpulab")
        except StoreError:
            continue
        opened += 1
        store.save(run, tmp_path / "z.gpulab")
    assert 0 < opened < 100


@pytest.mark.parametrize(
    "name", ["../x.parquet", "/etc/x", "a\\b", "C:x", "a/../../x", ".hidden", "a//b", "dir/", "events.parquet\0x"]
)
def test_a_part_named_like_a_path_is_rejected_and_nothing_is_written(saved, name):
    parts = parts_of(saved)
    write(saved, {**parts, "PLACEHOLDER"[: len(name)].ljust(len(name), "_"): b"mischief"})
    # zipfile would correct some of these names while writing.
    saved.write_bytes(
        saved.read_bytes().replace("PLACEHOLDER"[: len(name)].ljust(len(name), "_").encode(), name.encode())
    )
    before = sorted(saved.parent.rglob("*"))
    with pytest.raises(StoreError, match="a part named"):
        store.open(saved)
    assert sorted(saved.parent.rglob("*")) == before


def test_a_duplicate_part_is_rejected(saved):
    with zipfile.ZipFile(saved, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("marks.parquet", b"")
    with pytest.raises(StoreError, match=r"marks.parquet twice"):
        store.open(saved)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"flag_bits": 0x1}, "encrypted"),
        ({"external_attr": (stat.S_IFLNK | 0o777) << 16}, "a link or a device"),
        ({"external_attr": (stat.S_IFCHR | 0o777) << 16}, "a link or a device"),
        ({"compress_type": zipfile.ZIP_DEFLATED}, "compression"),
        ({"compress_type": zipfile.ZIP_LZMA}, "compression"),
        ({"file_size": 2**31}, "claims 2,147,483,648 bytes"),
    ],
)
@pytest.mark.parametrize("part", ["run.json", "marks.parquet"])
def test_a_part_that_is_not_a_regular_file_is_rejected(saved, part, change, why):
    parts = parts_of(saved)
    with zipfile.ZipFile(saved, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
        for field, value in change.items():
            setattr(archive.getinfo(part), field, value)
    if (part, change) == ("run.json", {"compress_type": zipfile.ZIP_DEFLATED}):
        why = "its run.json is damaged"  # it may be packed so, and is not
    with pytest.raises(StoreError, match=why):
        store.open(saved)


def test_an_oversized_run_json_is_rejected_before_it_is_unpacked(saved):
    parts = parts_of(saved)
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("run.json", parts["run.json"] + b" " * (17 << 20), zipfile.ZIP_DEFLATED)
    assert saved.stat().st_size < 50_000
    with pytest.raises(StoreError, match=r"its run.json claims 17,8\d\d,\d\d\d bytes"):
        store.open(saved)


def test_a_list_of_parts_that_claims_to_be_huge_is_not_read(saved):
    text = saved.read_bytes()
    saved.write_bytes(text[:-10] + struct.pack("<I", 2**30) + text[-6:])
    with pytest.raises(StoreError, match="more than any run"):
        store.open(saved)
    saved.write_bytes(text[:-22] + b"PK\x06\x07" + bytes(16) + text[-22:])
    with pytest.raises(StoreError, match="more than any run"):
        store.open(saved)


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

    with_table(saved, "events", changed)
    with pytest.raises(StoreError, match=f"the table events is damaged: .*({name}|nested columns)"):
        store.open(saved)


def test_a_text_column_with_invalid_utf8_is_rejected(saved):
    def broken(table):
        names = pa.array([b"\xff\xfe"] * len(table), pa.binary())
        return table.set_column(table.schema.get_field_index("name"), "name", names)

    with_table(saved, "events", broken)
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
def test_a_memory_bomb_is_rejected_before_it_takes_memory(saved, bomb):
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


def test_a_run_of_a_thousand_times_its_file_size_is_rejected(saved):
    with_part(saved, "events.parquet", equal_rows(1_000_000, 30))
    with pytest.raises(StoreError, match=r"its events .* memory"):
        store.open(saved)


@pytest.mark.parametrize("field", ["weather", "facts"])
def test_deeply_nested_metadata_are_rejected_or_ignored(saved, field):
    parts = parts_of(saved)
    nested = b'"run": {"%s": ' % field.encode() + b"[" * 100_000 + b"]" * 100_000 + b","
    write(saved, {**parts, "run.json": parts["run.json"].replace(b'"run": {', nested, 1)})
    with pytest.raises(StoreError, match=r"its run.json is damaged"):
        store.open(saved)


def test_the_memory_limit_of_a_run_can_be_set(saved):
    assert assert_same_run(full_run(), store.open(saved, max_bytes=100_000))
    with pytest.raises(StoreError, match=r"its (events|grids|shapes|collectives) would take more memory"):
        store.open(saved, max_bytes=10_000)


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
