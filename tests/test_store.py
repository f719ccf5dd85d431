"""A run on disk: equal in every field and dtype when it comes back; refused with a reason when it cannot."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import zipfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from pyarrow import parquet
from test_trace import SHARED

from gpulab import store, trace
from gpulab.errors import StoreError
from gpulab.run import Gap, Gpu, Loader, Machine, Recording, Run, Source
from gpulab.tables import EVENTS, GPU_SAMPLES, HOST_SAMPLES, MARKS, Kind, MarkKind, Words

TABLES = {"event_rows": EVENTS, "mark_rows": MARKS, "gpu_rows": GPU_SAMPLES, "host_rows": HOST_SAMPLES}


def filled(table, count, seed=0):
    """Rows in which every column holds something else, extremes and absences included."""
    rng = np.random.default_rng(seed)
    columns = {}
    for column in table.columns:
        if column.dtype == "words":
            vocabulary = ("never used", "größe", "a", "", "核\x00", "last")
            columns[column.name] = Words(rng.integers(-1, 6, count).astype(np.int32), vocabulary)
        elif column.name == "kind":
            kinds = MarkKind if table is MARKS else Kind
            columns[column.name] = rng.choice([int(kind) for kind in kinds], count)
        elif column.name == "thread":
            columns[column.name] = rng.integers(-1, 2, count)
        elif column.dtype.startswith("float"):
            columns[column.name] = rng.choice([np.nan, -0.0, np.inf, -np.inf, 1 / 3, 5e-324], count)
        elif column.dtype == "bool":
            columns[column.name] = rng.random(count) < 0.5
        else:
            limits = np.iinfo(column.dtype)
            columns[column.name] = rng.integers(limits.min, limits.max, count, column.dtype, endpoint=True)
    return table.rows(columns)


def full_run(count=50):
    """A run with no field left at its default."""
    return Run(
        name='before "fix" λ',
        source=Source(how="measured", device="NVIDIA H100", date="2026-01-02"),
        machine=Machine(
            gpus=(
                Gpu(index=0, name="NVIDIA H100", uuid="GPU-1", memory_bytes=2**40, power_limit_w=700.5, mig=False),
                Gpu(index=1, name="x"),
            ),
            driver="580.1",
            cores=64,
            cores_allowed=2.5,
            memory_bytes=2**42,
            container="docker",
            gaps=(Gap(what="power", why="not told", fix="none"),),
        ),
        span_ns=2**62,
        began_ns=1_700_000_000_123_456_789,
        outcome="KeyboardInterrupt",
        rank=3,
        recording=Recording(
            level="deep",
            windows_ns=((0, 5), (7, 2**61)),
            pauses_ns=((1, 2),),
            activities=("cpu", "cuda"),
            options=("record_shapes",),
            left_out=(Gap(what="w", why="y", fix="f"),),
            lost={"the file ends early": 1},
        ),
        loaders=(Loader(workers=0, batch_size=32, pin_memory=True, dataset="Images"), Loader()),
        threads=("main", "autograd"),
        main_thread=1,
        facts={"threads": "8", "ünï": "cödé"},
        **{field: filled(table, count, seed) for seed, (field, table) in enumerate(TABLES.items())},
    )


def same(one, other):
    """Equal in every field, every dtype and every bit of every column."""
    for field in dataclasses.fields(Run):
        if field.name not in TABLES:
            assert getattr(one, field.name) == getattr(other, field.name), field.name
            continue
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        assert mine.table is theirs.table
        assert list(mine.columns) == list(theirs.columns)
        for name, values in mine.columns.items():
            back = theirs.columns[name]
            if isinstance(values, Words):
                # Parquet keeps no dictionary for a column without rows.
                assert values.vocabulary == back.vocabulary or not len(values), name
                values, back = values.codes, back.codes
            assert values.dtype == back.dtype, name
            assert values.tobytes() == back.tobytes(), name
            assert not back.flags.writeable
    return True


def changed(path, change):
    """The file with its run.json and tables put through `change(name, bytes)`; None drops a part."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: change(name, archive.read(name)) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            if text is not None:
                archive.writestr(name, text)
    return path


def with_meta(path, change):
    def edit(name, text):
        if name != "run.json":
            return text
        document = json.loads(text)
        change(document)
        return json.dumps(document).encode()

    return changed(path, edit)


def with_table(path, name, change):
    def edit(part, text):
        if part != f"{name}.parquet":
            return text
        buffer = io.BytesIO()
        parquet.write_table(change(parquet.read_table(io.BytesIO(text))), buffer)
        return buffer.getvalue()

    return changed(path, edit)


