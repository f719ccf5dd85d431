"""The bytes of one Parquet file -> the columns of a table, within an allowance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpulab.columns import Column
from gpulab.rows import Array, Rows, Table, Words, absent
from gpulab.store.footer import Footer, footer, unpacked_bytes
from gpulab.store.format import TRUST, refusal

if TYPE_CHECKING:
    import pyarrow as pa

_WORD_BYTES = 64  # what Python takes for a word beside its text
_NEEDED = ("event", "kind", "start_ns", "end_ns", "dur_ns", "at_ns")  # no value of these means absent
_PHYSICAL = {"b": ("BOOLEAN",), "i": ("INT32", "INT64"), "f": ("FLOAT", "DOUBLE"), "words": ("BYTE_ARRAY",)}

_DTYPES = {f"int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)}  # by Arrow's name of it
_DTYPES |= {"bool": "bool", "float": "float32", "double": "float64"}


@dataclass
class Allowance:
    """How much memory a run may still take: sizes that a file claims are taken from it before they are believed."""

    bytes: int

    def take(self, size: int, name: str) -> None:
        """So much less is left. Raises StoreError where that is not there."""
        self.bytes -= size
        if self.bytes < 0:
            raise refusal(f"its {name} would take more memory than a run of its size does", TRUST)


def unpacked(table: Table, text: bytes, allowance: Allowance) -> tuple[Rows, tuple[str, ...]]:
    """The rows of a table, and the names of columns that it does not have; a column that the file lacks is absent.

    Raises StoreError where the file is damaged or takes too much.
    """
    import pyarrow as pa

    name = table.name
    try:
        said = footer(text)
        found = [column for column in table.columns if _fits(column, said)]
        # Whatever its dtype, a number takes 8 bytes at most on its way.
        allowance.take(8 * len(table.columns) * said.rows, name)
        allowance.take(unpacked_bytes(text, [chunk for column in found for chunk in said.chunks[column.name]]), name)
        columns = _read(found, text) if said.rows else {}
    except (pa.ArrowException, OSError, ValueError, KeyError, IndexError, OverflowError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise refusal(f"the table {name} is damaged: {why}") from error
    for values in columns.values():
        if isinstance(values, Words):
            allowance.take(_WORD_BYTES * len(values.vocabulary), name)
    if any(len(values) != said.rows for values in columns.values()):
        raise refusal(f"the table {name} is damaged: its columns differ in length")
    for column in table.columns:
        if column.name not in columns:
            if column.name in _NEEDED and column not in found:
                raise refusal(f"the table {name} lacks its column {column.name}")
            columns[column.name] = _absent(column, said.rows)
    return table.rows(columns), tuple(column for column in said.types if column not in columns)


def _read(found: Sequence[Column], text: bytes) -> dict[str, Array | Words]:
    import pyarrow as pa
    from pyarrow import parquet

    # A dictionary stays one: spelt out, a long word in a million rows would take a million times its length.
    words = [column.name for column in found if column.dtype == "words"]
    file = parquet.ParquetFile(pa.BufferReader(text), read_dictionary=words)
    # One after the other: what a column takes on its way is given back before the next.
    return {each.name: _column(each, file.read(columns=[each.name], use_threads=False)[0]) for each in found}


def _fits(column: Column, said: Footer) -> bool:
    """Whether the file has the column. Raises ValueError where it is of another type."""
    if column.name not in said.types:
        return False
    fitting = _PHYSICAL["words" if column.dtype == "words" else np.dtype(column.dtype).kind]
    if said.types[column.name] not in fitting:
        raise ValueError(f"its column {column.name} holds {said.types[column.name]}, not {column.dtype}")
    return True


def _column(column: Column, values: pa.ChunkedArray) -> Array | Words:
    import pyarrow as pa

    chunks = values.unify_dictionaries().chunks
    whole = chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks or [pa.array([], values.type)])
    return _words(column, whole) if column.dtype == "words" else _numbers(column, whole)


def _numbers(column: Column, values: pa.Array) -> Array:
    dtype = np.dtype(column.dtype)
    found = _DTYPES.get(str(values.type))
    fits = found is not None and np.dtype(found).kind == dtype.kind
    if fits:
        array = _as_numpy(values, np.dtype(found))
        # A later schema may hold more in a column than this one can.
        fits = array.dtype == dtype or np.array_equal(array.astype(dtype), array, equal_nan=dtype.kind == "f")
    if not fits:
        raise ValueError(f"its column {column.name} holds {values.type}, not {column.dtype}")
    return array


def _as_numpy(values: pa.Array, dtype: np.dtype[Any]) -> Array:
    """The same memory, unless some are absent. Arrow's to_numpy would import pandas on the way: 0.3 s and 60 MB."""
    told, data = values.buffers()
    if not len(values) or data is None:
        return np.full(len(values), absent(dtype), dtype)
    rows = slice(values.offset, values.offset + len(values))
    array = _bits(data, rows) if dtype.kind == "b" else np.frombuffer(data, dtype)[rows]
    return np.where(_bits(told, rows), array, absent(dtype)) if values.null_count else array


def _bits(buffer: pa.Buffer, rows: slice) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little")[rows].view(np.bool_)


def _words(column: Column, values: pa.Array) -> Words:
    import pyarrow as pa

    if not pa.types.is_dictionary(values.type) or values.dictionary.null_count:
        raise ValueError(f"its column {column.name} holds {values.type}, not text")
    values.validate(full=True)
    codes = _as_numpy(values.indices.cast(pa.int32()), np.dtype(np.int32))
    return Words(codes, tuple(values.dictionary.cast(pa.string()).to_pylist()))


def _absent(column: Column, count: int) -> Array | Words:
    if column.dtype == "words":
        return Words(np.full(count, -1, np.int32), ())
    dtype = np.dtype(column.dtype)
    return np.full(count, absent(dtype), dtype)
