"""Files behind a counter: opens, reads and bytes, and the time that they would take in a remote store.

The files are real, the clock is simulated: every open and every read waits for one round trip, and bytes arrive at the
bandwidth of the store, one request after the other. A read that returns nothing (the end of a file) is no request.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

Opener = Callable[[str, int], BinaryIO]  # (file name, bytes to request at once) -> an open file


class CountedStore:
    """The files of a folder, with counters of what was requested so far.

    `latency_s`: of one round trip; `bytes_per_s`: bandwidth. The defaults are a store without any cost.
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, latency_s: float = 0.0, bytes_per_s: float = math.inf
    ) -> None:
        self.folder, self.latency_s, self.bytes_per_s = Path(folder), latency_s, bytes_per_s
        self.opens = self.reads = self.bytes_read = 0

    @property
    def requests(self) -> int:
        """Round trips: opens and reads."""
        return self.opens + self.reads

    @property
    def waiting_s(self) -> float:
        """Simulated seconds of latency."""
        return self.requests * self.latency_s

    @property
    def transfer_s(self) -> float:
        """Simulated seconds in which bytes arrive."""
        return self.bytes_read / self.bytes_per_s

    @property
    def clock_s(self) -> float:
        """Simulated seconds of all requests, one after the other."""
        return self.waiting_s + self.transfer_s

    def open(self, name: str, buffer_bytes: int = 1 << 20) -> BinaryIO:
        """Open a file for reading. It is requested in pieces of `buffer_bytes`, or as a whole by read()."""
        raw = _CountedFile(self, self.folder / name)
        self.opens += 1
        return cast(BinaryIO, io.BufferedReader(raw, buffer_bytes))

    def reset(self) -> None:
        """Set all counters to zero."""
        self.opens = self.reads = self.bytes_read = 0


def folder_opener(folder: str | os.PathLike[str]) -> Opener:
    """Return a function that opens files of a folder directly, without counting, for timing."""
    return lambda name, buffer_bytes: (Path(folder) / name).open("rb", buffering=buffer_bytes)


class _CountedFile(io.RawIOBase):
    """A file whose reads are counted."""

    def __init__(self, store: CountedStore, path: Path) -> None:
        self._store, self._file = store, io.FileIO(path)

    def readinto(self, buffer: Any) -> int:
        return self._count(self._file.readinto(buffer) or 0)

    def readall(self) -> bytes:
        data = self._file.readall() or b""
        self._count(len(data))
        return data

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def close(self) -> None:
        self._file.close()
        super().close()

    def _count(self, size: int) -> int:
        self._store.reads += size > 0
        self._store.bytes_read += size
        return size
