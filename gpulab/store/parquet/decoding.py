"""Decode one Parquet file to the columns of a table, within a memory allowance. It needs pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Column
from gpulab.rows import Array, Rows, Table, TextColumn, absent_value
from gpulab.store.format import invalid_run_error
from gpulab.store.memory_allowance import STRING_BYTES, MemoryAllowance
from gpulab.store.missing_columns import complete_table
from gpulab.store.parquet.footer import Footer, parse_footer, unpacked_bytes

if TYPE_CHECKING:
    import pyarrow as pa

_PHYSICAL = {"b": ("BOOLEAN",), "i": ("INT32", "INT64"), "f": ("FLOAT", "DOUBLE"), "words": ("BYTE_ARRAY",)}

_DTYPES = {f"int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}  # by Arrow's name
_DTYPES |= {"bool": "bool", "float": "float32", "double": "float64"}


def decode_parquet(table: Table, text: bytes, allowance: MemoryAllowance) -> tuple[Rows, tuple[str, ...]]:
    """The rows of a table, and names of unknown columns; a column that is missing in the file is absent.

    Raises StoreError if the file is damaged or takes too much memory.
    """
    import pyarrow as pa

    name = table.name
    try:
        file_footer = parse_footer(text)
        present = [column for column in table.columns if _has_column(column, file_footer)]
        # Whatever its dtype, a number takes at most 8 bytes while it is decoded.
        allowance.reserve(8 * len(table.columns) * file_footer.rows, name)
        allowance.reserve(
            unpacked_bytes(text, [chunk for column in present for chunk in file_footer.chunks[column.name]]), name
        )
        columns = _read(present, text) if file_footer.rows else {}
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise invalid_run_error(f"the table {name} is damaged: {why}") from error
    for values in columns.values():
        if isinstance(values, TextColumn):
            allowance.reserve(STRING_BYTES * len(values.vocabulary), name)
    if any(len(values) != file_footer.rows for values in columns.values()):
        raise invalid_run_error(f"the table {name} is damaged: its columns differ in length")
    unknown = tuple(column for column in file_footer.types if column not in {one.name for one in table.columns})
    if not file_footer.rows:  # then the columns have no pages
        return table.empty(), unknown
    return complete_table(table, columns, file_footer.rows), unknown


def _read(columns: Sequence[Column], text: bytes) -> dict[str, Array | TextColumn]:
    import pyarrow as pa
    from pyarrow import parquet

    # Dictionaries are kept: a long text in a million rows would otherwise take a million times its length.
    text_columns = [column.name for column in columns if column.dtype == "words"]
    file = parquet.ParquetFile(pa.BufferReader(text), read_dictionary=text_columns)
    # One column after the other, so that the temporary memory of each is free before the next.
    return {each.name: _column(each, file.read(columns=[each.name], use_threads=False)[0]) for each in columns}


def _has_column(column: Column, file_footer: Footer) -> bool:
    """Whether the file has the column. Raises ValueError if it has another type."""
    if column.name not in file_footer.types:
        return False
    supported = _PHYSICAL["words" if column.dtype == "words" else np.dtype(column.dtype).kind]
    if file_footer.types[column.name] not in supported:
        raise ValueError(f"its column {column.name} contains {file_footer.types[column.name]}, not {column.dtype}")
    return True


def _column(column: Column, values: pa.ChunkedArray) -> Array | TextColumn:
    import pyarrow as pa

    chunks = values.unify_dictionaries().chunks
    array = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], values.type)])
    return _text_column(column, array) if column.dtype == "words" else _numeric_column(column, array)


def _numeric_column(column: Column, values: pa.Array) -> Array:
    dtype = np.dtype(column.dtype)
    stored_dtype = _DTYPES.get(str(values.type))
    fits = stored_dtype is not None and np.dtype(stored_dtype).kind == dtype.kind
    if fits:
        array = _as_numpy(values, np.dtype(stored_dtype))
        # A newer schema version may store larger numbers than this column can hold.
        fits = array.dtype == dtype or np.array_equal(array.astype(dtype), array, equal_nan=dtype.kind == "f")
    if not fits:
        raise ValueError(f"its column {column.name} contains {values.type}, not {column.dtype}")
    return array


def _as_numpy(values: pa.Array, dtype: np.dtype[Any]) -> Array:
    """The same memory, unless values are absent. Arrow's to_numpy would import pandas: 0.3 s and 60 MB."""
    validity, data = values.buffers()
    if not len(values) or data is None:
        return np.full(len(values), absent_value(dtype), dtype)
    rows = slice(values.offset, values.offset + len(values))
    array = _bits(data, rows) if dtype.kind == "b" else np.frombuffer(data, dtype)[rows]
    return np.where(_bits(validity, rows), array, absent_value(dtype)) if values.null_count else array


def _bits(buffer: pa.Buffer, rows: slice) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")[rows].view(np.bool_)


def _text_column(column: Column, values: pa.Array) -> TextColumn:
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type) or values.dictionary.null_count:
        raise ValueError(f"its column {column.name} contains {values.type}, not text")
    values.validate(full=True)
    codes = _as_numpy(values.indices.cast(pa.int32()), np.dtype(np.int32))
    return TextColumn(codes, tuple(values.dictionary.cast(pa.string()).to_pylist()))
