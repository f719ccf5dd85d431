"""A run on disk: equal in every field and dtype when it comes back, in a file that is small, whole, and only data."""

from __future__ import annotations

import dataclasses
import json
import stat
import subprocess
import sys
import zipfile
import zlib
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gpulab
from gpulab import store, trace
from gpulab.errors import StoreError
from gpulab.rows import TextColumn
from gpulab.run import TABLE_FIELDS as RUN_FIELDS
from gpulab.run import Machine, Run, Source
from gpulab.store import writing
from gpulab.tables import EVENTS, GRIDS, HOST_SAMPLES, TABLES
from tests.support.oracle import SHARED
from tests.support.runs.stored_runs import FIELDS, ROWS, assert_same_run, filled, full_run, parts_of
from tests.support.tiers import examples


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


# There and back.


@pytest.mark.parametrize("count", [0, 1, 50, 5000])
def test_a_loaded_run_equals_the_saved_one_in_every_field_and_dtype(tmp_path, count):
    run = full_run(count)
    assert assert_same_run(run, store.open(store.save(run, tmp_path / "run.gpulab")))


def test_every_table_that_a_run_holds_is_stored():
    assert [f"{name}_rows" for name in FIELDS] == [name for name in vars(full_run()) if name.endswith("_rows")]
    assert [table.name for table in ROWS.values()] == [table.name for table in TABLES]
    assert list(RUN_FIELDS.items()) == list(ROWS.items())


def test_an_empty_run_survives_saving(tmp_path):
    run = Run(name="", source=Source(how="measured", device=""), machine=Machine(), span_ns=0)
    assert assert_same_run(run, store.open(store.save(run, tmp_path / "run.gpulab")))


@pytest.mark.parametrize("name", SHARED)
def test_a_real_trace_comes_back_equal_and_a_million_events_of_it_would_take_6_mb(recorded, tmp_path, name):
    run = trace.read(recorded(f"{name}.json.gz"))
    path = store.save(run, tmp_path / "run.gpulab")
    assert assert_same_run(run, store.open(path))
    assert path.stat().st_size < 10_000 + 6 * len(run.event_rows)


def test_a_live_run_survives_saving(tmp_path):
    torch = pytest.importorskip("torch")
    with gpulab.profile("live", level="deep") as session:
        model = torch.nn.Linear(8, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        data = torch.utils.data.TensorDataset(torch.ones(160, 8))
        for (inputs,) in torch.utils.data.DataLoader(data, batch_size=4):
            optimizer.zero_grad()
            model(inputs).sum().backward()
            optimizer.step()
    run = session.run
    assert min(len(rows) for rows in (run.event_rows, run.mark_rows, run.host_rows)) > 0
    assert assert_same_run(run, store.open(gpulab.save(run, tmp_path / "live.gpulab")))


@examples(30)
@given(
    hnp.arrays(np.float32, 7, elements=st.floats(width=32)),
    hnp.arrays(np.int64, 7),
    hnp.arrays(np.int64, 7, elements=st.integers(-(2**61), 2**61)),
    st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), min_size=7, max_size=7),
)
def test_any_numbers_and_names_survive_saving(tmp_path_factory, floats, wholes, times, names):
    events = {**filled(EVENTS, 7).columns, "start_ns": times, "correlation": wholes, "name": TextColumn.of(names)}
    grids = {**filled(GRIDS, 7).columns, "occupancy_frac": floats, "grid": wholes}
    run = dataclasses.replace(full_run(7), event_rows=EVENTS.rows(events), grid_rows=GRIDS.rows(grids))
    assert assert_same_run(run, store.open(store.save(run, tmp_path_factory.mktemp("any") / "run.gpulab")))


def test_the_same_run_gives_the_same_bytes(tmp_path):
    one, other = (store.save(full_run(), tmp_path / f"{name}.gpulab").read_bytes() for name in "ab")
    assert one == other


def test_the_suffix_is_added_where_there_is_none(tmp_path):
    assert store.save(full_run(), tmp_path / "before").name == "before.gpulab"
    assert store.save(full_run(), str(tmp_path / "before.zip")).name == "before.zip"


def test_a_name_with_invalid_text_is_saved(tmp_path):
    frames = TextColumn.of(["loop (caf\udce9.py:3)", None, "loop (caf\udce8.py:3)", "b"])
    rows = HOST_SAMPLES.rows({**filled(HOST_SAMPLES, 4).columns, "frame": frames})
    run = dataclasses.replace(full_run(), name="caf\udce9", threads=("main \udce9", "b"), host_rows=rows)
    back = store.open(store.save(run, tmp_path / "run.gpulab"))
    assert back.host_rows.text("frame").to_list() == ["loop (caf?.py:3)", None, "loop (caf?.py:3)", "b"]
    assert (back.name, back.threads) == ("caf?", ("main ?", "b"))


