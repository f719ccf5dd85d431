"""Decoder for Thrift's compact protocol, as used by Parquet's footers and page headers.

Arrow reads them itself, but trusts them, and some damaged ones crash the whole process. This decoder can only raise:
it copies nothing, and every step consumes at least one byte.
"""

from __future__ import annotations

from typing import Any

_MAX_DEPTH = 12
_TRUE, _FALSE, _BYTE, _SHORT, _INT, _LONG, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)


class ThriftReader:
    """Reads structs from `at` on, never beyond `end`."""

    def __init__(self, text: bytes, at: int, end: int) -> None:
        self._text, self.at, self._end = text, at, min(end, len(text))

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Fields of a struct by number. Raises ValueError if it is invalid."""
        if depth > _MAX_DEPTH:
            raise ValueError("its description is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while (byte := self._byte()) != 0:
            number = number + (byte >> 4) if byte >> 4 else self._signed()
            fields[number] = self._value(byte & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in (_SHORT, _INT, _LONG):
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind == _LIST:
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise ValueError("its description has a type that Parquet does not use")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        count, kind = head >> 4, head & 15
        if count == 15:
            count = self._unsigned()
        if count > self._end - self.at or depth > _MAX_DEPTH:
            raise ValueError("its description ends early")
        if kind in (_TRUE, _FALSE):
            return [self._byte() == _TRUE for _ in range(count)]
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > self._end:
            raise ValueError("its description ends early")
        return self._text[start : self.at]

    def _byte(self) -> int:
        if self.at >= self._end:
            raise ValueError("its description ends early")
        self.at += 1
        return self._text[self.at - 1]

    def _unsigned(self) -> int:
        result = shift = 0
        while (byte := self._byte()) >= 0x80:
            result |= (byte & 0x7F) << shift
            shift += 7
            if shift > 63:
                raise ValueError("its description has a number of more than 64 bits")
        return result | byte << shift

    def _signed(self) -> int:
        number = self._unsigned()
        return number >> 1 ^ -(number & 1)