@pytest.fixture
def saved(tmp_path):
    return store.save(full_run(), tmp_path / "run.gpulab")


# There and back.


@pytest.mark.parametrize("count", [0, 1, 50, 5000])
def test_a_run_comes_back_equal_in_every_field_and_dtype(tmp_path, count):
    run = full_run(count)
    assert same(run, store.open(store.save(run, tmp_path / "run.gpulab")))


def test_a_run_with_nothing_in_it_comes_back(tmp_path):
    run = Run(name="", source=Source(how="measured", device=""), machine=Machine(), span_ns=0)
    assert same(run, store.open(store.save(run, tmp_path / "run.gpulab")))


@pytest.mark.parametrize("name", SHARED)
def test_a_real_trace_comes_back_equal_and_small(recorded, tmp_path, name):
    run = trace.read(recorded(f"{name}.json.gz"))
    path = store.save(run, tmp_path / "run.gpulab")
    assert same(run, store.open(path))
    assert path.stat().st_size < 20_000 + 10 * len(run.event_rows)


@settings(max_examples=30, deadline=None)
@given(
    hnp.arrays(np.float32, 7, elements=st.floats(width=32)),
    hnp.arrays(np.int64, 7),
    st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"])), min_size=7, max_size=7),
)
def test_any_numbers_and_any_names_come_back(tmp_path_factory, floats, wholes, names):
    columns = {column.name: filled(EVENTS, 7).columns[column.name] for column in EVENTS.columns}
    columns |= {"occupancy_frac": floats, "start_ns": wholes, "name": Words.of(names)}
    run = dataclasses.replace(full_run(7), event_rows=EVENTS.rows(columns))
    assert same(run, store.open(store.save(run, tmp_path_factory.mktemp("any") / "run.gpulab")))


def test_the_same_run_gives_the_same_bytes(tmp_path):
    one, other = (store.save(full_run(), tmp_path / f"{name}.gpulab").read_bytes() for name in "ab")
    assert one == other


def test_the_suffix_is_added_where_there_is_none(tmp_path):
    assert store.save(full_run(), tmp_path / "before").name == "before.gpulab"
    assert store.save(full_run(), str(tmp_path / "before.zip")).name == "before.zip"


def test_a_name_that_is_no_text_is_saved_all_the_same(tmp_path):
    rows = filled(HOST_SAMPLES, 3)
    columns = {**rows.columns, "frame": Words.of(["loop (caf\udce9.py:3)", None, "b"])}
    run = dataclasses.replace(full_run(), host_rows=HOST_SAMPLES.rows(columns))
    back = store.open(store.save(run, tmp_path / "run.gpulab"))
    assert back.host_rows.words("frame").to_list() == ["loop (caf?.py:3)", None, "b"]


def test_other_tools_can_read_the_tables_and_there_is_nothing_else_in_the_file(saved):
    with zipfile.ZipFile(saved) as archive:
        assert archive.namelist()[0] == "run.json"
        table = parquet.read_table(io.BytesIO(archive.read("events.parquet"))).to_pandas()
        assert list(table.columns) == [column.name for column in EVENTS.columns]
        assert table["name"].dtype == "category"
        assert json.loads(archive.read("run.json"))["format"] == "gpulab run"
        assert {name.rpartition(".")[2] for name in archive.namelist()} == {"json", "parquet"}


# Whole or not at all.


def test_nothing_but_the_file_is_left_in_the_folder(saved):
    assert [path.name for path in saved.parent.iterdir()] == ["run.gpulab"]


def test_a_run_that_cannot_be_written_leaves_the_old_file_and_nothing_else(saved, monkeypatch):
    before = saved.read_bytes()

    def fail(rows):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store, "_parquet", fail)
    with pytest.raises(StoreError, match="No space left on device"):
        store.save(full_run(), saved)
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["run.gpulab"]


def test_an_interrupt_while_writing_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(rows):
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_parquet", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(full_run(), tmp_path / "run.gpulab")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_named(tmp_path):
    with pytest.raises(StoreError, match="No such file or directory"):
        store.save(full_run(), tmp_path / "nowhere" / "run.gpulab")


def test_a_run_holding_what_no_file_can_hold_is_refused(tmp_path):
    with pytest.raises(StoreError, match="a run holds a object"):
        store.save(dataclasses.replace(full_run(), facts={"x": object()}), tmp_path / "run.gpulab")


# Other versions.


def test_a_newer_major_schema_is_refused_with_the_advice_to_upgrade(saved):
    with_meta(saved, lambda document: document.update(schema=[2, 0]))
    with pytest.raises(StoreError, match="newer gpulab") as error:
        store.open(saved)
    assert "upgrade" in error.value.fix


