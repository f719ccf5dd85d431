"""Runs as gpulab saved them before file schema 2: a table is a Parquet file. Tests alone still write them."""

from __future__ import annotations

import io
import json

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from gpulab import store
from gpulab.rows import TextColumn
from gpulab.run import TABLE_FIELDS
from gpulab.tables import TABLES
from tests.support.runs.stored_runs import parts_of, signed, with_part, write

_DELTA_ENCODED = {"event", "start_ns", "end_ns", "at_ns", "process_cpu_ns", "process_cpu_end_ns"}
_PLAIN_ENCODED = {"correlation", "wait_on_correlation"}


def encode_parquet(rows):
    """Encode the rows as a Parquet file."""
    columns = {name: _to_arrow(values) for name, values in rows.columns.items()}
    buffer = io.BytesIO()
    parquet.write_table(
        pa.table(columns),
        buffer,
        compression="zstd",
        compression_level=9,
        use_dictionary=[name for name in columns if name not in _DELTA_ENCODED | _PLAIN_ENCODED],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in columns if name in _DELTA_ENCODED},
        row_group_size=max(1, len(rows)),  # one dictionary per column
        dictionary_pagesize_limit=2**30,
        write_statistics=False,
        store_schema=False,  # Parquet itself has the types; this would add a copy that only Arrow reads
    )
    return buffer.getvalue()


def _to_arrow(values):
    """Convert to Arrow without copying. pa.array would import pandas: 0.3 s and 60 MB."""
    if isinstance(values, TextColumn):
        validity = pa.py_buffer(np.packbits(values.codes >= 0, bitorder="little"))
        buffers = [validity, pa.py_buffer(values.codes)]
        kind = pa.dictionary(pa.int32(), pa.string())
        return pa.DictionaryArray.from_buffers(kind, len(values), buffers, _to_arrow_strings(values.vocabulary))
    bits = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(bits)])


def _to_arrow_strings(vocabulary):
    # A file name may contain bytes that are not text; Parquet accepts UTF-8 only.
    texts = [text.encode("utf-8", "replace") for text in vocabulary]
    ends = np.cumsum([0, *map(len, texts)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("the names of a column take more than 2 GiB")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(vocabulary), buffers)


def save_as_parquet(run, path):
    """Save the run in schema 1.1."""
    parts = parts_of(store.save(run, path))
    document = json.loads(parts["run.json"]) | {"schema": [1, 1]}
    tables = {table.name: getattr(run, field) for field, table in TABLE_FIELDS.items()}
    texts = {f"{name}.parquet": encode_parquet(rows) for name, rows in tables.items() if len(rows)}
    return write(path, signed({"run.json": json.dumps(document).encode(), **texts}))


def with_parquet_table(path, name, change, **options):
    """The file with `change(table)` made to one of its tables."""
    text_columns = [
        column.name for table in TABLES for column in table.columns if (table.name, column.dtype) == (name, "words")
    ]
    file = parquet.ParquetFile(io.BytesIO(parts_of(path)[f"{name}.parquet"]), read_dictionary=text_columns)
    buffer = io.BytesIO()
    parquet.write_table(change(file.read()), buffer, **options)
    return with_part(path, f"{name}.parquet", buffer.getvalue())
