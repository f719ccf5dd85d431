"""Text of a trace in blocks of about a megabyte, from a file or memory, plain or gzip; never all at once."""

from __future__ import annotations

import contextlib
import io
import os
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpulab.errors import TraceError
from gpulab.trace.reading.limits import CORRUPT, CUT_OFF, MIB, TEXT_LIMIT, Limits, Losses
from gpulab.wording import size

fast_zlib: Any = zlib
with contextlib.suppress(ImportError):  # three to four times as fast as zlib, if installed
    from isal import isal_zlib as fast_zlib

Progress = Callable[[int], object]  # called with the number of bytes of the file read since the previous call
BLOCK = MIB  # text that stays in the second-level cache decodes fastest
FIX = "use a file that torch.profiler exported with export_chrome_trace(...), .json or .json.gz"
_INPUT_BYTES = 64 * 1024
_GZIP = b"\x1f\x8b"
_OTHER_FORMATS = {
    b"PK\x03\x04": ("a zip archive", "unpack it, or open a .gpulab file with gpulab.load(...)"),
    b"\x28\xb5\x2f\xfd": ("compressed with zstd", "decompress it first: zstd -d FILE"),
    b"BZh": ("compressed with bzip2", "decompress it first: bunzip2 FILE"),
    b"\xfd7zXZ": ("compressed with xz", "decompress it first: unxz FILE"),
    b"\xff\xfe": ("text in UTF-16", "save it as UTF-8"),
    b"\xfe\xff": ("text in UTF-16", "save it as UTF-8"),
}


def read_blocks(
    source: Path | bytes, limits: Limits, losses: Losses, progress: Progress | None = None
) -> Generator[bytes, None, None]:
    """Yield the text block by block; if it ends early, count that and stop.

    Raises TraceError if there is nothing to read.
    """
    with open_source(source) as file, _reading(source):
        head = file.read(8)
        file.seek(0)
        if not head:
            raise TraceError(f"{file_label(source)} is empty.", why="the file has 0 bytes", fix=FIX)
        for magic, (description, fix) in _OTHER_FORMATS.items():
            if head.startswith(magic):
                raise TraceError(f"{file_label(source)} is not a readable trace.", why=f"it is {description}", fix=fix)
        text = _inflated(file, file_label(source), limits, losses) if head.startswith(_GZIP) else _read_blocks(file)
        size = reported = 0
        for block in text:
            size += len(block)
            if size > limits.text_bytes:
                losses.add(TEXT_LIMIT)
                return
            if progress is not None:
                progress(file.tell() - reported)
                reported = file.tell()
            yield block


@contextlib.contextmanager
def _reading(source: Path | bytes) -> Iterator[None]:
    """Convert a failure of the disk or the network to a TraceError."""
    try:
        yield
    except OSError as error:
        raise TraceError(
            f"{file_label(source)} cannot be read.",
            why=error.strerror or str(error),
            fix="check the disk or the network connection, or copy the file to another disk",
        ) from error


def open_source(source: Path | bytes) -> BinaryIO:
    """Open the file or the bytes. Raises TraceError unless it is a regular, readable file."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
    try:
        mode = source.stat().st_mode
        if stat.S_ISREG(mode):
            return source.open("rb")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise TraceError(f"{source} cannot be opened.", why=why, fix="check the path and its permissions") from None
    # A pipe or a device could block or never end.
    kind = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
    raise TraceError(f"{source} is not a trace.", why=f"it is {kind}", fix=FIX)


def is_trace(source: str | os.PathLike[str] | bytes) -> bool:
    """Whether this begins like a trace: a JSON object or array, plain or gzip. The rest is not read."""
    limits, losses = Limits(text_bytes=2 * BLOCK), Losses()
    try:
        for block in read_blocks(source if isinstance(source, bytes) else Path(source), limits, losses):
            if text := block.removeprefix(b"\xef\xbb\xbf").lstrip():
                return text[:1] in (b"{", b"[")
    except TraceError:
        pass
    return False


def file_label(source: Path | bytes) -> str:
    """Name of the source in a message."""
    return f"A trace of {len(source):,} bytes in memory" if isinstance(source, bytes) else str(source)


def _read_blocks(file: BinaryIO) -> Iterator[bytes]:
    while block := file.read(BLOCK):
        yield block


def _inflated(file: BinaryIO, name: str, limits: Limits, losses: Losses) -> Iterator[bytes]:
    """Decompress the members of a gzip file one after the other, at most one block at a time."""
    unpacked, member = 0, 1
    stream = fast_zlib.decompressobj(wbits=31)
    waiting = file.read(_INPUT_BYTES)
    while True:
        try:
            block = stream.decompress(waiting, BLOCK)
        except (OSError, EOFError, ValueError, zlib.error, fast_zlib.error):
            losses.add(CORRUPT)
            if member == 1:
                yield from _text_before_damage(file, unpacked)
            return
        unpacked += len(block)
        if unpacked > limits.ratio_from_bytes and unpacked > limits.ratio * file.tell():
            raise _expansion_error(name, file.tell(), unpacked, limits)
        if block:
            yield block
        waiting = stream.unconsumed_tail
        if stream.eof:
            # After the last member comes padding, nothing, or another member.
            waiting = stream.unused_data.lstrip(b"\0") or file.read(_INPUT_BYTES).lstrip(b"\0")
            if not waiting.startswith(_GZIP[:1]):
                return
            stream, member = fast_zlib.decompressobj(wbits=31), member + 1
        elif not waiting:
            waiting = file.read(_INPUT_BYTES)
            if not waiting and not block:  # the whole file is read and decompressed
                losses.add(CUT_OFF)
                return


def _text_before_damage(file: BinaryIO, already: int) -> Iterator[bytes]:
    """Text between the text already yielded and the damage, decompressed again in small chunks."""
    file.seek(0)
    stream = zlib.decompressobj(wbits=31)
    size = 0
    try:
        while chunk := file.read(256):
            output = stream.decompress(chunk)  # at most 1032 times the chunk
            size += len(output)
            if fresh := output[max(0, already - (size - len(output))) :]:
                yield fresh
    except zlib.error:
        return


def _expansion_error(name: str, packed: int, unpacked: int, limits: Limits) -> TraceError:
    return TraceError(
        f"{name} expands too far to be a trace.",
        why=f"{size(packed)} became more than {size(unpacked)}; real traces expand 9 to 30 times",
        fix=f"if you trust the file, decompress it first, or read it with Limits(ratio=...) above {limits.ratio}",
    )
