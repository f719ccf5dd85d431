"""Decode a stored table to its rows, within a memory allowance. Nothing in it is trusted."""

from __future__ import annotations

import zlib
from collections.abc import Iterator

import msgspec
import numpy as np

from gpulab.columns import Column
from gpulab.rows import Array, Rows, Table, TextColumn
from gpulab.store.column_entries import HEADER_SIZE_BYTES, MAGIC, MAX_HEADER_BYTES, ColumnEntry, TableEntry
from gpulab.store.format import invalid_run_error
from gpulab.store.memory_allowance import STRING_BYTES, MemoryAllowance
from gpulab.store.missing_columns import complete_table
from gpulab.store.packed_arrays import Integers, PackedArray, unpack, unpack_bytes

Streams = dict[str, tuple[PackedArray, bytes]]  # by the field of the column's entry

_DTYPES = {"bool", "int8", "int16", "int32", "int64", "float32", "float64", "words"}


def decode_table(table: Table, text: bytes, allowance: MemoryAllowance) -> tuple[Rows, tuple[str, ...]]:
    """The rows of a table, and names of unknown columns; a column that is missing in the file is absent.

    Raises StoreError if the file is damaged or takes too much memory.
    """
    try:
        entry, start = _table_entry(text)
        columns: dict[str, Array | TextColumn] = {}
        table_columns = {column.name: column for column in table.columns}
        # Whatever its dtype, a number takes at most 8 bytes while it is decoded.
        allowance.reserve(8 * len(table.columns) * entry.rows, table.name)
        for column_entry, streams in _with_streams(entry, text, start):
            if column_entry.name in table_columns:
                _reserve(column_entry, allowance, table.name)
                columns[column_entry.name] = _column(
                    table_columns[column_entry.name], column_entry, streams, entry.rows
                )
    except (ValueError, msgspec.MsgspecError, zlib.error, OverflowError, RecursionError) as error:
        raise invalid_run_error(f"the table {table.name} is damaged: {error}") from error
    unknown = tuple(column.name for column in entry.columns if column.name not in table_columns)
    return complete_table(table, columns, entry.rows), unknown


def _table_entry(text: bytes) -> tuple[TableEntry, int]:
    """The description of the table, and where its streams start."""
    start = len(MAGIC) + HEADER_SIZE_BYTES
    size = int.from_bytes(text[len(MAGIC) : start], "little")
    if not text.startswith(MAGIC) or size > len(text) - start:
        raise ValueError("it is of another format, or ends early")
    decompressor = zlib.decompressobj()
    header = decompressor.decompress(text[start : start + size], MAX_HEADER_BYTES)
    if not decompressor.eof:
        raise ValueError("its description ends early, or is larger than any")
    entry = msgspec.json.decode(header, type=TableEntry)
    names = [column.name for column in entry.columns]
    if len(set(names)) != len(names):
        raise ValueError("it has a column twice")
    if start + size + sum(array.size for column in entry.columns for array in column.arrays().values()) != len(text):
        raise ValueError("its columns have another size than its description says")
    return entry, start + size


def _with_streams(entry: TableEntry, text: bytes, start: int) -> Iterator[tuple[ColumnEntry, Streams]]:
    """Each column with its packed arrays."""
    for column in entry.columns:
        streams = {}
        for field, array in column.arrays().items():
            streams[field] = (array, text[start : start + array.size])
            start += array.size
        yield column, streams


def _reserve(entry: ColumnEntry, allowance: MemoryAllowance, name: str) -> None:
    allowance.reserve(sum(array.unpacked_bytes for array in entry.arrays().values()), name)
    if entry.lengths is not None:
        allowance.reserve(STRING_BYTES * entry.lengths.count, name)


def _column(column: Column, entry: ColumnEntry, streams: Streams, rows: int) -> Array | TextColumn:
    """The values of a column. Raises ValueError if its dtype is another one, or if it is damaged."""
    if _kind(entry.dtype) != _kind(column.dtype):
        raise ValueError(f"its column {column.name} contains {entry.dtype[:20]}, not {column.dtype}")
    numbers = _numbers(streams, rows)
    if len(numbers) != rows:
        raise ValueError("its columns differ in length")
    return _text(numbers, streams) if column.dtype == "words" else _values(column, entry.dtype, numbers)


def _kind(dtype: str) -> str:
    """The kind of a dtype; "" if tables have no such dtype."""
    if dtype not in _DTYPES:
        return ""
    return "words" if dtype == "words" else np.dtype(dtype).kind


def _numbers(streams: Streams, rows: int) -> Integers:
    """The numbers of all rows; -1 for those that are absent."""
    # Both take 8 bytes a number, for which memory was reserved by the number of rows.
    counts = [streams[field][0].count for field in ("numbers", "distinct") if field in streams]
    if "numbers" not in streams or max(counts) > rows:
        raise ValueError("its columns differ in length")
    numbers = unpack(*streams["numbers"])
    if "distinct" in streams:
        numbers = _entries_at(numbers, unpack(*streams["distinct"]))
    if "mask" not in streams:
        return numbers
    bits = np.frombuffer(unpack_bytes(*streams["mask"]), np.uint8)
    present = np.unpackbits(bits, bitorder="little")[:rows].view(np.bool_)
    if len(present) != rows or np.count_nonzero(present) != len(numbers):
        raise ValueError("its columns differ in length")
    values = np.full(rows, -1, np.int64)
    values[present] = numbers
    return values


def _entries_at(indices: Integers, entries: Integers) -> Integers:
    if indices.min(initial=0) < 0 or indices.max(initial=-1) >= len(entries):
        raise ValueError("it refers to a value that it does not contain")
    return entries[indices]


def _text(codes: Integers, streams: Streams) -> TextColumn:
    if not {"lengths", "texts"} <= streams.keys():
        raise ValueError("a text column has no vocabulary")
    lengths, text = unpack(*streams["lengths"]), unpack_bytes(*streams["texts"])
    in_range = lengths.min(initial=0) >= 0 and lengths.max(initial=0) <= len(text)  # then their sum cannot overflow
    if not in_range or lengths.sum() != len(text):
        raise ValueError("the texts of a column have another size than their lengths say")
    if not -1 <= codes.min(initial=-1) <= codes.max(initial=-1) < len(lengths):
        raise ValueError("it refers to a text that it does not contain")
    ends = np.cumsum(lengths)
    bounds = zip((ends - lengths).tolist(), ends.tolist(), strict=True)
    return TextColumn(codes.astype(np.int32), tuple(text[start:end].decode() for start, end in bounds))


def _values(column: Column, stored_dtype: str, numbers: Integers) -> Array:
    """The numbers in the dtype of the column, which a newer schema version may have widened."""
    stored = np.dtype(stored_dtype)
    bits = numbers.astype(f"i{stored.itemsize}")
    values = bits.view(stored) if stored.kind == "f" else bits.astype(stored)
    dtype = np.dtype(column.dtype)
    array = values.astype(dtype)
    if not np.array_equal(bits, numbers) or not np.array_equal(array, values, equal_nan=dtype.kind == "f"):
        raise ValueError(f"its column {column.name} contains {stored_dtype}, not {column.dtype}")
    return array
