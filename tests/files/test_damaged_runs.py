"""Files that were damaged, or hold what no run does: refused with the reason, or harmless; never anything else."""

from __future__ import annotations

import random
import re
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpulab import store
from gpulab.errors import StoreError
from tests.support.runs.stored_runs import assert_same_run, full_run, parts_of, with_meta, with_table, write
from tests.support.tiers import examples


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The bytes of a small file, and its run."""
    run = full_run(5)
    return store.save(run, tmp_path_factory.mktemp("small") / "run.gpulab").read_bytes(), run


def refused_or_the_same(path, text, run):
    """Whether a file with these bytes is refused; if not, it must give the run."""
    path.write_bytes(text)
    try:
        back = store.open(path)
    except StoreError as error:
        return str(path) in error.problem and len(error.why) > 10
    return not assert_same_run(run, back)


@pytest.mark.full
def test_a_flipped_bit_anywhere_is_rejected_or_harmless(small, tmp_path):
    text, run = small
    rng = random.Random(3)
    listing = text.index(b"PK\x01\x02")
    heads = [match.start() + offset for match in re.finditer(b"PK\x03\x04", text) for offset in range(0, 30, 3)]
    # All classes of places: the list of parts at the end, the head of each part, and anywhere.
    places = [*range(listing, len(text), 9), *heads, *rng.sample(range(len(text)), 300)]
    refused = 0
    for place in places:
        flipped = bytearray(text)
        flipped[place] ^= 1 << rng.randrange(8)
        refused += refused_or_the_same(tmp_path / "x.gpulab", bytes(flipped), run)
    assert len(places) > 450
    assert 300 < refused < len(places), "a date in the list of parts does no harm; a byte of a table does"


def test_a_truncated_file_is_rejected(small, tmp_path):
    text, run = small
    sizes = {*range(0, len(text), len(text) // 190), *range(len(text) - 15, len(text))}
    assert len(sizes) >= 200
    assert all(refused_or_the_same(tmp_path / "x.gpulab", text[:size], run) for size in sizes)


@examples(60)
@given(data=st.data())
def test_removed_or_inserted_bytes_are_rejected_or_harmless(small, tmp_path_factory, data):
    text, run = small
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    changed = text[:start] + data.draw(st.binary(max_size=20)) + text[end:]
    refused_or_the_same(tmp_path_factory.mktemp("bytes") / "x.gpulab", changed, run)


def test_a_damaged_part_is_named(saved):
    text = saved.read_bytes()
    with zipfile.ZipFile(saved) as archive:
        members = archive.infolist()
    for member in members:
        at = member.header_offset + 30 + len(member.filename) + member.compress_size // 2
        saved.write_bytes(text[:at] + bytes([text[at] ^ 1]) + text[at + 1 :])
        with pytest.raises(StoreError, match=f"its {re.escape(member.filename)} is damaged"):
            store.open(saved)


def test_a_replaced_table_in_a_valid_zip_is_rejected(saved):
    parts, other = parts_of(saved), full_run(49)
    others = parts_of(store.save(other, saved.with_name("other.gpulab")))
    for name in parts:
        if name != "run.json":
            write(saved, {**parts, name: others[name]})
            with pytest.raises(StoreError, match=rf"its {re.escape(name)} is damaged: .*SHA-256"):
                store.open(saved)
            write(saved, {part: text for part, text in parts.items() if part != name})
            with pytest.raises(StoreError, match=f"its {re.escape(name)} is missing"):
                store.open(saved)
            assert assert_same_run(other, store.open(write(saved, others)))


def test_a_table_without_a_checksum_is_rejected(saved):
    with_meta(saved, lambda document: document["sha256"].pop("marks"))
    with pytest.raises(StoreError, match=r"its marks.columns is damaged: .*SHA-256"):
        store.open(saved)
    with_meta(saved, lambda document: document.pop("sha256"))
    with pytest.raises(StoreError, match="missing required field `sha256`"):
        store.open(saved)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda document: document.update(format="a poem"), "a poem"),
        (lambda document: document.update(format="a long poem" * 100), r"(a long poem){20}[^\n]* \.\.\.\n"),
        (lambda document: document.pop("schema"), "schema"),
        (lambda document: document.update(schema=[0, 9]), "there is no schema 0.9"),
        (lambda document: document["run"].pop("name"), "name is missing"),
        (lambda document: document["run"].update(span_ns="long"), "span_ns: Expected `int`"),
        (lambda document: document["run"].update(span_ns=2**63), "out of range"),
        (
            lambda document: document["run"]["recording"].update(windows_ns=[[0, 10**40]]),
            "windows_ns|out of range",
        ),
        (lambda document: document["run"].update(threads=["only one"], main_thread=0), "thread 1.* 1"),
        (lambda document: document["run"].update(machine=[]), "machine: Expected `object`"),
    ],
)
def test_invalid_metadata_are_rejected(saved, change, why):
    with_meta(saved, change)
    with pytest.raises(StoreError, match=why):
        store.open(saved)


def column_set(name, row, value):
    def change(columns):
        values = columns[name].copy()
        values[row] = value
        return {**columns, name: values}

    return change


@pytest.mark.parametrize(
    ("table", "change", "why"),
    [
        ("grids", column_set("event", -1, 50), "grids refers to an event"),
        ("shapes", column_set("event", 0, -1), "shapes refers to an event"),
        ("waits", column_set("event", 1, 0), "rows of waits"),
        ("memory", column_set("thread", 3, 2), "memory refers to thread 2"),
        ("events", column_set("thread", 3, -2), "events refers to thread -2"),
        ("marks", column_set("loader", 3, 2), "marks refers to loader 2"),
        ("gpu_samples", column_set("device", 3, 2), "gpu_samples refers to device 2"),
        ("events", column_set("dur_ns", 0, -1), "dur_ns of events"),
        ("host_samples", column_set("at_ns", 0, 2**62 + 1), "at_ns of host_samples"),
    ],
)
def test_rows_with_invalid_references_are_rejected(saved, table, change, why):
    with_table(saved, table, change)
    with pytest.raises(StoreError, match=why):
        store.open(saved)


def test_a_file_of_another_format_is_rejected(tmp_path):
    for text in (b"", b"hello", b'{"traceEvents": []}', b"PK\x05\x06" + bytes(18)):
        (tmp_path / "x.gpulab").write_bytes(text)
        with pytest.raises(StoreError, match="cannot be read as a run"):
            store.open(tmp_path / "x.gpulab")
    for path, why in ((tmp_path, "not a file"), (tmp_path / "missing.gpulab", "No such file"), ("a\0b", "null")):
        with pytest.raises(StoreError, match=why):
            store.open(path)
