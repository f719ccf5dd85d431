"""Encode rows: a description of the columns, then their streams of packed numbers.

Which encoding is smallest depends on the column and on the clock of the recording: rising times as differences, a
column with few values as indices into them, correlations without the rows that have none. So each column is tried in
all of them, on a sample of its rows.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpulab.rows import Array, Rows, TextColumn
from gpulab.store.column_entries import HEADER_SIZE_BYTES, MAGIC, ColumnEntry, TableEntry
from gpulab.store.packed_arrays import LEVEL, Integers, PackedArray, pack, pack_bytes

_SAMPLE_ROWS = 4096  # as many rows show which encoding is smallest
_SAMPLE_LEVEL = 1
_MAX_DISTINCT_FRAC = 0.5  # more distinct values than this share of the rows: their indices are no smaller


@dataclass(frozen=True)
class _Encoding:
    """One way to store a column of numbers."""

    skip_absent: bool
    distinct: bool
    delta: bool
    planes: bool


def encode_table(rows: Rows) -> bytes:
    """Encode the rows. The same rows give the same bytes."""
    entries, streams = [], []
    for name, values in rows.columns.items():
        entry, column_streams = _text(name, values) if isinstance(values, TextColumn) else _numeric(name, values)
        entries.append(entry)
        streams += column_streams
    header = zlib.compress(msgspec.json.encode(TableEntry(len(rows), tuple(entries))), LEVEL)
    return b"".join((MAGIC, len(header).to_bytes(HEADER_SIZE_BYTES, "little"), header, *streams))


def _numeric(name: str, values: Array) -> tuple[ColumnEntry, list[bytes]]:
    bits = values.view(f"i{values.itemsize}") if values.dtype.kind in "fb" else values
    arrays, streams = _packed(bits.astype(np.int64), absent=-1 if values.dtype.kind == "i" else None)
    return ColumnEntry(name, str(values.dtype), **arrays), streams


def _text(name: str, column: TextColumn) -> tuple[ColumnEntry, list[bytes]]:
    # A file name may contain bytes that are not text.
    texts = [text.encode("utf-8", "replace") for text in column.vocabulary]
    lengths, lengths_stream = pack(np.fromiter(map(len, texts), np.int64, len(texts)))
    vocabulary, vocabulary_stream = pack_bytes(b"".join(texts))
    arrays, streams = _packed(column.codes.astype(np.int64), absent=-1)
    entry = ColumnEntry(name, "words", lengths=lengths, texts=vocabulary, **arrays)
    return entry, [*streams[:-1], lengths_stream, vocabulary_stream, streams[-1]]


def _packed(values: Integers, absent: int | None) -> tuple[dict[str, PackedArray], list[bytes]]:
    """The fields of the entry and their streams, in the encoding that is smallest for a sample of the rows."""
    start = max(0, (len(values) - _SAMPLE_ROWS) // 2)
    sample = values[start : start + _SAMPLE_ROWS]
    sizes = {
        encoding: sum(map(len, _encoded(sample, encoding, absent, _SAMPLE_LEVEL)[1]))
        for encoding in _encodings(sample, absent)
    }
    return _encoded(values, min(sizes, key=sizes.__getitem__), absent, LEVEL)


def _encodings(sample: Integers, absent: int | None) -> Iterator[_Encoding]:
    """The encodings that can be smaller than others for these values."""
    if not len(sample) or (sample == sample[0]).all():
        yield _Encoding(skip_absent=False, distinct=False, delta=False, planes=True)
        return
    is_narrow = sample.min() >= -(2**7) and sample.max() < 2**7
    some_absent = absent is not None and bool((sample == absent).any())
    few = not is_narrow and len(np.unique(sample)) <= _MAX_DISTINCT_FRAC * len(sample)
    for skip_absent, planes in product((False, True) if some_absent else (False,), (True, False)):
        if planes or not is_narrow:
            yield _Encoding(skip_absent, False, False, planes)
        yield _Encoding(skip_absent, False, True, planes)
        if few and not skip_absent:
            yield _Encoding(skip_absent, True, False, planes)


def _encoded(
    values: Integers, encoding: _Encoding, absent: int | None, level: int
) -> tuple[dict[str, PackedArray], list[bytes]]:
    arrays: dict[str, PackedArray] = {}
    streams: list[bytes] = []
    if encoding.skip_absent:
        present: NDArray[np.bool_] = values != absent
        arrays["mask"], stream = pack_bytes(np.packbits(present, bitorder="little").tobytes())
        streams.append(stream)
        values = values[present]
    if encoding.distinct:
        distinct, values = np.unique(values, return_inverse=True)
        arrays["distinct"], stream = pack(distinct, delta=True, planes=True, level=level)
        streams.append(stream)
    arrays["numbers"], stream = pack(values, delta=encoding.delta, planes=encoding.planes, level=level)
    return arrays, [*streams, stream]
