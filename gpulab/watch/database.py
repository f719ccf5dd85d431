"""Open the database of the watch: a new one, an existing one, or in place of a damaged one.

SQLite in WAL mode: readers and other writers go on while a writer writes, and a killed process leaves no half row.
"""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

from gpulab.errors import StoreError
from gpulab.files.warnings import warn
from gpulab.locations import user_file
from gpulab.watch.schema import VERSION, statements

LOCATION = "GPULAB_WATCH"
_BUSY_S = 5.0
_WAL_LIMIT_BYTES = 16 * 2**20
DAMAGED_SUFFIX = ".damaged"


def default_path() -> Path:
    """The database of this user. Raises StoreError if the user disabled it, or has no home."""
    path = user_file(LOCATION, "watch.sqlite")
    if path is None:
        raise StoreError(
            "There is no place for the history.",
            why=f"{LOCATION} is set to off, or the user has no home folder",
            fix=f"set {LOCATION} to the path of a file",
        )
    return path


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open or create the database. A damaged file is renamed, with a warning; raises StoreError if that fails, too."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return _open(path)
    except sqlite3.DatabaseError as problem:
        if isinstance(problem, sqlite3.OperationalError):  # no permission, a full disk: the file itself is in order
            raise _failure(path, problem) from problem
        _set_aside(path, problem)
        return _open(path)
    except OSError as problem:
        raise _failure(path, problem) from problem


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open the database read-only. Raises StoreError if there is none, or if it cannot be read."""
    if not path.is_file():
        raise StoreError(
            f"There is no history at {str(path)!r}.",
            why="no watch has run here yet",
            fix="start one: gpulab watch (or %gpumonitor --keep in a notebook)",
        )
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=_BUSY_S)
        _check_version(connection, path)
    except sqlite3.Error as problem:
        raise _failure(path, problem) from problem
    return connection


def _open(path: Path) -> sqlite3.Connection:
    # Autocommit: transactions are written out where they begin and end.
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # has an effect on a new file only
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA journal_size_limit = {_WAL_LIMIT_BYTES}")
        connection.execute("BEGIN IMMEDIATE")  # of several writers of a new file, one creates the tables
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone():
            for statement in statements():
                connection.execute(statement)
            connection.execute("INSERT INTO meta VALUES ('version', ?)", (VERSION,))
        connection.execute("COMMIT")
        _check_version(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    row = connection.execute("SELECT value FROM meta WHERE key = 'version'").fetchone()
    if row is None or int(row[0]) != VERSION:
        raise StoreError(
            f"The history {str(path)!r} cannot be used.",
            why=f"its format is version {row[0] if row else 'unknown'}; this gpulab uses version {VERSION}",
            fix=f"use the gpulab that wrote it, or set {LOCATION} to the path of a new file",
        )


def _set_aside(path: Path, problem: Exception) -> None:
    names = [path.with_name(f"{path.name}{DAMAGED_SUFFIX}{number or ''}") for number in range(100)]
    aside = next((name for name in names if not name.exists()), names[-1])
    try:
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    except OSError:
        raise _failure(path, problem) from problem
    warn(f"{path} is damaged ({problem}); it is now {aside}, and a new history begins")


def _failure(path: Path, problem: Exception) -> StoreError:
    return StoreError(
        f"The history {str(path)!r} cannot be opened.",
        why=str(problem),
        fix=f"check the file and its folder, or set {LOCATION} to the path of another file",
    )
