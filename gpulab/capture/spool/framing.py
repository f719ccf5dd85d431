"""Records of a spool file: each has its length and a checksum, so that a file cut anywhere is read up to there."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum

MAGIC = b"gpulab spool 1\n"
MAX_RECORD_BYTES = 64 * 2**20  # upper limit of a record's content, packed or not
_PREFIX = struct.Struct("<IIB")  # length of the packed content, CRC-32 of kind and packed content, kind


class RecordKind(IntEnum):
    """Kinds of record."""

    HEADER = 0
    STATE = 1
    ROWS = 2


def frame_record(kind: RecordKind, content: bytes) -> bytes:
    """Bytes of one record. Raises ValueError if the content is too long."""
    if len(content) > MAX_RECORD_BYTES:
        raise ValueError(f"a record of {len(content):,} bytes is too long")
    packed = zlib.compress(content, 1)
    return _PREFIX.pack(len(packed), _checksum(kind, packed), kind) + packed


def split_records(text: bytes) -> Iterator[tuple[RecordKind, bytes]]:
    """Kind and content of each record, up to the first that is cut or damaged."""
    if not text.startswith(MAGIC):
        return
    start = len(MAGIC)
    while start + _PREFIX.size <= len(text):
        length, checksum, kind = _PREFIX.unpack_from(text, start)
        start += _PREFIX.size
        packed = text[start : start + length]
        start += length
        if len(packed) != length or _checksum(kind, packed) != checksum or kind not in set(RecordKind):
            return
        content = _unpack(packed)
        if content is None:
            return
        yield RecordKind(kind), content


def _checksum(kind: int, packed: bytes) -> int:
    return zlib.crc32(packed, kind)


def _unpack(packed: bytes) -> bytes | None:
    """The content; None if it is damaged or too long."""
    unpacking = zlib.decompressobj()
    try:
        content = unpacking.decompress(packed, MAX_RECORD_BYTES)
    except zlib.error:
        return None
    return content if unpacking.eof else None
