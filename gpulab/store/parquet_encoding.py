"""Encode rows as one Parquet file.

Each column has the encoding that was smallest on real traces, all under zstd, which decompresses as fast at level 9 as
at 1: rising times and row numbers as differences (a twentieth of the size); correlations unencoded, because calls
without one lie between them (two thirds of the size of differences); everything else, which repeats, with a dictionary.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np

from gpulab.rows import Array, Rows, TextColumn

if TYPE_CHECKING:
    import pyarrow as pa

_DELTA_ENCODED = {"event", "start_ns", "end_ns", "at_ns", "process_cpu_ns", "process_cpu_end_ns"}
_PLAIN_ENCODED = {"correlation", "wait_on_correlation"}


def encode_table(rows: Rows) -> bytes:
    """Encode the rows as a Parquet file."""
    import pyarrow as pa
    from pyarrow import parquet

    columns = {name: _to_arrow(values) for name, values in rows.columns.items()}
    buffer = BytesIO()
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


def _to_arrow(values: Array | TextColumn) -> pa.Array:
    """Convert to Arrow without copying. pa.array would import pandas: 0.3 s and 60 MB."""
    import pyarrow as pa

    if isinstance(values, TextColumn):
        validity = pa.py_buffer(np.packbits(values.codes >= 0, bitorder="little"))
        buffers = [validity, pa.py_buffer(values.codes)]
        kind = pa.dictionary(pa.int32(), pa.string())
        return pa.DictionaryArray.from_buffers(kind, len(values), buffers, _to_arrow_strings(values.vocabulary))
    bits = np.packbits(values, bitorder="little") if values.dtype.kind == "b" else values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(bits)])


def _to_arrow_strings(vocabulary: Sequence[str]) -> pa.Array:
    import pyarrow as pa

    # A file name may contain bytes that are not text; Parquet accepts UTF-8 only.
    texts = [text.encode("utf-8", "replace") for text in vocabulary]
    ends = np.cumsum([0, *map(len, texts)])
    if ends[-1] > np.iinfo(np.int32).max:
        raise ValueError("the names of a column take more than 2 GiB")
    buffers = [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(b"".join(texts))]
    return pa.Array.from_buffers(pa.string(), len(vocabulary), buffers)
