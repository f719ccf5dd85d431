"""Arrays of integers as compressed bytes: each number in as few bytes as the largest needs, compressed with zlib.

A number is stored as an unsigned one, with its sign in the lowest bit (zigzag), after its predecessor was subtracted if
`delta` is set. With `planes`, the lowest bytes of all numbers come first, then the next ones: high bytes are mostly
zero, and zlib finds that only if they stand together.
"""

from __future__ import annotations

import zlib
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

Integers = NDArray[np.int64]

LEVEL = 6  # of zlib, for what is stored; reading takes the same time at every level
_MAX_COUNT = 2**31 - 1


class PackedArray(msgspec.Struct, frozen=True, omit_defaults=True):
    """How an array is stored, and its sizes: `count` numbers of `width` bytes, compressed to `size` bytes."""

    count: Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
    width: Literal[1, 2, 4, 8]
    size: Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
    delta: bool = False
    planes: bool = False

    @property
    def unpacked_bytes(self) -> int:
        """Bytes after decompression."""
        return self.count * self.width


def pack(
    values: Integers, *, delta: bool = False, planes: bool = False, level: int = LEVEL
) -> tuple[PackedArray, bytes]:
    """Compress an array of integers."""
    numbers = np.diff(values, prepend=np.int64(0)) if delta else values  # wraps around at 2^63, as `unpack` does
    unsigned = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    width = _width(int(unsigned.max(initial=0)))
    narrow = unsigned.astype(f"<u{width}")
    text = narrow.view(np.uint8).reshape(-1, width).T.tobytes() if planes else narrow.tobytes()
    stream = zlib.compress(text, level)
    return PackedArray(len(values), width, len(stream), delta, planes and width > 1), stream


def unpack(array: PackedArray, stream: bytes) -> Integers:
    """The numbers of a stream. Raises ValueError or zlib.error if it is damaged."""
    text = unpack_bytes(array, stream)
    if array.planes:
        planes = np.frombuffer(text, np.uint8).reshape(array.width, array.count)
        narrow = np.ascontiguousarray(planes.T).view(f"<u{array.width}").ravel()
    else:
        narrow = np.frombuffer(text, f"<u{array.width}")
    unsigned = narrow.astype(np.uint64)
    numbers = (unsigned >> np.uint64(1)).view(np.int64)
    np.bitwise_xor(numbers, -(unsigned & np.uint64(1)).view(np.int64), out=numbers)
    return np.cumsum(numbers, out=numbers) if array.delta else numbers


def pack_bytes(text: bytes) -> tuple[PackedArray, bytes]:
    """Compress bytes as they are."""
    stream = zlib.compress(text, LEVEL)
    return PackedArray(len(text), 1, len(stream)), stream


def unpack_bytes(array: PackedArray, stream: bytes) -> bytes:
    """Decompress a stream, which must have exactly the size that its entry says."""
    decompressor = zlib.decompressobj()
    text = decompressor.decompress(stream, array.unpacked_bytes + 1)  # one more would be too many, and no more is read
    if len(text) != array.unpacked_bytes or not decompressor.eof or decompressor.unused_data:
        raise ValueError("a stream has another size than its description says")
    return text


def _width(largest: int) -> Literal[1, 2, 4, 8]:
    if largest < 2**8:
        return 1
    if largest < 2**16:
        return 2
    return 4 if largest < 2**32 else 8
