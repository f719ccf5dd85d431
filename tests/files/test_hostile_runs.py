"""Files made to do harm, with checksums that fit: refused with the reason, before they take memory or the process."""

from __future__ import annotations

import dataclasses
import json
import random
import stat
import struct
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import msgspec
import numpy as np
import pytest

from gpulab import store
from gpulab.errors import StoreError
from gpulab.rows import Rows, TextColumn
from gpulab.store import table_decoding
from gpulab.store.column_entries import HEADER_SIZE_BYTES, MAGIC, ColumnEntry, TableEntry
from gpulab.store.packed_arrays import pack, pack_bytes, unpack
from gpulab.store.table_encoding import encode_table
from gpulab.tables import EVENTS
from tests.support.runs.stored_runs import assert_same_run, filled, full_run, parts_of, with_column, with_part, write


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


def with_description(path, table, change):
    """The file with `change(description)` made to the description of a table, which then is packed again."""
    start = len(MAGIC) + HEADER_SIZE_BYTES
    text = parts_of(path)[f"{table}.columns"]
    end = start + int.from_bytes(text[len(MAGIC) : start], "little")
    description = json.loads(zlib.decompress(text[start:end]))
    change(description)
    return with_part(path, f"{table}.columns", described(json.dumps(description).encode(), text[end:]))


def described(description, streams=b""):
    header = zlib.compress(description)
    return MAGIC + len(header).to_bytes(HEADER_SIZE_BYTES, "little") + header + streams


@pytest.mark.parametrize("table", ["events", "host_samples", "holders"])
def test_a_table_of_arbitrary_bytes_is_rejected_or_gives_a_valid_run(tmp_path, table):
    path = store.save(full_run(5), tmp_path / "x.gpulab")
    text, rng, opened = parts_of(path)[f"{table}.columns"], random.Random(5), 0
    for _ in range(30):
        changed = bytearray(text)
        place = rng.randrange(len(text))
        changed[place] = rng.choice((changed[place] ^ 1 << rng.randrange(8), 0, 255))
        with_part(path, f"{table}.columns", bytes(changed))
        opened += opens(path)
    assert opened < 4, "zlib notices all changes that alter a number"


def opens(path):
    """Whether the file is accepted; what is accepted can be saved again."""
    try:
        run = store.open(path, max_bytes=2**26)
    except StoreError:
        return False
    store.save(run, path.with_name("again.gpulab"))
    return True


FIELDS = ("mask", "distinct", "lengths", "texts", "numbers", "name", "dtype", "rows", "count", "width", "size")
VALUES = (None, 0, 1, 3, 8, 49, 51, -1, 2**31 - 1, 2**31, 2**63, 0.5, True, "words", "int8", "float64", [], {})


def test_a_table_of_arbitrary_descriptions_is_rejected_or_gives_a_valid_run(tmp_path):
    path, rng = store.save(full_run(), tmp_path / "x.gpulab"), random.Random(7)
    original = path.read_bytes()

    def change(description):
        place = column = rng.choice(description["columns"])
        packed = [field for field in FIELDS[:5] if field in column]
        if rng.random() < 0.6:
            place = column[rng.choice(packed)]
        if rng.random() < 0.3:
            column[rng.choice(FIELDS[:5])] = dict(column[rng.choice(packed)])
        if rng.random() < 0.1:
            place = description
        field = rng.choice([*place, *(("delta", "planes") if place is not description else ())])
        place[field] = rng.choice((*VALUES, rng.choice(["kind", "name", "start_ns"])))

    for _ in range(60):
        path.write_bytes(original)
        with_description(path, rng.choice(("events", "grids", "stalls")), change)
        opens(path)  # raises anything but a StoreError: the test fails


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: table["columns"][2]["numbers"].update(count=49), "another size"),
        (lambda table: table["columns"][2]["numbers"].update(count=2**31 - 1), "more memory|differ in length"),
        (lambda table: table["columns"][2]["numbers"].update(width=3), "width"),
        (lambda table: table["columns"][2]["numbers"].update(size=1), "another size"),
        (lambda table: table["columns"][2].update(dtype="object"), "start_ns contains object, not int64"),
        (lambda table: table["columns"][2].update(dtype=""), "start_ns contains , not int64"),
        (lambda table: table["columns"][2].update(name="kind"), "a column twice"),
        (lambda table: table.update(rows=2**31 - 1), "more memory"),
        (lambda table: table.update(rows=2**40), "rows"),
        (lambda table: table.update(rows=51), "differ in length"),
        (lambda table: table.update(columns=5), "columns"),
    ],
)
def test_a_wrong_description_is_rejected(saved, change, why):
    with_description(saved, "events", change)
    with pytest.raises(StoreError, match=why):
        store.open(saved)


@pytest.mark.parametrize(
    ("description", "why"),
    [
        (b"{", "is damaged"),
        (b'{"rows": 1}', "columns"),
        (b'{"rows": 1, "columns": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is damaged"),
        (b'{"rows": 1, "columns": [], "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is damaged"),
        (b" " * 2**22, "larger than any"),
    ],
)
def test_a_description_that_is_no_description_is_rejected(saved, description, why):
    with_part(saved, "events.columns", described(description))
    with pytest.raises(StoreError, match=f"the table events is damaged: .*{why}|{why}"):
        store.open(saved)


def test_a_table_of_another_format_is_rejected(saved):
    for text in (b"", b"PAR1" * 20, MAGIC, MAGIC + b"\xff" * 20):
        with_part(saved, "events.columns", text)
        with pytest.raises(StoreError, match="the table events is damaged"):
            store.open(saved)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("dur_ns", np.linspace(0, 1, 50)),
        ("bytes", TextColumn.of(["4096"] * 50)),
        ("name", np.arange(50)),
        ("kind", np.ones(50, bool)),
        ("device", np.arange(50) + 2**16),
        ("start_ns", np.arange(50, dtype=np.float32)),
    ],
)
def test_a_column_of_an_unexpected_type_is_rejected(saved, name, values):
    with_column(saved, "events", name, values)
    with pytest.raises(StoreError, match=f"the table events is damaged: its column {name} contains"):
        store.open(saved)


