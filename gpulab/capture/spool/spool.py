"""Append a recording in progress to a file, from which `gpulab.recover()` builds a run if the process is killed.

The sampler's thread calls `Spool.write()` at every tick. It appends what is new at most once a second, in one call of
write(2), so what was written survives SIGKILL. Nothing here raises: a failure ends the spool, and is a gap of the run.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from gpulab.capture.spool.content import RecordingState, SpoolHeader, encode_rows, encode_value
from gpulab.capture.spool.folder import new_spool_stem, remove_old_leftovers, segment_name, spool_folder, window_name
from gpulab.capture.spool.framing import MAGIC, RecordKind, frame_record
from gpulab.rows import Rows, Table
from gpulab.run import Gap, Machine
from gpulab.sensors.host.process_identity import current_process

PERIOD_NS = 1_000_000_000
MAX_BYTES = 64 * 2**20  # of both segments together: hours of a fast loop, a day of a slow one
_LOCK_TIMEOUT_S = 1.0
_LAST_STREAM = 2  # stderr
_DISK_FULL = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))

NewRows = Callable[[], Iterable[Rows]]


class Spool:
    """The file of one recording. `begin` in any thread, `write` in the sampler's, `discard` in any.

    `tables` return the rows added since they were called last, with times in UNIX ns. `state` returns everything else.
    `folder`: where the file is, instead of the user's cache.
    A file that is half of `max_bytes` long is continued in a second one; the one before is then deleted.
    """

    def __init__(
        self,
        name: str,
        level: str,
        *,
        max_bytes: int = MAX_BYTES,
        period_ns: int = PERIOD_NS,
        folder: Path | None = None,
    ) -> None:
        self._name, self._level = name, level
        self._segment_bytes, self._period_ns = max_bytes // 2, period_ns
        self._tables: Sequence[NewRows] = ()
        self._state: Callable[[], RecordingState] = RecordingState
        self._machine = Machine()
        self._began_ns = self._written_ns = 0
        self._header: SpoolHeader | None = None
        self._last_state: RecordingState | None = None
        self._other_folder = folder
        self._folder: Path | None = None
        self._stem = ""
        self._paths: list[Path] = []
        self._window_paths: list[Path] = []
        self._file = -1
        self._identity: tuple[int, int] | None = None  # of the open file
        self._size = 0
        self._pid = 0  # forked processes have this object, too
        self._active = False
        self._lock = threading.Lock()
        self._gap: Gap | None = None

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Why the recording has no copy on disk, if it has none."""
        return () if self._gap is None else (self._gap,)

    def begin(
        self,
        began_ns: int,
        tables: Sequence[NewRows],
        state: Callable[[], RecordingState],
        machine: Machine,
    ) -> None:
        """Start with the recording, at this UNIX time. Touches no file: `write` creates it."""
        self._began_ns, self._tables, self._state, self._machine = began_ns, tables, state, machine
        self._pid = os.getpid()
        self._active = True

    def write(self, now_ns: int | None = None) -> None:
        """Append what is new, if the last time is a second ago."""
        now_ns = time.time_ns() if now_ns is None else now_ns
        # A clock that was set back must not stop the spool.
        if not self._active or abs(now_ns - self._written_ns) < self._period_ns or os.getpid() != self._pid:
            return
        with self._lock:
            if not self._active:
                return
            self._written_ns = now_ns
            try:
                self._append()
            except OSError as error:
                self._fail(error.strerror or str(error))
                if error.errno in _DISK_FULL:
                    self._remove_segments()  # the user's program needs the space more
            except Exception as error:  # protects the recording, which goes on without a copy; reported as a gap
                self._fail(f"{type(error).__name__}: {error}")

    def window_path(self, index: int) -> Path | None:
        """Where the events of the profiler's n-th window belong; None while the recording has no file."""
        if not self._active or self._folder is None or not self._stem or os.getpid() != self._pid:
            return None
        path = self._folder / window_name(self._stem, index)
        self._window_paths.append(path)
        return path

    def discard(self) -> None:
        """Delete the file: the recording ended and became a run, or is not wanted. A second call does nothing."""
        if os.getpid() != self._pid:
            return
        self._active = False
        # A write that hangs, on a network drive perhaps, must not keep the user's program.
        locked = self._lock.acquire(timeout=_LOCK_TIMEOUT_S)
        try:
            self._remove_segments()
            _remove_files(self._window_paths)
            self._window_paths = []
        finally:
            if locked:
                self._lock.release()

    def _append(self) -> None:
        rows = [part for table in self._tables for part in table() if len(part)]
        state = self._state()  # after the rows, which refer to it, and before them in the file
        if self._header is None:
            self._folder = spool_folder(self._other_folder)
            if self._folder is None:
                self._active = False
                return
            self._header = self._new_header()
            self._open_segment(0)
        elif self._size >= self._segment_bytes:
            self._open_segment(self._header.segment + 1)
        records = []
        if state != self._last_state:
            self._last_state = state
            records.append(frame_record(RecordKind.STATE, encode_value(state)))
        records += [frame_record(RecordKind.ROWS, encode_rows(part)) for part in rows]
        self._write_bytes(b"".join(records))

    def _new_header(self) -> SpoolHeader:
        return SpoolHeader(
            name=self._name,
            level=self._level,
            process=str(current_process()),
            began_ns=self._began_ns,
            date=datetime.date.today().isoformat(),
            machine=self._machine,
            gpulab=_gpulab_version(),
        )

    def _open_segment(self, segment: int) -> None:
        """Continue in a new file, and delete all but the one before it."""
        assert self._header is not None
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not segment:
            self._stem = new_spool_stem()
            remove_old_leftovers(self._folder)
        self._header = replace(self._header, segment=segment)
        path = self._folder / segment_name(self._stem, segment)
        file = _above_streams(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600))
        self._close()
        self._file, self._identity = file, self._identity_of(file)
        self._size, self._last_state = 0, None
        self._paths.append(path)
        self._write_bytes(MAGIC + frame_record(RecordKind.HEADER, encode_value(self._header)))
        while len(self._paths) > 2:
            self._paths.pop(0).unlink(missing_ok=True)

    def _write_bytes(self, text: bytes) -> None:
        # Not buffered: a forked process would write the buffer again.
        if self._identity_of(self._file) != self._identity:
            self._file = -1  # not to be closed: it belongs to the program now
            raise OSError("the program has closed its file")
        view = memoryview(text)
        while view:
            view = view[os.write(self._file, view) :]
        self._size += len(text)

    def _fail(self, why: str) -> None:
        self._active = False
        self._gap = Gap(
            what="the copy of the recording from which gpulab.recover() restores it after a kill",
            why=f"writing it failed: {why}",
            fix="free disk space, or set GPULAB_SPOOL to another folder",
        )
        # What is on disk stays, up to here: the process may still be killed.
        self._close()

    def _remove_segments(self) -> None:
        """Delete the copy of the recording; the run still needs the events of the profiler's windows."""
        self._close()
        _remove_files(self._paths)
        self._paths = []

    @staticmethod
    def _identity_of(file: int) -> tuple[int, int] | None:
        """The device and the number of a file: a program that closes all files may use its descriptor for another."""
        try:
            status = os.fstat(file)
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _close(self) -> None:
        file, self._file = self._file, -1
        if file >= 0 and self._identity_of(file) == self._identity:
            with contextlib.suppress(OSError):
                os.close(file)


def _above_streams(file: int) -> int:
    """The file under a number above 2: where the program closed its stdout, it would print into the file."""
    if file > _LAST_STREAM:
        return file
    try:
        return _above_streams(os.dup(file))
    finally:
        os.close(file)


def _remove_files(paths: Iterable[Path]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)


def rows_added(table: Table, rows: Sequence[Sequence[Any]]) -> NewRows:
    """The rows added to a growing list since the previous call, for `Spool.begin`."""
    position = 0

    def added() -> tuple[Rows]:
        nonlocal position
        new = rows[position:]
        position += len(new)
        return (table.of(new),)

    return added


def _gpulab_version() -> str:
    try:
        return version("gpulab")
    except PackageNotFoundError:
        return "unknown"
