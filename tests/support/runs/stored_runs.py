"""A run with no field at its default, what equal means, and files changed part by part."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile

import numpy as np

from gpulab.columns import MAX_SIZE
from gpulab.rows import Rows, Table, TextColumn
from gpulab.run import Failure, Gap, Gpu, Loader, Machine, Model, Optimizer, Recording, Run, Source
from gpulab.store.memory_allowance import MemoryAllowance
from gpulab.store.table_decoding import decode_table
from gpulab.store.table_encoding import encode_table
from gpulab.tables import SIDE_TABLES, TABLES

FIELDS = ("event", "grid", "shape", "collective", "wait", "memory", "mark", "gpu", "host")
FIELDS += ("worker", "stall", "allocator", "holder", "phase")
ROWS = {f"{field}_rows": table for field, table in zip(FIELDS, TABLES, strict=True)}
HALF = 2**61


def filled(table, count, seed=0):
    """Rows in which every column holds something else, extremes and absences included."""
    rng = np.random.default_rng(seed)
    columns = {}
    for column in table.columns:
        if column.dtype == "words":
            vocabulary = ("never used", "größe", "a", "", "核\x00", "last")
            columns[column.name] = TextColumn(rng.integers(-1, 6, count).astype(np.int32), vocabulary)
        elif column.kinds is not None:
            kinds = column.kinds
            columns[column.name] = rng.choice([int(kind) for kind in kinds], count)
        elif column.name == "event":
            columns[column.name] = np.arange(count)
        elif column.name == "end_ns":
            columns[column.name] = rng.integers(columns["start_ns"], HALF, count, endpoint=True)
        elif column.name in ("thread", "loader") or (column.name == "device" and "samples" in table.name):
            columns[column.name] = rng.integers(-1, 2, count)
        elif column.dtype.startswith("float"):
            columns[column.name] = rng.choice([np.nan, -0.0, np.inf, -np.inf, 1 / 3, 5e-324], count)
        elif column.dtype == "bool":
            columns[column.name] = rng.random(count) < 0.5
        elif column.name.endswith("_ns"):
            longest = HALF // max(1, count) if column.name == "dur_ns" else HALF
            columns[column.name] = rng.integers(0 if column.name == "dur_ns" else -HALF, longest, count, endpoint=True)
        else:
            limits = np.iinfo(column.dtype)
            lowest, highest = (-MAX_SIZE, MAX_SIZE) if limits.bits == 64 else (-1, limits.max)
            columns[column.name] = rng.integers(lowest, highest, count, column.dtype, endpoint=True)
    return table.rows(columns)


def full_run(count=50):
    """A run with no field left at its default; every second event has a row in each side table."""
    rows = {}
    for seed, (field, table) in enumerate(ROWS.items()):
        rows[field] = filled(table, count, seed)
        if table in SIDE_TABLES:
            rows[field] = rows[field].select(rows[field]["event"] % 2 == seed % 2)
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
        span_ns=HALF,
        began_ns=1_700_000_000_123_456_789,
        outcome="KeyboardInterrupt",
        rank=3,
        recording=Recording(
            level="deep",
            windows_ns=((0, 5), (7, 2**60)),
            pauses_ns=((1, 2),),
            activities=("cpu", "cuda"),
            options=("record_shapes",),
            left_out=(Gap(what="w", why="y", fix="f"),),
            lost={"the file ends early": 1},
        ),
        failure=Failure(message="CUDA out of memory.", device=0, needed_bytes=2**35, where="train (cell line 3)"),
        models=(Model(kind="ResNet", name="model", bytes=2**27, dtypes=("float32", "bfloat16"), compiled=False),),
        optimizers=(Optimizer(kind="AdamW", name="opt", tensors=161, fused=True), Optimizer(kind="SGD")),
        loaders=(Loader(workers=0, batch_size=32, pin_memory=True, dataset="Images"), Loader()),
        threads=("main", "autograd"),
        main_thread=1,
        facts={"threads": "8", "ünï": "cödé"},
        **rows,
    )


def assert_same_run(one, other):
    """Equal in every field, every dtype and every bit of every column."""
    for field in dataclasses.fields(Run):
        if field.name not in ROWS:
            assert getattr(one, field.name) == getattr(other, field.name), field.name
            continue
        one_rows, other_rows = getattr(one, field.name), getattr(other, field.name)
        assert one_rows.table is other_rows.table is ROWS[field.name]
        assert list(one_rows.columns) == list(other_rows.columns)
        for name, values in one_rows.columns.items():
            other_values = other_rows.columns[name]
            if isinstance(values, TextColumn):
                # A table without rows is not written, and its words are not either.
                assert values.vocabulary == other_values.vocabulary or not len(values), name
                values, other_values = values.codes, other_values.codes
            assert values.dtype == other_values.dtype, name
            assert values.tobytes() == other_values.tobytes(), name
            assert not other_values.flags.writeable
    return True


def parts_of(path):
    """The bytes of each part by its name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def signed(parts):
    """The same with checksums that fit: what somebody would write who means harm, or a later version."""
    document = json.loads(parts["run.json"])
    if "sha256" in document:
        document["sha256"] = {
            name.rpartition(".")[0]: hashlib.sha256(text).hexdigest()
            for name, text in parts.items()
            if name.endswith((".columns", ".parquet"))
        }
    return {**parts, "run.json": json.dumps(document).encode()}


def write(path, parts):
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


def with_meta(path, change):
    """The file with `change(document)` made to its run.json."""
    parts = parts_of(path)
    document = json.loads(parts["run.json"])
    change(document)
    return write(path, {**parts, "run.json": json.dumps(document).encode()})


def with_part(path, name, text):
    """The file with another part, which its checksums know; None takes it out."""
    parts = {**parts_of(path), name: text}
    return write(path, signed({part: text for part, text in parts.items() if text is not None}))


def with_table(path, name, change):
    """The file with `change(columns)` made to the columns of one of its tables, which may change their dtype."""
    (table,) = (table for table in TABLES if table.name == name)
    rows, _ = decode_table(table, parts_of(path)[f"{name}.columns"], MemoryAllowance(2**30))
    return with_part(path, f"{name}.columns", encode_table(Rows(Table(name, ()), change(dict(rows.columns)))))


def with_column(path, table, column, values):
    """The file with other values in one column of a table; None takes the column out."""

    def change(columns):
        changed = {**columns, column: values}
        return {name: array for name, array in changed.items() if array is not None}

    return with_table(path, table, change)