@pytest.mark.parametrize("codes", [[3], [-2], [2**31]])
def test_a_code_without_a_text_is_rejected(saved, codes):
    names = TextColumn(np.array(codes * 50), ("a", "b", "c"))
    with_column(saved, "events", "name", names)
    with pytest.raises(StoreError, match="a text that it does not contain"):
        store.open(saved)


@pytest.mark.parametrize("lengths", [[3, -1], [1], [2**62, 2**62], [2]])
def test_texts_with_wrong_lengths_are_rejected(saved, lengths):
    with_packed(saved, lengths=pack(np.array(lengths)), texts=pack_bytes(b"ab"[: 2 if lengths != [2] else 1]))
    with pytest.raises(StoreError, match="another size than their lengths"):
        store.open(saved)


def test_a_text_column_with_invalid_utf8_is_rejected(saved):
    with_packed(saved, lengths=pack(np.array([2])), texts=pack_bytes(b"\xff\xfe"))
    with pytest.raises(StoreError, match=r"the table events is damaged: .*utf-8"):
        store.open(saved)


def test_an_index_without_a_distinct_value_is_rejected(saved):
    for index in (2, -1):
        numbers = pack(np.array([0, index] * 25))
        with_packed(saved, "int64", distinct=pack(np.array([7, 9])), numbers=numbers, column="dur_ns")
        with pytest.raises(StoreError, match="a value that it does not contain"):
            store.open(saved)


@pytest.mark.parametrize(("bits", "numbers"), [(b"\xff" * 6, 48), (b"\xff" * 7, 49), (b"\x01" * 7, 50), (b"", 0)])
def test_a_mask_of_another_size_is_rejected(saved, bits, numbers):
    with_packed(saved, "int64", mask=pack_bytes(bits), numbers=pack(np.zeros(numbers, np.int64)), column="dur_ns")
    with pytest.raises(StoreError, match="differ in length"):
        store.open(saved)


def test_more_distinct_values_than_rows_are_rejected_before_they_are_unpacked(saved, monkeypatch):
    unpacked = []
    monkeypatch.setattr(
        table_decoding, "unpack", lambda array, text: unpacked.append(array.count) or unpack(array, text)
    )
    with_packed(saved, "int64", distinct=pack(np.arange(10_000)), numbers=pack(np.zeros(50, np.int64)), column="dur_ns")
    with pytest.raises(StoreError, match="differ in length"):
        store.open(saved)
    assert set(unpacked) == {50}


def with_packed(path, dtype="words", column="name", **arrays):
    """The file with an events table whose last column consists of these packed arrays."""
    arrays.setdefault("numbers", pack(np.zeros(50, np.int64)))
    kind = pack(np.zeros(50, np.int64))
    packed = {name: array for name, (array, _) in arrays.items()}
    entries = (ColumnEntry("kind", "int8", numbers=kind[0]), ColumnEntry(column, dtype, **packed))
    streams = [kind[1], *(arrays[name][1] for name in entries[1].arrays())]
    text = described(msgspec.json.encode(TableEntry(50, entries)), b"".join(streams))
    return with_part(path, "events.columns", text)


@pytest.mark.parametrize(
    "name", ["../x.columns", "/etc/x", "a\\b", "C:x", "a/../../x", ".hidden", "a//b", "dir/", "events.columns\0x"]
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
        archive.writestr("marks.columns", b"")
    with pytest.raises(StoreError, match=r"marks.columns twice"):
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
@pytest.mark.parametrize("part", ["run.json", "marks.columns"])
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


# Small files that would take all memory.


def equal_rows(count, **texts):
    """A table of equal rows: a few kB, whatever their number."""
    columns = {"kind": np.zeros(count, np.int8), "start_ns": np.zeros(count, np.int64), **texts}
    return encode_table(Rows(EVENTS, columns))


BOMBS = {
    "one text is huge": lambda: equal_rows(1, name=TextColumn.of(["x" * 70_000_000])),
    "all rows are alike": lambda: equal_rows(5_000_000),
    "a million texts are empty": lambda: equal_rows(1, name=TextColumn(np.zeros(1, np.int32), ("",) * 1_100_000)),
}
OPEN_AND_TELL = """
import resource, sys
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
    with_part(saved, "events.columns", BOMBS[bomb]())
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
    assert "more memory" in reason
    assert int(extra_kilobytes) < 30_000 * (1024 if sys.platform == "darwin" else 1), "kB on Linux, bytes on macOS"


def test_a_run_of_a_thousand_times_its_file_size_is_rejected(saved):
    with_part(saved, "events.columns", equal_rows(4_000_000))
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


def test_a_text_in_a_million_rows_is_in_memory_once(saved):
    count = 100_000
    columns = filled(EVENTS, count).columns | {"name": TextColumn(np.zeros(count, np.int32), ("x" * 10_000,))}
    run = dataclasses.replace(full_run(), event_rows=EVENTS.rows(columns))
    assert store.open(store.save(run, saved), max_bytes=2**26).event_rows.text("name").vocabulary == ("x" * 10_000,)
