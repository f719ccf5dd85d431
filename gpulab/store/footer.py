"""What a Parquet file says of itself, and what its pages say, looked at before anything is unpacked.

Its end tells how large each column is, but a reader believes what stands before each page: there a file of 500 bytes
can ask for gigabytes. So both are read here, and only what gpulab writes passes: flat columns, in pages of known
sizes, in encodings in which no value is longer than the bytes it has in the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpulab.store.thrift import Reader

# Field numbers of the format, by struct.
_ROWS, _SCHEMA, _COUNT, _GROUPS, _LAST_OF_FILE = 2, 2, 3, 4, 7  # of the file; beyond the last it is encrypted
_TYPE, _REPETITION, _NAME, _CHILDREN = 1, 3, 4, 5  # of an element of the schema
_CHUNKS, _GROUP_ROWS = 1, 3  # of a row group
_ELSEWHERE, _META, _LAST_OF_CHUNK = 1, 3, 7  # of a column chunk; beyond the last it is encrypted
_META_TYPE, _PATH, _VALUES, _LENGTH, _DATA_AT, _DICTIONARY_AT = 1, 3, 5, 7, 9, 11  # of what a chunk says of itself
_PAGE, _UNPACKED, _PACKED, _OF_DATA, _OF_DICTIONARY = 1, 2, 3, 5, 7  # of a page header
_DATA, _DICTIONARY = 0, 2  # kinds of pages
_REPEATED = 2  # more than one value in a row
_ENCODING = 2  # of the header of either kind

_TYPES = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
# PLAIN, PLAIN_DICTIONARY, RLE, DELTA_BINARY_PACKED, RLE_DICTIONARY, BYTE_STREAM_SPLIT. Not the two in which a text is
# told by the one before it.
_BOUNDED = {0, 2, 3, 5, 8, 9}
_FOOTER_BYTES = 2**20  # at most; ours take 5 kB
_MOST_PAGES = 100_000
_MAGIC = b"PAR1"


@dataclass(frozen=True)
class Footer:
    """How many rows a Parquet file has, the type of each column, and where its pages lie."""

    rows: int
    types: Mapping[str, str]
    chunks: Mapping[str, Sequence[tuple[int, int]]]


def footer(text: bytes) -> Footer:
    """What the file says of itself. Raises ValueError where it says what no table of ours does."""
    length = int.from_bytes(text[-8:-4], "little")
    end = len(text) - 8
    if not (text.startswith(_MAGIC) and text.endswith(_MAGIC) and 0 < length <= min(_FOOTER_BYTES, end - 4)):
        raise ValueError("it is no Parquet file, or does not end as one")
    try:
        return _footer(Reader(text, end - length, end).struct(), end - length)
    except (KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError("its description lacks something") from error


def _footer(fields: Mapping[int, Any], end: int) -> Footer:
    if max(fields) > _LAST_OF_FILE:
        raise ValueError("it is encrypted, or newer than Parquet as we know it")
    root, *leaves = fields[_SCHEMA]
    if root[_CHILDREN] != len(leaves) or any(_CHILDREN in leaf or leaf[_REPETITION] == _REPEATED for leaf in leaves):
        raise ValueError("it has columns within columns")
    types = {leaf[_NAME].decode(): _TYPES[leaf[_TYPE]] for leaf in leaves}
    if len(types) != len(leaves):
        raise ValueError("it has a column twice")
    rows, groups = fields[_COUNT], fields[_GROUPS]
    if rows < 0 or rows != sum(group[_GROUP_ROWS] for group in groups):
        raise ValueError("its parts do not make up the whole")
    chunks: dict[str, list[tuple[int, int]]] = {name: [] for name in types}
    for group in groups if rows else ():  # of no rows Arrow writes pages that are nowhere
        for name, chunk in zip(types, group[_CHUNKS], strict=True):
            chunks[name].append(_chunk(chunk, name, types[name], group[_GROUP_ROWS], end))
    return Footer(rows, types, chunks)


def _chunk(chunk: Mapping[int, Any], name: str, kind: str, rows: int, end: int) -> tuple[int, int]:
    """Where the pages of a column begin and end."""
    meta = chunk[_META]
    if _ELSEWHERE in chunk or max(chunk) > _LAST_OF_CHUNK:
        raise ValueError(f"its column {name} is in another file, or encrypted")
    if meta[_PATH] != [name.encode()] or _TYPES[meta[_META_TYPE]] != kind:
        raise ValueError(f"its column {name} is described in two ways")
    if rows < 0 or meta[_VALUES] != rows:
        raise ValueError("its columns differ in length")
    start = meta[_DATA_AT]
    if 0 < meta.get(_DICTIONARY_AT, 0) < start:
        start = meta[_DICTIONARY_AT]
    if not len(_MAGIC) <= start <= start + meta[_LENGTH] <= end:
        raise ValueError(f"its column {name} lies outside the table")
    return start, start + meta[_LENGTH]


def unpacked_bytes(text: bytes, chunks: Sequence[tuple[int, int]]) -> int:
    """How many bytes the pages of these chunks become. Raises ValueError for pages that we never write."""
    total = pages = 0
    for at, end in chunks:
        while at < end:
            size, at = _page(text, at, end)
            total += size
            pages += 1
            if pages > _MOST_PAGES:
                raise ValueError("it has more pages than any run")
    return total


def _page(text: bytes, at: int, end: int) -> tuple[int, int]:
    """How large a page becomes, and where the next one begins."""
    reader = Reader(text, at, end)
    fields = reader.struct()
    try:
        size, length = fields[_UNPACKED], fields[_PACKED]
        encoding = fields[{_DATA: _OF_DATA, _DICTIONARY: _OF_DICTIONARY}[fields[_PAGE]]][_ENCODING]
        if encoding in _BOUNDED and size >= 0 and 0 <= length <= end - reader.at:
            return size, reader.at + length
    except (KeyError, TypeError) as error:
        raise ValueError("a page lacks something") from error
    raise ValueError("a page is of a form that gpulab does not write")