def test_a_newer_minor_schema_opens_and_says_what_was_passed_over(saved):
    def newer(document):
        document["schema"] = [1, 9]
        document["run"]["weather"] = "sunny"
        document["run"]["machine"]["altitude_m"] = 12

    with_meta(saved, newer)
    with_table(saved, "events", lambda table: table.append_column("colour", pa.array(["red"] * len(table))))
    run = store.open(saved)
    note = run.recording.left_out[-1]
    assert "weather" in note.what
    assert "events: colour" in note.what
    assert "schema 1.9" in note.why
    whole = dataclasses.replace(run, recording=full_run().recording)
    assert same(whole, full_run())


def test_rows_of_an_unknown_kind_are_passed_over_and_said_to_be(saved):
    def newer(table):
        kinds = table["kind"].to_numpy().copy()
        kinds[:3] = 99
        return table.set_column(0, "kind", pa.array(kinds))

    with_table(saved, "events", newer)
    run = store.open(saved)
    assert len(run.event_rows) == 47
    assert "events: 3 rows of a kind that is not known" in run.recording.left_out[-1].what


def test_what_an_older_file_lacks_is_absent(saved):
    with_table(saved, "events", lambda table: table.drop_columns(["occupancy_frac", "block", "name"]))
    with_meta(saved, lambda document: [document["run"].pop(field) for field in ("facts", "rank", "loaders")])
    changed(saved, lambda name, text: None if name == "gpu_samples.parquet" else text)
    run = store.open(saved)
    assert np.isnan(run.event_rows["occupancy_frac"]).all()
    assert (run.event_rows["block"] == -1).all()
    assert run.event_rows.words("name").to_list() == [None] * 50
    assert (run.facts, run.rank, run.loaders, len(run.gpu_rows)) == ({}, None, (), 0)
    assert len(run.events) == 50


def test_a_table_without_its_times_is_refused(saved):
    with_table(saved, "marks", lambda table: table.drop_columns(["end_ns"]))
    with pytest.raises(StoreError, match="lacks its column end_ns"):
        store.open(saved)


def test_plain_text_where_a_dictionary_was_is_read(saved):
    def plain(table):
        index = table.schema.get_field_index("name")
        return table.set_column(index, "name", table["name"].cast(pa.string()))

    with_table(saved, "events", plain)
    assert store.open(saved).event_rows.words("name").to_list() == full_run().event_rows.words("name").to_list()


# Damage.


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda document: document.update(format="a poem"), "a poem"),
        (lambda document: document.pop("schema"), "schema"),
        (lambda document: document["run"].pop("name"), "name"),
        (lambda document: document["run"].update(span_ns="long"), "span_ns|int"),
        (lambda document: document["run"].update(threads=["only one"]), "thread"),
        (lambda document: document["run"].update(machine=[]), "object"),
    ],
)
def test_metadata_that_make_no_run_are_refused(saved, change, why):
    with_meta(saved, change)
    with pytest.raises(StoreError, match=why):
        store.open(saved)


def test_a_file_cut_off_anywhere_is_refused(saved):
    text = saved.read_bytes()
    for size in [*range(0, len(text), 997), len(text) - 1]:
        saved.write_bytes(text[:size])
        with pytest.raises(StoreError):
            store.open(saved)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_changed_bytes_are_refused_or_harmless(tmp_path_factory, data):
    path = store.save(full_run(5), tmp_path_factory.mktemp("bytes") / "run.gpulab")
    text = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(text)
    with contextlib.suppress(StoreError):
        assert same(store.open(path), full_run(5))


def test_damage_in_a_table_that_the_checksum_does_not_know_is_refused(saved):
    changed(saved, lambda name, text: text[: len(text) // 2] if name == "events.parquet" else text)
    with pytest.raises(StoreError, match="damaged"):
        store.open(saved)


def test_a_file_that_is_something_else_is_refused(tmp_path):
    for text in (b"", b"hello", b'{"traceEvents": []}'):
        (tmp_path / "x.gpulab").write_bytes(text)
        with pytest.raises(StoreError):
            store.open(tmp_path / "x.gpulab")
    for path in (tmp_path, tmp_path / "missing.gpulab"):
        with pytest.raises(StoreError):
            store.open(path)


def test_a_run_is_known_by_its_content_even_when_cut_off(saved, tmp_path):
    assert store.is_run(saved)
    (tmp_path / "renamed.json").write_bytes(saved.read_bytes()[:500])
    assert store.is_run(tmp_path / "renamed.json")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("other.txt", "hello")
    for path in (tmp_path / "other.zip", tmp_path, tmp_path / "missing"):
        assert not store.is_run(path)
