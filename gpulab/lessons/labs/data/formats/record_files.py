"""TFRecord framing: each payload with its length before it, and a checksum for either.

    uint64  length              little-endian, as all numbers
    uint32  masked CRC of the 8 bytes of the length
    bytes   payload
    uint32  masked CRC of the payload

The checksum is CRC-32C (Castagnoli). It is masked, because the CRC of data that contain their own CRC is a constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache
from typing import BinaryIO

HEAD_BYTES, TAIL_BYTES = 12, 4
_POLYNOMIAL = 0x82F63B78  # Castagnoli, bits reversed
_MASK_DELTA = 0xA282EAD8


def castagnoli_crc(data: bytes) -> int:
    """Return the CRC-32C of some bytes, in pure Python: about 100 ns per byte."""
    table, crc = _crc_table(), 0xFFFFFFFF
    for byte in data:
        crc = table[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C, rotated right by 15 bits, plus a constant, as TFRecord files store it."""
    crc = castagnoli_crc(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def read_frames(file: BinaryIO, *, verify: bool = False) -> Iterator[bytes]:
    """Yield the payloads of a file, up to its end or to the first damaged frame.

    The checksum of the length is always compared, because a wrong length would lead anywhere. `verify`: also compare
    that of the payload.
    """
    while len(head := file.read(HEAD_BYTES)) == HEAD_BYTES:
        length, length_crc = struct.unpack("<QI", head)
        if masked_crc(head[:8]) != length_crc:
            return
        payload, tail = file.read(length), file.read(TAIL_BYTES)
        if len(payload) < length or len(tail) < TAIL_BYTES:
            return
        if verify and masked_crc(payload) != struct.unpack("<I", tail)[0]:
            return
        yield payload


@cache
def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = crc >> 1 ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return tuple(table)
