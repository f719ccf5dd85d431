"""Sizes in the footer and the page headers of a Parquet file, checked before anything is unpacked.

The footer contains the size of each column, but a reader believes the header of each page: there, a file of 500 bytes
can request gigabytes. Therefore both are read here, and only what gpulab writes is accepted: flat columns, in pages of
known sizes, in encodings in which no value is longer than its bytes in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.store.parquet.thrift import ThriftReader

# Field numbers of the format, by struct.
_ROWS, _SCHEMA, _COUNT, _GROUPS, _LAST_OF_FILE = 2, 2, 3, 4, 7  # of the file; larger ones mean encryption
_TYPE, _REPETITION, _NAME, _CHILDREN = 1, 3, 4, 5  # of an element of the schema
_CHUNKS, _GROUP_ROWS = 1, 3  # of a row group
_FILE_PATH, _META, _LAST_OF_CHUNK = 1, 3, 7  # of a column chunk; larger ones mean encryption
_META_TYPE, _PATH, _VALUES, _LENGTH, _DATA_AT, _DICTIONARY_AT = 1, 3, 5, 7, 9, 11  # of the metadata of a chunk
_PAGE, _UNPACKED, _PACKED, _OF_DATA, _OF_DICTIONARY = 1, 2, 3, 5, 7  # of a page header
_DATA, _DICTIONARY = 0, 2  # kinds of pages
_REPEATED = 2  # more than one value in a row
_ENCODING = 2  # of the header of either kind

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
# PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT. Not the two in which a text
# depends on the one before it.
_SAFE_ENCODINGS = {0, 2, 3, 5, 8, 9}
_FOOTER_BYTES = 2**20  # upper limit; ours take 5 kB
_MAX_PAGES = 100_000
_MAGIC = b"PAR1"


@dataclass(frozen=True)
class Footer:
    """Number of rows of a Parquet file, type of each column, and position of its pages."""

    rows: int
    types: Mapping[str, str]
    chunks: Mapping[str, Sequence[tuple[int, int]]]


def parse_footer(text: bytes) -> Footer:
    """Read the footer. Raises ValueError if it contains anything that gpulab never writes."""
    length = int.from_bytes(text[-8:-4], "little")
    end = len(text) - 8
    if not (text.startswith(_MAGIC) and text.endswith(_MAGIC) and 0 < length <= min(_FOOTER_BYTES, end - 4)):
        raise ValueError("it is not a Parquet file, or ends early")
    try:
        return _footer(ThriftReader(text, end - length, end).struct(), end - length)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("its description is incomplete") from error


def _footer(fields: Mapping[int, Any], end: int) -> Footer:
    if max(fields) > _LAST_OF_FILE:
        raise ValueError("it is encrypted, or of a newer Parquet version")
    root, *leaves = fields[_SCHEMA]
    if root[_CHILDREN] != len(leaves) or any(_CHILDREN in leaf or leaf[_REPETITION] == _REPEATED for leaf in leaves):
        raise ValueError("it has nested columns")
    types = {leaf[_NAME].decode(): _TYPES[leaf[_TYPE]] for leaf in leaves}
    if len(types) != len(leaves):
        raise ValueError("it has a column twice")
    rows, groups = fields[_COUNT], fields[_GROUPS]
    if rows < 0 or rows != sum(group[_GROUP_ROWS] for group in groups):
        raise ValueError("the row counts of its parts do not add up")
    chunks: dict[str, list[tuple[int, int]]] = {name: [] for name in types}
    for group in groups if rows else ():  # without rows, Arrow writes pages without a position
        for name, chunk in zip(types, group[_CHUNKS], strict=True):
            chunks[name].append(_chunk(chunk, name, types[name], group[_GROUP_ROWS], end))
    return Footer(rows, types, chunks)


def _chunk(chunk: Mapping[int, Any], name: str, kind: str, rows: int, end: int) -> tuple[int, int]:
    """Start and end of the pages of a column."""
    meta = chunk[_META]
    if _FILE_PATH in chunk or max(chunk) > _LAST_OF_CHUNK:
        raise ValueError(f"its column {name} is in another file, or encrypted")
    if meta[_PATH] != [name.encode()] or _TYPES[meta[_META_TYPE]] != kind:
        raise ValueError(f"its column {name} has two contradictory descriptions")
    if rows < 0 or meta[_VALUES] != rows:
        raise ValueError("its columns differ in length")
    start = meta[_DATA_AT]
    if 0 < meta.get(_DICTIONARY_AT, 0) < start:
        start = meta[_DICTIONARY_AT]
    if not len(_MAGIC) <= start <= start + meta[_LENGTH] <= end:
        raise ValueError(f"its column {name} lies outside the table")
    return start, start + meta[_LENGTH]


def unpacked_bytes(text: bytes, chunks: Sequence[tuple[int, int]]) -> int:
    """Total uncompressed size of the pages. Raises ValueError for pages that gpulab never writes."""
    total = pages = 0
    for at, end in chunks:
        while at < end:
            size, at = _page(text, at, end)
            total += size
            pages += 1
            if pages > _MAX_PAGES:
                raise ValueError("it has more pages than any run")
    return total


def _page(text: bytes, at: int, end: int) -> tuple[int, int]:
    """Uncompressed size of a page, and position of the next one."""
    reader = ThriftReader(text, at, end)
    fields = reader.struct()
    try:
        size, length = fields[_UNPACKED], fields[_PACKED]
        encoding = fields[{_DATA: _OF_DATA, _DICTIONARY: _OF_DICTIONARY}[fields[_PAGE]]][_ENCODING]
        if encoding in _SAFE_ENCODINGS and size >= 0 and 0 <= length <= end - reader.at:
            return size, reader.at + length
    except (KeyError, TypeError) as error:
        raise ValueError("a page header is incomplete") from error
    raise ValueError("a page has a format that gpulab does not write")
