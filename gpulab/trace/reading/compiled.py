"""Parse chunks of events with the compiled parser, if it was built; what it declines is left to the decoder."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpulab.trace.columns import arguments
from gpulab.trace.columns.row_columns import RowColumns, RowLayout
from gpulab.trace.columns.side_tables import MEMORY_ARGUMENTS, ArgumentReader, SideTable
from gpulab.trace.reading.chunk_events import Header, ReadOptions
from gpulab.trace.reading.chunks import ChunkPosition, TextChunk
from gpulab.trace.reading.decoder import DECODE_ERRORS, parse_ending

try:
    from gpulab.trace.reading import _chunk_parser
except ImportError:  # no compiler was there
    _chunk_parser = None  # type: ignore[assignment]

# Letters of the parser, by the function that converts the values of an argument.
_KINDS: dict[Callable[[arguments.Values], NDArray[Any]] | None, bytes] = {
    None: b"t",
    arguments.counts_and_ids: b"c",
    arguments.correlations: b"c",
    arguments.addresses: b"c",
    arguments.signed_amounts: b"a",
    arguments.products: b"p",
    arguments.occupancies: b"f",
}
_LABEL = ArgumentReader("name")
_NO_TEXTS = b"[]"
_INTEGER_BYTES = 8
_FIRST_COLUMN_BYTES = 64 * 1024
_PAGE_BYTES, _CACHE_LINE_BYTES = 4096, 64
_ANY = msgspec.json.Decoder(list[Any])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])


class _Request(NamedTuple):
    """What to read of each event, for the parser and for its result."""

    keys: bytes
    readers: tuple[ArgumentReader, ...]
    layout: RowLayout

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.layout.fields) + len(self.readers)

    def used_columns(self, bits: int) -> frozenset[int]:
        """The columns of these arguments."""
        return frozenset(index + len(self.layout.fields) for index in range(len(self.readers)) if bits >> index & 1)


def uses_compiled_parser() -> bool:
    """Whether traces are read with the compiled parser: it was built, and GPULAB_COMPILED does not forbid it."""
    return _chunk_parser is not None and os.environ.get("GPULAB_COMPILED") != "no"


class CompiledParser:
    """Parses chunk after chunk into the same memory, which is faster than new memory for each."""

    def __init__(self) -> None:
        self._columns = bytearray()

    def parse(self, chunk: TextChunk, options: ReadOptions, is_array: bool) -> tuple[RowColumns, Header | None] | None:
        """Events of a chunk, and the metadata if it is the last one; None if the decoder must read it.

        The columns are valid until the next call.
        """
        if chunk.position is ChunkPosition.STUCK:
            return None
        is_last = chunk.position is ChunkPosition.LAST
        request = _request(options.side_tables)
        end = 1 + len(chunk.text)  # the text follows the bracket
        buffer: Any = chunk.array.obj
        self._columns = self._columns or bytearray(_column_bytes(0) * request.width)
        parsed: Any = True
        while parsed is True:
            parsed = _chunk_parser.parse(buffer, 1, end, self._columns, request.keys, options.exact_times, is_last)
            if parsed is True:  # there are more events than the memory has rows
                self._columns = bytearray(_column_bytes(len(self._columns) // request.width) * request.width)
        if parsed is None:
            return None
        count, used, texts, events_end = parsed
        values = _distinct_values(texts, request)
        header = parse_ending(chunk.array[events_end:end], is_array) if is_last else None
        if values is None or (is_last and header is None):
            return None
        capacity = len(self._columns) // request.width // _INTEGER_BYTES
        columns = np.frombuffer(self._columns, np.int64, request.width * capacity).reshape(request.width, capacity)[
            :, :count
        ]
        return RowColumns(columns, values, request.used_columns(used), request.layout), header


def _column_bytes(too_few: int) -> int:
    """Space for a column, more than before. No power of two, because columns would compete for the same cache lines."""
    return max(_FIRST_COLUMN_BYTES, 2 * too_few) // _PAGE_BYTES * _PAGE_BYTES + _CACHE_LINE_BYTES


@functools.cache
def _request(side_tables: frozenset[SideTable]) -> _Request:
    scopes = {scope: index for index, scope in enumerate(_chunk_parser.SCOPES)}
    of_work = {reader: scopes["work"] for side in side_tables for reader in side.readings.values()}
    of_memory = dict.fromkeys(MEMORY_ARGUMENTS.readings.values(), scopes["memory"])
    readers = of_work | of_memory | {_LABEL: scopes["label"]}
    keys = [
        b"%b%d%c%b" % (_KINDS[reader.read], scope, len(reader.key), reader.key.encode())
        for reader, scope in readers.items()
    ]
    columns = {reader: index for index, reader in enumerate(readers, len(_chunk_parser.FIELDS))}
    fields = {field: index for index, field in enumerate(_chunk_parser.FIELDS)}
    return _Request(b"".join(keys), tuple(readers), RowLayout(fields, scopes, columns, columns[_LABEL]))


def _distinct_values(texts: Sequence[bytes], request: _Request) -> list[Sequence[Any]] | None:
    """The distinct values of each column of the rows; None if they are not JSON or must be compared by the decoder."""
    values: list[Sequence[Any]] = []
    try:
        for index, text in enumerate(texts, -len(request.layout.fields)):
            if text == _NO_TEXTS:
                values.append(())
            elif index >= 0 and request.readers[index].json:
                values.append([bytes(raw) for raw in _RAW.decode(text)])
            else:
                values.append(_ANY.decode(text))
    except DECODE_ERRORS:
        return None
    ids = (*values[request.layout.fields["pid"]], *values[request.layout.fields["tid"]])
    return values if all(map(_is_usual_id, ids)) else None


def _is_usual_id(value: Any) -> bool:
    """Whether an id of a process or thread equals another one only if it is written in the same way."""
    if not isinstance(value, str):
        return type(value) is int
    try:
        return str(int(value)) == value
    except ValueError:
        return True
