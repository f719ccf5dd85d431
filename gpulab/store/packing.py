"""Rows -> the bytes of one Parquet file.

Each column takes the encoding that was smallest on real traces, all of them under zstd, which reads as fast at level 9
as at 1: rising times and row numbers as differences (a twentieth), correlations as they are, because calls without one
stand between (two thirds of their differences), everything else, which repeats, through a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from gpulab.rows import Array, Rows, Words

if TYPE_CHECKING:
    import pyarrow as pa

_RISING = {"event", "start_ns", "end_ns", "at_ns", "process_cpu_ns", "process_cpu_end_ns"}
_AS_THEY_ARE = {"correlation", "wait_on_correlation"}


def packed(rows: Rows) -> bytes:
    """The rows as a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: _arrow(values) for name, values in rows.columns.items()}
    buffer = BytesIO()
    parquet.write_table(
        pa.table(columns),
        buffer,
        compression="zstd",
        compression_level=9,
        use_dictionary=[name for name in columns if name not in _RISING | _AS_THEY_ARE],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in columns if name in _RISING},
        row_group_size=max(1, len(rows)),  # one dictionary per column, kept as it is
        dictionary_pagesize_limit=2**30,
        write_statistics=False,
        store_schema=False,  # the types are in Parquet itself; beside it stands a copy that only Arrow reads
    )
    return buffer.getvalue()


def _arrow(values: Array | Words) -> pa.Array:
    """As Arrow has it, not copied. pa.array would import pandas on the way: 0.3 s and 60 MB."""
    import pyarrow as pa

    if isinstance(values, Words):
        told = pa.py_buffer(np.packbits(values.codes >= 0, bitorder="little"))
        buffers = [told, pa.py_buffer(values.codes)]
        kind = pa.dictionary(pa.int32(), pa.string())
        return pa.DictionaryArray.from_buffers(kind, len(values), buffers, _strings(values.vocabulary))
    bits = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(bits)])


def _strings(words: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    # A file name may hold bytes that are no text; Parquet takes UTF-8 only.
    texts = [word.encode("utf-8", "replace") for word in words]
    ends = np.cumsum([0, *map(len, texts)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("the names of a column take more than 2 GiB")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(words), buffers)