def test_saving_and_opening_need_no_pandas(saved):
    script = (
        "import sys; from gpulab import store; run = store.open(sys.argv[1]); store.save(run, sys.argv[1]);"
        "print(len(run.event_rows), 'pandas' in sys.modules)"
    )
    root = Path(store.__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", script, str(saved)], cwd=root, capture_output=True, text=True, check=True, timeout=60
    )
    assert process.stdout.split() == ["50", "False"]


# What is in the file.


def test_the_file_holds_the_metadata_and_one_part_per_table(saved):
    parts = parts_of(saved)
    assert list(parts) == ["run.json", *(f"{table.name}.columns" for table in TABLES)]
    document = json.loads(parts["run.json"])
    assert (document["format"], document["schema"]) == ("gpulab run", [store.MAJOR, store.MINOR])


def test_a_table_is_read_with_zlib_and_its_description_alone(saved):
    """The layout that `gpulab.store.column_entries` documents, read without gpulab."""
    text = parts_of(saved)["events.columns"]
    start = 12 + int.from_bytes(text[8:12], "little")
    description = json.loads(zlib.decompress(text[12:start]))
    assert (text[:8], description["rows"]) == (b"gpulab\x00\x02", 50)
    assert [column["name"] for column in description["columns"]] == [column.name for column in EVENTS.columns]
    for column in description["columns"]:
        numbers = column["numbers"]
        for field in ("mask", "distinct", "lengths", "texts"):
            start += column.get(field, {"size": 0})["size"]
        stream, start = zlib.decompress(text[start : start + numbers["size"]]), start + numbers["size"]
        if column["name"] in ("kind", "correlation"):
            assert numbers_of(stream, **numbers) == full_run().event_rows[column["name"]].tolist()
    assert start == len(text)


def numbers_of(stream, *, count, width, size, delta=False, planes=False):
    places = range(count)
    texts = [stream[place::count] if planes else stream[width * place : width * (place + 1)] for place in places]
    unsigned = [int.from_bytes(text, "little") for text in texts]
    numbers = [(number >> 1) ^ -(number & 1) for number in unsigned]
    return [(number + 2**63) % 2**64 - 2**63 for number in (accumulate(numbers) if delta else numbers)]


def test_a_table_without_rows_is_not_stored(tmp_path):
    run = dataclasses.replace(full_run(), shape_rows=ROWS["shape_rows"].empty(), mark_rows=ROWS["mark_rows"].empty())
    parts = parts_of(store.save(run, tmp_path / "run.gpulab"))
    assert {"shapes.columns", "marks.columns"}.isdisjoint(parts)
    assert len(parts) == len(TABLES) + 1 - 2
    assert assert_same_run(run, store.open(tmp_path / "run.gpulab"))


def test_unpacked_parts_are_readable(saved):
    with zipfile.ZipFile(saved) as archive:
        assert {stat.filemode(member.external_attr >> 16) for member in archive.infolist()} == {"-rw-r--r--"}


def test_a_truncated_run_is_recognised_by_its_content(saved, tmp_path):
    assert store.is_run(saved)
    (tmp_path / "renamed.json").write_bytes(saved.read_bytes()[:500])
    assert store.is_run(tmp_path / "renamed.json")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("other.txt", "hello")
    for path in (tmp_path / "other.zip", tmp_path, tmp_path / "missing"):
        assert not store.is_run(path)


# Whole or not at all.


def test_nothing_but_the_file_is_left_in_the_folder(saved):
    assert [path.name for path in saved.parent.iterdir()] == ["run.gpulab"]


def test_a_run_that_cannot_be_written_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writing, "encode_table", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        store.save(full_run(), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["run.gpulab"]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(writing, "encode_table", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(full_run(), tmp_path / "run.gpulab")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="No such file or directory"):
        store.save(full_run(), tmp_path / "nowhere" / "run.gpulab")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"facts": {"x": object()}}, "object"),
        ({"facts": {"x": 1}}, "facts: Expected `str`, got `int`"),
        ({"facts": {"x": "y" * (17 << 20)}}, "16,777,216"),
        ({"threads": ("only one",), "main_thread": 0}, "events refers to thread 1"),
        ({"main_thread": 2}, "number 2 of 2"),
        ({"loaders": ()}, "marks refers to loader 1"),
        ({"span_ns": -1}, "out of range"),
        ({"event_rows": filled(EVENTS, 3)}, "grids refers to an event"),
        ({"grid_rows": full_run().grid_rows.select(np.array([1, 0]))}, "rows of grids"),
        ({"grid_rows": full_run().grid_rows.select(np.array([1, 1]))}, "rows of grids"),
    ],
)
def test_an_inconsistent_run_is_not_written(tmp_path, wrong, why):
    with pytest.raises(StoreError, match=why):
        store.save(dataclasses.replace(full_run(), **wrong), tmp_path / "run.gpulab")
    assert list(tmp_path.iterdir()) == []
